// The memory of one call: the sizes of its parts first, then the block that holds them all.
#pragma once

#include "platform/workspace.hpp"
#include "views/sizes.hpp"

namespace mha {

/// Lays out parts one after another, each beginning on a cache line of its own.
class Layout {
 public:
  /// Adds a part of `bytes` bytes and returns its offset.
  /// @throws AllocationError if no memory could hold all parts
  std::size_t take(double bytes) {
    const std::size_t offset = total_;
    total_ = padded(allocatable(double(offset) + bytes));
    return offset;
  }
  std::size_t total() const { return total_; }

 private:
  std::size_t total_ = 0;
};

/// The parts of a layout, then the scratch of each worker, in the arena of the calling thread.
class CallMemory {
 public:
  /// @param scratch_bytes of each of the `threads` workers
  /// @throws AllocationError
  CallMemory(Layout layout, int threads, std::size_t scratch_bytes)
      : threads_(threads),
        scratch_stride_(padded(scratch_bytes)),
        scratch_at_(layout.take(double(threads) * double(scratch_stride_))),
        workspace_(layout.total()) {}

  /// The start of the offsets of the layout.
  std::byte* data() const { return workspace_.data(); }
  Workers workers() const { return {threads_, data() + scratch_at_, scratch_stride_}; }

 private:
  const int threads_;
  const std::size_t scratch_stride_, scratch_at_;
  const Workspace workspace_;
};

}  // namespace mha
