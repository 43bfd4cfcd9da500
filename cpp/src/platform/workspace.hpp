// Scratch memory: one arena per calling thread, grown before a parallel region is entered and kept between calls, so
// that a steady state allocates nothing.
#pragma once

#include <cstddef>

namespace mha {

/// At least `bytes` of memory aligned to 64 bytes, valid until the calling thread's next borrow or return.
/// @throws AllocationError
class Workspace {
 public:
  /// Borrows the calling thread's arena; gives it back when the scope ends.
  explicit Workspace(std::size_t bytes);
  ~Workspace();
  Workspace(const Workspace&) = delete;
  Workspace& operator=(const Workspace&) = delete;

  std::byte* data() const { return data_; }

 private:
  std::byte* data_;
};

/// The threads of one call, and the scratch that each has to itself.
struct Workers {
  int threads;
  std::byte* scratch;
  std::size_t scratch_stride;

  std::byte* scratch_of(int worker) const { return scratch + static_cast<std::size_t>(worker) * scratch_stride; }
};

/// `bytes` rounded up so that what follows starts on a cache line of its own.
constexpr std::size_t padded(std::size_t bytes) { return (bytes + 63) / 64 * 64; }

}  // namespace mha
