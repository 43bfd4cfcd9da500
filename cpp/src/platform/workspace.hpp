// Scratch memory: one arena for each calling thread. It grows before a parallel region begins and is kept between
// calls, so that repeated calls allocate nothing.
#pragma once

#include <cstddef>

namespace mha {

/// At least `bytes` of memory aligned to 64 bytes, for as long as the object lives.
/// @throws AllocationError
class Workspace {
 public:
  /// Borrows the arena of the calling thread until the object is destroyed. If an outer scope of the same thread has
  /// borrowed it, the memory is allocated for this object alone.
  explicit Workspace(std::size_t bytes);
  ~Workspace();
  Workspace(const Workspace&) = delete;
  Workspace& operator=(const Workspace&) = delete;

  std::byte* data() const { return data_; }

 private:
  std::byte* data_;
};

/// The workers of one call, and the part of the scratch memory that each has to itself.
struct Workers {
  int threads;                 // how many workers
  std::byte* scratch;          // the part of worker 0
  std::size_t scratch_stride;  // bytes between the parts of neighbouring workers

  std::byte* scratch_of(int worker) const { return scratch + static_cast<std::size_t>(worker) * scratch_stride; }
};

/// `bytes` rounded up to whole cache lines of 64 bytes, so that the next part starts on a cache line of its own.
constexpr std::size_t padded(std::size_t bytes) { return (bytes + 63) / 64 * 64; }

}  // namespace mha
