// Divides one piece of scratch memory into parts.
#pragma once

#include "mha/errors.hpp"
#include "platform/workspace.hpp"

namespace mha {

/// Lays out parts one after another, each beginning on a cache line of its own.
class Layout {
 public:
  /// Adds a part of `bytes` bytes and returns its offset.
  /// @throws AllocationError if no memory could hold all parts
  std::size_t take(double bytes) {
    // Sizes are products of extents that the caller chose. They are added up in double, where nothing wraps around.
    if (total_ + bytes > 4e18) throw AllocationError(static_cast<std::size_t>(-1));
    const std::size_t offset = static_cast<std::size_t>(total_);
    total_ = double(padded(offset + static_cast<std::size_t>(bytes)));
    return offset;
  }
  std::size_t total() const { return static_cast<std::size_t>(total_); }

 private:
  double total_ = 0;
};

}  // namespace mha
