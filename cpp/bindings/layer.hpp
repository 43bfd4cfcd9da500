// The layer as Python holds it, and what its calls share with those of the blocks around it.
#pragma once

#include <algorithm>
#include <string>
#include <vector>

#include <mha/multi_head_attention.hpp>

#include "array_view.hpp"
#include "shared_cache.hpp"

namespace mha::bindings {

constexpr int kNumWeights = 14, kFirstScale = 10;

/// The layer, and which of its weights exist: a bias that was not given is not handed back.
struct Layer {
  MultiHeadAttention attention;
  bool has_weight[kNumWeights];
};

/// How a layer of `dtype` keeps weights of `weight_dtype`.
inline WeightFormat format_of(const std::string& weight_dtype, DType dtype) {
  if (weight_dtype == "int8") return WeightFormat::int8;
  return weight_dtype == "bfloat16" && dtype != DType::bf16 ? WeightFormat::bf16 : WeightFormat::plain;
}

/// The matrix of weights that is argument `i`, of int8 if argument `scale` is given.
inline TensorView weight_matrix(const ArrayArguments& arrays, int i, int scale) {
  return arrays.given(scale) ? arrays.int8_tensor(i, 2, 2) : arrays.tensor(i, 2, 2);
}

/// The weights of a layer, of the dtype of the first one; the others of weights in int8, which have scales, are float32.
template <class List>
ArrayArguments weight_arguments(const char* function, const List& list, py::handle scale) {
  return scale.is_none() ? ArrayArguments(function, list) : ArrayArguments(function, list, DType::f32);
}

/// The argument new_lengths, [B] or None, in a call whose tokens are `rows`: [B, T, features] or [T, features].
class NewLengths {
 public:
  NewLengths(const ArrayArguments& arrays, int i, const TensorView& rows) : given_(arrays.given(i)) {
    if (given_) values_ = arrays.integers(i, rows.rank == 3 ? rows.extents[0] : 1);
  }
  const std::int64_t* data() const { return given_ ? values_.data() : nullptr; }

 private:
  bool given_;
  std::vector<std::int64_t> values_;
};

/// Tk of a call that appends `count` tokens to a cache. If that breaks a rule it is some number, and the call will say
/// so.
inline Index keys_after(const KVCache& cache, const TensorView& query, Index count, const NewLengths& counts) {
  const bool is_of_cache = (query.rank == 3 ? query.extents[0] : 1) == cache.config().batch_size;
  return std::min(cache.longest(count, is_of_cache ? counts.data() : nullptr), cache.config().capacity);
}

}  // namespace mha::bindings
