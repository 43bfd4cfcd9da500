// Where the parts of one block of scratch memory lie.
#pragma once

#include "mha/errors.hpp"
#include "platform/workspace.hpp"

namespace mha {

/// Parts of the sizes given share one block of memory, each on cache lines of its own.
class Layout {
 public:
  /// Returns the offset of a new part.
  std::size_t take(double bytes) {
    // Sizes are products of extents that the caller chose; in double nothing wraps around.
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
