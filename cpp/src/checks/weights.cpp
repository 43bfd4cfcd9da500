#include "checks/weights.hpp"

#include <cmath>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <vector>

#include "checks/rotary.hpp"
#include "checks/rules.hpp"
#include "views/describe.hpp"
#include "weights/packed_attention.hpp"

namespace mha {
namespace {

/// One linear map of a layer, whose matrix is [out_features, in_features]. In messages its weights are called
/// <prefix>weight, <prefix>bias and <prefix>scale.
template <class View>
struct NamedLinear {
  std::string prefix;
  BasicLinearWeights<View> weights;
  Index out_features, in_features;
};
template <class View>
using Linears = std::vector<NamedLinear<View>>;

template <class View>
Linears<View> linears_of(const MultiHeadAttentionConfig& c, const BasicMultiHeadAttentionWeights<View>& w) {
  return {{"query_", w.query, saturated_product(c.num_heads, c.head_dim), c.embed_dim},
          {"key_", w.key, saturated_product(c.num_kv_heads, c.head_dim), c.kdim},
          {"value_", w.value, saturated_product(c.num_kv_heads, c.value_head_dim), c.vdim},
          {"out_", w.out, c.out_dim, saturated_product(c.num_heads, c.value_head_dim)}};
}

template <class View>
Linears<View> linears_of(Index embed_dim, Index feedforward_dim, const BasicFeedForwardWeights<View>& w,
                         bool has_gate) {
  Linears<View> linears = {{"up_", w.up, feedforward_dim, embed_dim}, {"down_", w.down, embed_dim, feedforward_dim}};
  if (has_gate) linears.push_back({"gate_", w.gate, feedforward_dim, embed_dim});
  return linears;
}

/// The given dtypes: "query_weight float32, key_weight float32, query_bias float64".
std::string dtypes_of(const Linears<TensorView>& linears, Named others) {
  std::string text;
  const auto append = [&](const std::string& name, const TensorView& view) {
    if (view) text += (text.empty() ? "" : ", ") + name + " " + name_of(view.dtype);
  };
  for (const auto& linear : linears) append(linear.prefix + "weight", linear.weights.weight);
  for (const auto& linear : linears) append(linear.prefix + "bias", linear.weights.bias);
  for (const auto& [name, view] : others) append(name, view);
  return text;
}

/// The columns of a matrix as it is given: numbers, or bytes of blocks.
Index columns_of(WeightFormat format, Index in_features) {
  return has_blocks(format) ? in_features / block_features(format) * block_bytes(format) : in_features;
}

/// Matrices in blocks are rows of whole blocks, whose bytes lie next to each other.
void check_blocks(const char* f, WeightFormat format, const Linears<TensorView>& linears) {
  if (is_removed(format))
    throw std::invalid_argument(std::string(f) + ": weight_format must not be " + name_of(format) +
                                ", which was removed; the format of float32 gives the same numbers");
  if (has_blocks(format))
    throw std::invalid_argument(std::string(f) + ": weight_format must not be " + name_of(format) +
                                ", which only a matrix can have that is given in its blocks");
  for (const auto& [prefix, weights, out_features, in_features] : linears) {
    const std::string name = prefix + "weight", format_name = name_of(weights.block_format);
    const TensorView& weight = weights.weight;
    if (!weight || weights.block_format == WeightFormat::plain) continue;
    const int bytes = block_bytes(weights.block_format);
    if (bytes == 0) throw std::invalid_argument(std::string(f) + ": " + name + " has no block format");
    if (weight.dtype != DType::int8)
      throw DTypeError(std::string(f) + ": " + name + " in " + format_name + " must be bytes, as int8; got " +
                       name_of(weight.dtype));
    check_tensor(f, name.c_str(), weight);
    if (weight.rank != 2 || weight.extents[1] < 1 || weight.extents[1] % bytes != 0 ||
        (weight.extents[1] > 1 && weight.strides[1] != 1))
      fail(f,
           name + " in " + format_name + " must be rows of whole blocks of " + std::to_string(bytes) +
               " bytes, next to each other",
           {{name.c_str(), weight}});
    if (weights.scale) fail(f, prefix + "scale belongs to weights given in int8", {{name.c_str(), weight}});
  }
}

/// The dtype of the first matrix that does not lie in blocks; float32 if all do.
DType given_dtype(const Linears<TensorView>& linears) {
  for (const auto& linear : linears)
    if (!has_blocks(linear.weights.block_format)) return linear.weights.weight.dtype;
  return DType::f32;
}

/// The first matrix determines the dtype; `others` are the weights of the layer that belong to no linear map.
void check_dtypes(const char* f, WeightFormat format, const Linears<TensorView>& linears, Named others) {
  check_blocks(f, format, linears);
  const DType given = given_dtype(linears);
  const bool is_quantized = has_scales(format) && given == DType::int8;
  const DType dtype = is_quantized ? DType::f32 : given;
  bool are_matrices_right = true, are_others_right = true, has_any_blocks = false;
  for (const auto& linear : linears) {
    const bool is_blocks = has_blocks(linear.weights.block_format);
    are_matrices_right &= !linear.weights.weight || is_blocks || linear.weights.weight.dtype == given;
    has_any_blocks |= is_blocks;
    are_others_right &= !linear.weights.bias || linear.weights.bias.dtype == dtype;
  }
  for (const auto& [name, view] : others) are_others_right &= !view || view.dtype == dtype;

  const auto wrong = [&](const std::string& rule) {
    throw DTypeError(std::string(f) + ": " + rule + "; got " + dtypes_of(linears, others));
  };
  if (is_quantized) {
    if (!are_matrices_right) wrong("all matrices must be int8, or none");
    if (!are_others_right) wrong("with matrices in int8 all other weights must be float32");
  } else {
    const bool is_floating = static_cast<int>(given) < kNumDTypes;
    if (!are_matrices_right || !are_others_right || !is_floating)
      wrong("all tensors must have one floating-point dtype");
    if (has_any_blocks && given != DType::f32) wrong("weights in blocks need a layer in float32");
    if (format != WeightFormat::plain && given != DType::f32)
      wrong(std::string("weights in ") + name_of(format) + " need a layer in float32");
  }
}

/// Matrices that are given in int8 have a scale for each row, and no others have any.
void check_scales(const char* f, WeightFormat format, const Linears<TensorView>& linears) {
  for (const auto& [prefix, weights, out_features, in_features] : linears) {
    const std::string weight_name = prefix + "weight", name = prefix + "scale";
    const auto& [weight, bias, scale, block_format] = weights;
    if (has_blocks(block_format)) continue;
    const Named views = {{name.c_str(), scale}, {weight_name.c_str(), weight}};
    if (scale && weight && weight.dtype != DType::int8) fail(f, name + " belongs to weights given in int8", views);
    if (has_scales(format) && weight.extents[1] > kMostInt8Features)
      fail(f,
           weight_name + " in " + name_of(format) + " must have at most " + std::to_string(kMostInt8Features) +
               " input features",
           {{weight_name.c_str(), weight}});
    if (!weight || weight.dtype != DType::int8) continue;  // one that is missing is refused for its shape
    check_tensor(f, name.c_str(), scale);
    if (scale && scale.dtype != DType::f32)
      throw DTypeError(std::string(f) + ": " + name + " must be float32; got " + name_of(scale.dtype));
    if (!has_shape(scale, {weight.extents[0]}))
      fail(f, name + " must have one entry for each row of " + weight_name, views);
  }
}

void check_shape(const char* f, const std::string& name, const TensorView& view, std::initializer_list<Index> shape) {
  check_tensor(f, name.c_str(), view);
  if (has_shape(view, shape)) return;
  std::string expected;
  for (Index extent : shape) expected += (expected.empty() ? "[" : ", ") + std::to_string(extent);
  fail(f, name + " must be " + expected + "]", {{name.c_str(), view}});
}

void check_shapes(const char* f, const Linears<TensorView>& linears) {
  for (const auto& [prefix, weights, out_features, in_features] : linears) {
    const Index features = block_features(weights.block_format);
    if (features > 0 && in_features % features != 0)
      fail(f,
           prefix + "weight in " + name_of(weights.block_format) + " must have a multiple of " +
               std::to_string(features) + " input features, and the layer has " + std::to_string(in_features),
           {{(prefix + "weight").c_str(), weights.weight}});
    const Index columns = columns_of(weights.block_format, in_features);
    check_shape(f, prefix + "weight", weights.weight, {out_features, columns});
    if (weights.bias) check_shape(f, prefix + "bias", weights.bias, {out_features});
  }
}

/// `formats` are of the maps of `linears`, in their order.
void check_copies(const char* f, const std::vector<WeightFormat>& formats, DType dtype,
                  const Linears<MutableTensorView>& linears) {
  auto format = formats.begin();
  for (const auto& [prefix, copies, out_features, in_features] : linears) {
    const bool is_bytes = has_blocks(*format);
    const DType matrix = has_scales(*format) || is_bytes ? DType::int8 : dtype;
    const Index columns = columns_of(*format, in_features);
    ++format;
    check_copy(f, (prefix + "weight").c_str(), copies.weight, matrix, {out_features, columns});
    if (is_bytes && copies.weight && columns > 1 && copies.weight.strides[1] != 1)
      fail(f, prefix + "weight must have the bytes of a row next to each other",
           {{(prefix + "weight").c_str(), copies.weight}});
    check_copy(f, (prefix + "bias").c_str(), copies.bias, dtype, {out_features});
    check_copy(f, (prefix + "scale").c_str(), copies.scale, DType::f32, {out_features});
  }
}

/// Zeros become the usual sizes.
MultiHeadAttentionConfig resolved(const char* f, MultiHeadAttentionConfig c) {
  const auto wrong = [&](const std::string& rule) { throw std::invalid_argument(std::string(f) + ": " + rule); };
  if (c.embed_dim < 1) wrong("embed_dim must be at least 1; got " + std::to_string(c.embed_dim));
  if (c.num_heads < 1) wrong("num_heads must be at least 1; got " + std::to_string(c.num_heads));
  if (c.head_dim == 0 && c.embed_dim % c.num_heads != 0)
    wrong("embed_dim must be a multiple of num_heads when head_dim is not given; got embed_dim " +
          std::to_string(c.embed_dim) + ", num_heads " + std::to_string(c.num_heads));
  const auto resolve = [&](const char* name, Index& size, Index usual) {
    if (size == 0) size = usual;
    if (size < 1) wrong(std::string(name) + " must be at least 1; got " + std::to_string(size));
  };
  resolve("num_kv_heads", c.num_kv_heads, c.num_heads);
  resolve("head_dim", c.head_dim, c.embed_dim / c.num_heads);
  resolve("value_head_dim", c.value_head_dim, c.head_dim);
  resolve("kdim", c.kdim, c.embed_dim);
  resolve("vdim", c.vdim, c.embed_dim);
  resolve("out_dim", c.out_dim, c.embed_dim);
  if (c.num_heads % c.num_kv_heads != 0)
    wrong("num_heads must be a multiple of num_kv_heads; got num_heads " + std::to_string(c.num_heads) +
          ", num_kv_heads " + std::to_string(c.num_kv_heads));
  return c;
}

}  // namespace

MultiHeadAttentionConfig validate(MultiHeadAttentionConfig config, const MultiHeadAttentionWeights& w,
                                  const QueryKeySteps& steps) {
  constexpr char f[] = "MultiHeadAttention";
  config = resolved(f, config);
  const Named added = {{"added_key", w.added_key}, {"added_value", w.added_value}};
  const Linears<TensorView> linears = linears_of(config, w);
  check_dtypes(f, config.weight_format, linears, added);
  check_scales(f, config.weight_format, linears);
  check_shapes(f, linears);
  if (config.add_bias_kv) {
    check_shape(f, "added_key", w.added_key, {config.num_kv_heads * config.head_dim});
    check_shape(f, "added_value", w.added_value, {config.num_kv_heads * config.value_head_dim});
  } else if (w.added_key || w.added_value) {
    throw std::invalid_argument(std::string(f) + ": added_key and added_value must not be given without add_bias_kv");
  }
  const DType given = given_dtype(linears), dtype = given == DType::int8 ? DType::f32 : given;
  check_steps(f, steps, dtype, config);
  return config;
}

void validate_linear(const char* f, const LinearWeights& w, WeightFormat format) {
  const Named views = {{"weight", w.weight}, {"bias", w.bias}};
  const Linears<TensorView> linears = {{"", w, w.out_features(), w.in_features()}};
  check_dtypes(f, format, linears, {});
  check_scales(f, format, linears);
  check_rank(f, "weight", w.weight, 2, 2, views);
  if (w.weight.extents[0] < 1 || w.weight.extents[1] < 1) fail(f, "weight must not be empty", views);
  check_shapes(f, linears);
}

void validate_dequantize(const LinearWeights& w, const MutableTensorView& out) {
  constexpr char f[] = "dequantize";
  const Named views = {{"weight", w.weight}, {"out", out}};
  if (!has_blocks(w.block_format)) throw std::invalid_argument(std::string(f) + ": weight must lie in blocks");
  check_rank(f, "weight", w.weight, 2, 2, views);
  check_blocks(f, WeightFormat::plain, {{"", w, w.out_features(), w.in_features()}});
  check_rank(f, "out", out, 2, 2, views);
  if (out.dtype != DType::f32) throw DTypeError(std::string(f) + ": out must be float32; got " + name_of(out.dtype));
  if (!has_shape(out, {w.out_features(), w.in_features()}))
    fail(f, "out must be [out_features, in_features] of weight", views);
  if (out.extents[1] > 1 && out.strides[1] != 1) fail(f, "out must have dense rows", views);
  check_output(f, "out", out, {{"weight", w.weight}});
}

void validate_dequantized_rows(const Linear& layer, const std::int64_t* features, Index count,
                               const MutableTensorView& rows) {
  const std::string f = "Linear";
  if (!has_blocks(layer.weight_format())) throw std::invalid_argument(f + ": the weight must lie in blocks");
  if (rows.dtype != DType::f32) throw DTypeError(f + ": rows must be float32; got " + name_of(rows.dtype));
  if (rows.rank != 2 || !has_shape(rows, {count, layer.in_features()}) || (rows.extents[1] > 1 && rows.strides[1] != 1))
    fail(f.c_str(), "rows must be [count, in_features] with dense rows", {{"rows", rows}});
  if (count > 0 && !features) throw std::invalid_argument(f + ": features must not be null");
  for (Index i = 0; i < count; ++i)
    if (features[i] < 0 || features[i] >= layer.out_features())
      throw std::invalid_argument(f + ": features must be at least 0 and less than " +
                                  std::to_string(layer.out_features()) + "; got " + std::to_string(features[i]));
}

void validate_feed_forward(const FeedForwardWeights& w, WeightFormat format) {
  constexpr char f[] = "FeedForward";
  const Named matrices = {{"up_weight", w.up.weight}, {"down_weight", w.down.weight}};
  const Index hidden = w.up.out_features(), features = w.up.in_features();
  const Linears<TensorView> linears = linears_of(features, hidden, w, w.gate.weight || w.gate.bias || w.gate.scale);
  check_dtypes(f, format, linears, {});
  check_scales(f, format, linears);
  for (const auto& [name, matrix] : matrices) check_rank(f, name, matrix, 2, 2, matrices);
  if (features < 1 || hidden < 1) fail(f, "up_weight must not be empty", matrices);
  check_shapes(f, linears);
}

void validate_norm(const char* f, const TensorView& weight, const TensorView& bias, double eps) {
  const Named views = {{"weight", weight}, {"bias", bias}};
  check_dtypes(f, weight.dtype, views);
  check_rank(f, "weight", weight, 1, 1, views);
  if (weight.extents[0] < 1) fail(f, "weight must have at least 1 element", views);
  check_tensor(f, "bias", bias);
  if (bias && !has_shape(bias, {weight.extents[0]})) fail(f, "bias must have the shape of weight", views);
  if (!(eps >= 0) || std::isinf(eps))
    throw std::invalid_argument(std::string(f) + ": eps must be a finite number of at least 0; got " + text_of(eps));
  if (const DType sums = accumulator_of(weight.dtype); !is_zero_or_normal(eps, sums))
    throw std::invalid_argument(std::string(f) + ": eps must be " + zero_or_normal(sums) + "; got " + text_of(eps));
}

void validate(const MultiHeadAttention& layer, const MultiHeadAttention::WeightOutputs& o) {
  constexpr char f[] = "MultiHeadAttention.copy_weights";
  const MultiHeadAttentionConfig& c = layer.config();
  const PackedAttention& packed = layer.packed();
  check_copies(f, {packed.query.format(), packed.key.format(), packed.value.format(), packed.out.format()},
               layer.dtype(), linears_of(c, o));
  check_copy(f, "added_key", o.added_key, layer.dtype(), {c.num_kv_heads * c.head_dim});
  check_copy(f, "added_value", o.added_value, layer.dtype(), {c.num_kv_heads * c.value_head_dim});
}

void validate(const Linear& layer, const LinearWeightOutputs& o) {
  const Linears<MutableTensorView> linears = {{"", o, layer.out_features(), layer.in_features()}};
  check_copies("Linear.copy_weights", {layer.weight_format()}, layer.dtype(), linears);
}

void validate(const FeedForward& layer, const FeedForward::WeightOutputs& o) {
  const WeightFormat gate = layer.has_gate() ? layer.gate().weight_format() : layer.up().weight_format();
  check_copies("FeedForward.copy_weights", {layer.up().weight_format(), layer.down().weight_format(), gate},
               layer.dtype(), linears_of(layer.embed_dim(), layer.feedforward_dim(), o, true));
}

}  // namespace mha
