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
  /// The same over a cache, with the integer array `s` of its sequences.
  RaggedArgument(const ArrayArguments& arrays, int q, int k, int s) : RaggedArgument(arrays, q, k) {
    sequences_ = integers_of_batch(arrays, s, size);
    if (arrays.given(s)) sequences = sequences_.data();
  }

  /// One integer for each of the `size` sequences of a ragged batch; none, if the argument was not given.
  static std::vector<std::int64_t> integers_of_batch(const ArrayArguments& arrays, int i, Index size) {
    if (!arrays.given(i)) return {};
    return arrays.integers(i, size, "must have one entry for each sequence of the ragged batch");
  }

 private:
  std::vector<std::int64_t> queries_, keys_, sequences_;
};

}  // namespace mha::bindings
