// The layer as Python holds it, and code that its calls share with the blocks around it.
#pragma once

#include <algorithm>
#include <string>
#include <vector>

#include <mha/multi_head_attention.hpp>

#include "array_view.hpp"
#include "shared_cache.hpp"

namespace mha::bindings {

/// The shape of a linear map.
struct LinearShape {
  explicit LinearShape(const LinearWeights& weights)
      : out_features(weights.weight.extents[0]), in_features(weights.weight.extents[1]), has_bias(bool(weights.bias)) {}
  LinearShape(Index rows, Index columns, bool bias) : out_features(rows), in_features(columns), has_bias(bias) {}

  Index out_features, in_features;
  bool has_bias;
};

/// The layer, and the shapes of the weights that it returns.
struct Layer {
  MultiHeadAttention attention;
  std::vector<LinearShape> projections;  // query, key, value, out
};

/// The format of `weight_dtype` in a layer that is made of matrices of `dtype`.
inline WeightFormat format_of(const std::string& weight_dtype, DType dtype) {
  for (int i = 1; i < kNumWeightFormats && dtype != DType::bf16; ++i)
    if (weight_dtype == name_of(static_cast<WeightFormat>(i))) return static_cast<WeightFormat>(i);
  return WeightFormat::plain;
}

/// Weights of a linear map as Python passes them, (weight, bias or None, scale or None). With a scale, which belongs to
/// a matrix of int8, the bias is float32.
inline LinearWeights linear_weights(const char* function, const py::tuple& given) {
  if (given.size() != 3) throw py::type_error("a linear map must be a tuple (weight, bias, scale)");
  const Argument list[] = {{"weight", given[0]}, {"bias", given[1]}, {"scale", given[2]}};
  const bool is_int8 = !given[2].is_none();
  const ArrayArguments arrays = is_int8 ? ArrayArguments(function, list, DType::f32) : ArrayArguments(function, list);
  return {is_int8 ? arrays.int8_tensor(0, 2, 2) : arrays.tensor(0, 2, 2), arrays.optional_tensor(1, 1, 1),
          arrays.optional_tensor(2, 1, 1)};
}

/// An array [size] and the view to fill it through; None and an empty view, if it is not `wanted`.
inline NewArray new_vector(DType dtype, Index size, bool wanted) {
  return wanted ? new_array(dtype, 1, &size) : NewArray{py::none(), {}};
}

/// New arrays in the order of linear_weights(), and the views to fill them through.
struct NewLinear {
  NewLinear(const LinearShape& shape, DType dtype, WeightFormat format) {
    const bool is_int8 = has_scales(format);
    const Index extents[] = {shape.out_features, shape.in_features};
    const NewArray weight = new_array(is_int8 ? DType::int8 : dtype, 2, extents);
    const NewArray bias = new_vector(dtype, shape.out_features, shape.has_bias);
    const NewArray scale = new_vector(DType::f32, shape.out_features, is_int8);
    arrays = py::make_tuple(weight.array, bias.array, scale.array);
    views = {weight.view, bias.view, scale.view};
  }

  py::tuple arrays;
  LinearWeightOutputs views;
};

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
