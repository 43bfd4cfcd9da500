#include "platform/workspace.hpp"

#include <algorithm>
#include <limits>
#include <new>

#include "mha/errors.hpp"
#include "mha/runtime.hpp"

namespace mha {
namespace {

constexpr std::align_val_t kAlignment{64};
constexpr std::size_t kPage = 4096;
constexpr std::size_t kMostBytes = std::numeric_limits<std::ptrdiff_t>::max() - kPage;
// A larger arena is freed after the call. A call that needs so much runs for so long that allocating the memory again
// costs nothing next to it, and a thread that made one such call should not hold the memory for good.
constexpr std::size_t kMostKept = std::size_t{64} << 20;

constexpr std::size_t whole_pages(std::size_t bytes) { return (bytes + kPage - 1) / kPage * kPage; }

std::byte* allocate(std::size_t bytes) {
  void* block = bytes > kMostBytes ? nullptr : ::operator new(whole_pages(bytes), kAlignment, std::nothrow);
  if (block == nullptr) throw AllocationError(bytes);
  return static_cast<std::byte*>(block);
}

void deallocate(std::byte* block) { ::operator delete(block, kAlignment); }

struct Arena {
  std::byte* data = nullptr;
  std::size_t capacity = 0;
  std::size_t largest = 0;
  bool is_borrowed = false;

  ~Arena() { release(); }

  void grow(std::size_t bytes) {
    if (bytes <= capacity) return;
    release();  // first: the contents are not needed, and both blocks at once would take more memory
    data = allocate(bytes);
    capacity = whole_pages(bytes);
    largest = std::max(largest, capacity);
  }

  void release() {
    deallocate(data);
    data = nullptr;
    capacity = 0;
  }
};

thread_local Arena arena;

}  // namespace

Workspace::Workspace(std::size_t bytes) {
  if (arena.is_borrowed) {  // an outer scope of this thread has the arena
    data_ = allocate(bytes);
    arena.largest = std::max(arena.largest, arena.capacity + whole_pages(bytes));
    return;
  }
  arena.grow(bytes);
  arena.is_borrowed = true;
  data_ = arena.data;
}

Workspace::~Workspace() {
  if (data_ != arena.data) {
    deallocate(data_);
    return;
  }
  arena.is_borrowed = false;
  if (arena.capacity > kMostKept) arena.release();
}

std::size_t scratch_bytes() { return arena.largest; }

}  // namespace mha
