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
      : out_features(weights.out_features()), in_features(weights.in_features()), has_bias(bool(weights.bias)) {}
  LinearShape(Index rows, Index columns, bool bias) : out_features(rows), in_features(columns), has_bias(bias) {}

  Index out_features, in_features;
  bool has_bias;
};

/// The layer, and the shapes of the weights that it returns.
struct Layer {
  MultiHeadAttention attention;
  std::vector<LinearShape> projections;  // query, key, value, out
};

/// The format called `weight_dtype`; `plain` if none is.
inline WeightFormat format_called(const std::string& weight_dtype) {
  for (int i = 1; i < kNumWeightFormats; ++i)
    if (weight_dtype == name_of(static_cast<WeightFormat>(i))) return static_cast<WeightFormat>(i);
  return WeightFormat::plain;
}

/// The format of `weight_dtype` in a layer in `dtype`.
inline WeightFormat format_of(const std::string& weight_dtype, DType dtype) {
  return dtype == DType::bf16 ? WeightFormat::plain : format_called(weight_dtype);
}

/// A matrix in blocks as Python passes it: (bytes, the name of the format).
inline WeightFormat block_format_of(const py::tuple& blocks) {
  if (blocks.size() != 2) throw py::type_error("a matrix in blocks must be a tuple (bytes, format)");
  return format_called(blocks[1].cast<std::string>());
}

/// Weights of a linear map as Python passes them, (weight, bias or None, scale or None). With a scale, which belongs to
/// a matrix of int8, and with a matrix in blocks the bias is float32.
inline LinearWeights linear_weights(const char* function, const py::tuple& given) {
  if (given.size() != 3) throw py::type_error("a linear map must be a tuple (weight, bias, scale)");
  const bool is_blocks = py::isinstance<py::tuple>(given[0]);
  const py::tuple blocks = is_blocks ? py::tuple(given[0]) : py::make_tuple(py::none(), "");
  const Argument list[] = {
      {"weight", is_blocks ? py::handle(blocks[0]) : py::handle(given[0])}, {"bias", given[1]}, {"scale", given[2]}};
  const bool is_bytes = is_blocks || !given[2].is_none();
  const ArrayArguments arrays = is_bytes ? ArrayArguments(function, list, DType::f32) : ArrayArguments(function, list);
  return {is_bytes ? arrays.int8_tensor(0, 2, 2) : arrays.tensor(0, 2, 2), arrays.optional_tensor(1, 1, 1),
          arrays.optional_tensor(2, 1, 1), block_format_of(blocks)};
}

/// The dtype of a layer that has these weights.
inline DType layer_dtype_of(const LinearWeights& weights) {
  return weights.weight.dtype == DType::int8 ? DType::f32 : weights.weight.dtype;
}

/// An array [size] and the view to fill it through; None and an empty view, if it is not `wanted`.
inline NewArray new_vector(DType dtype, Index size, bool wanted) {
  return wanted ? new_array(dtype, 1, &size) : NewArray{py::none(), {}};
}

/// New arrays in the order of linear_weights(), and the views to fill them through.
struct NewLinear {
  NewLinear(const LinearShape& shape, DType dtype, WeightFormat format) {
    const bool is_int8 = has_scales(format);
    const bool is_bytes = has_blocks(format);
    const Index columns =
        is_bytes ? shape.in_features / block_features(format) * block_bytes(format) : shape.in_features;
    const Index extents[] = {shape.out_features, columns};
    const NewArray weight = new_array(is_int8 || is_bytes ? DType::int8 : dtype, 2, extents);
    const NewArray bias = new_vector(dtype, shape.out_features, shape.has_bias);
    const NewArray scale = new_vector(DType::f32, shape.out_features, is_int8);
    const py::object matrix = is_bytes ? py::make_tuple(weight.array, name_of(format)) : weight.array;
    arrays = py::make_tuple(matrix, bias.array, scale.array);
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
