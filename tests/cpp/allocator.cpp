#include "allocator.hpp"

#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <new>

namespace mha::testing {
namespace {

std::atomic<long> count{0}, failing{0};
std::atomic<std::size_t> most{SIZE_MAX};

/// Counts an allocation; whether it is to fail.
bool refuses(std::size_t bytes) noexcept {
  count.fetch_add(1, std::memory_order_relaxed);
  if (failing.load(std::memory_order_relaxed) > 0 && failing.fetch_sub(1, std::memory_order_relaxed) == 1) return true;
  return bytes > most.load(std::memory_order_relaxed);
}

constexpr std::size_t kDefaultAlignment = __STDCPP_DEFAULT_NEW_ALIGNMENT__;

void* allocate(std::size_t bytes, std::size_t alignment) noexcept {
  if (refuses(bytes)) return nullptr;
  if (alignment < sizeof(void*)) alignment = sizeof(void*);
  void* memory = nullptr;
  return posix_memalign(&memory, alignment, bytes > 0 ? bytes : 1) == 0 ? memory : nullptr;
}

void* allocate_or_throw(std::size_t bytes, std::size_t alignment) {
  void* const memory = allocate(bytes, alignment);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}

// Not inlined, because a compiler that sees free() of a result of operator new warns of a mismatch.
[[gnu::noinline]] void release(void* memory) noexcept { std::free(memory); }

}  // namespace

long allocations() { return count.load(); }
void fail_allocation(long n) { failing.store(n); }
void refuse_allocations_above(std::size_t bytes) { most.store(bytes); }

}  // namespace mha::testing

using mha::testing::allocate;
using mha::testing::allocate_or_throw;
using mha::testing::kDefaultAlignment;
using mha::testing::release;

// What the linker is told, by --wrap=calloc, to take for calloc(), by which a KVCache gets its memory.
extern "C" {
void* __real_calloc(std::size_t count, std::size_t size);
void* __wrap_calloc(std::size_t count, std::size_t size) {
  const bool wraps_around = size != 0 && count > SIZE_MAX / size;
  return mha::testing::refuses(wraps_around ? SIZE_MAX : count * size) ? nullptr : __real_calloc(count, size);
}
}

void* operator new(std::size_t bytes) { return allocate_or_throw(bytes, kDefaultAlignment); }
void* operator new(std::size_t bytes, const std::nothrow_t&) noexcept { return allocate(bytes, kDefaultAlignment); }
void* operator new(std::size_t bytes, std::align_val_t alignment) {
  return allocate_or_throw(bytes, std::size_t(alignment));
}
void* operator new(std::size_t bytes, std::align_val_t alignment, const std::nothrow_t&) noexcept {
  return allocate(bytes, std::size_t(alignment));
}
void* operator new[](std::size_t bytes) { return allocate_or_throw(bytes, kDefaultAlignment); }
void* operator new[](std::size_t bytes, const std::nothrow_t&) noexcept { return allocate(bytes, kDefaultAlignment); }
void* operator new[](std::size_t bytes, std::align_val_t alignment) {
  return allocate_or_throw(bytes, std::size_t(alignment));
}
void* operator new[](std::size_t bytes, std::align_val_t alignment, const std::nothrow_t&) noexcept {
  return allocate(bytes, std::size_t(alignment));
}

void operator delete(void* memory) noexcept { release(memory); }
void operator delete(void* memory, std::size_t) noexcept { release(memory); }
void operator delete(void* memory, const std::nothrow_t&) noexcept { release(memory); }
void operator delete(void* memory, std::align_val_t) noexcept { release(memory); }
void operator delete(void* memory, std::size_t, std::align_val_t) noexcept { release(memory); }
void operator delete(void* memory, std::align_val_t, const std::nothrow_t&) noexcept { release(memory); }
void operator delete[](void* memory) noexcept { release(memory); }
void operator delete[](void* memory, std::size_t) noexcept { release(memory); }
void operator delete[](void* memory, const std::nothrow_t&) noexcept { release(memory); }
void operator delete[](void* memory, std::align_val_t) noexcept { release(memory); }
void operator delete[](void* memory, std::size_t, std::align_val_t) noexcept { release(memory); }
void operator delete[](void* memory, std::align_val_t, const std::nothrow_t&) noexcept { release(memory); }
