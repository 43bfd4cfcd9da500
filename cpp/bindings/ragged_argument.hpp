// The offsets of a ragged batch, as Python passes them.
#pragma once

#include <mha/varlen.hpp>

#include "array_view.hpp"

namespace mha::bindings {

/// A RaggedBatch with the numbers that it points to.
class RaggedArgument : public RaggedBatch {
 public:
  /// From the integer arrays at positions `q` and `k` of `arrays`. Their values are for the library to check.
  RaggedArgument(const ArrayArguments& arrays, int q, int k)
      : queries_(arrays.offsets(q)),
        keys_(arrays.integers(k, static_cast<Index>(queries_.size()), "must have as many entries as cu_seqlens_q")) {
    size = static_cast<Index>(queries_.size()) - 1;
    cu_seqlens_q = queries_.data();
    cu_seqlens_k = keys_.data();
  }

 private:
  std::vector<std::int64_t> queries_, keys_;
};

}  // namespace mha::bindings
