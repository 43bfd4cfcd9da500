#include "weights/weight_memory.hpp"

#include <algorithm>
#include <mutex>
#include <new>

#include "mha/errors.hpp"

#if defined(__SANITIZE_ADDRESS__)
#define MHA_ADDRESS_SANITIZER
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define MHA_ADDRESS_SANITIZER
#endif
#endif

namespace mha {
namespace {

constexpr std::size_t kAlignment = 64;

/// Null if there is no such memory.
WeightMemory allocate(std::size_t bytes, std::size_t alignment) {
  const std::align_val_t aligned{alignment};
  auto* const memory = new (aligned, std::nothrow) std::byte[bytes];
  if (memory == nullptr) return nullptr;
  return {memory, [aligned](std::byte* data) { ::operator delete[](data, aligned); }};
}

// The address sanitizer sees no end of weights within an area.
#if defined(__linux__) && !defined(MHA_ADDRESS_SANITIZER)
constexpr std::size_t kAreaBytes = std::size_t{32} << 20;

std::size_t round_up(std::size_t bytes, std::size_t to) { return (bytes + to - 1) / to * to; }

/// Memory from whose begin on parts have been given out. They alone keep it.
struct Area {
  std::weak_ptr<std::byte[]> memory;
  std::size_t used = 0, bytes = 0;

  std::size_t rest() const { return memory.expired() ? 0 : bytes - used; }
  WeightMemory take(const WeightMemory& whole, std::size_t size) {
    std::byte* const part = whole.get() + used;
    used += round_up(size, kAlignment);
    return {whole, part};
  }
};

/// A part of an area; null if there is no memory for one, or while another thread takes one. (After a fork that thread
/// may not be there any more.)
WeightMemory take_of_area(std::size_t bytes) {
  static std::mutex& taking = *new std::mutex;  // never destroyed: weights may be packed while the process ends
  static Area& open = *new Area;
  const std::unique_lock<std::mutex> lock(taking, std::try_to_lock);
  if (!lock.owns_lock()) return nullptr;
  if (const WeightMemory whole = open.memory.lock(); whole && open.rest() >= bytes) return open.take(whole, bytes);
  const std::size_t area_bytes = std::max(kAreaBytes, round_up(bytes, kHugePage));
  const WeightMemory whole = allocate(area_bytes, kHugePage);
  if (!whole) return nullptr;
  ask_for_huge_pages(whole.get(), area_bytes);
  Area area{whole, 0, area_bytes};
  WeightMemory part = area.take(whole, bytes);
  if (area.rest() > open.rest()) open = area;
  return part;
}
#else
WeightMemory take_of_area(std::size_t) { return nullptr; }
#endif

}  // namespace

WeightMemory allocate_weights(std::size_t bytes) {
  WeightMemory memory = bytes < kLeastInHugePages ? nullptr : take_of_area(bytes);
  if (!memory) memory = allocate(bytes, kAlignment);
  if (!memory) throw AllocationError(bytes);
  return memory;
}

}  // namespace mha
