#include "checks/weights.hpp"

#include "views/describe.hpp"

namespace mha {

void check_weights(const char* f, WeightFormat format, Named views, Named scales) {
  const DType given = views.begin()->second.dtype;
  const bool is_quantized = format == WeightFormat::int8 && given == DType::int8;
  const auto wrong_dtype = [&](const char* rule) {
    throw DTypeError(std::string(f) + ": " + rule + "; got " + dtypes_of(views));
  };
  if (!is_quantized) {
    check_dtypes(f, given, views);
    if (format != WeightFormat::plain && given != DType::f32)
      wrong_dtype("weights in bfloat16 or int8 are those of a layer in float32");
  }
  const auto* matrix = views.begin();
  for (const auto& [name, scale] : scales) {
    const auto& [weight_name, weight] = *matrix++;
    if (!is_quantized && scale) fail(f, std::string(name) + " belongs to weights given in int8", {{name, scale}});
    if (format == WeightFormat::int8 && weight.extents[1] > kMostInt8Features)
      fail(f,
           std::string(weight_name) + " in int8 must have at most " + std::to_string(kMostInt8Features) +
               " input features",
           {{weight_name, weight}});
    if (!is_quantized || !weight) continue;  // a missing matrix is refused later, for its shape
    if (weight.dtype != DType::int8) wrong_dtype("all matrices must be int8, or none");
    if (scale && scale.dtype != DType::f32)
      throw DTypeError(std::string(f) + ": " + name + " must be float32; got " + name_of(scale.dtype));
    if (!has_shape(scale, {weight.extents[0]}))
      fail(f, std::string(name) + " must have one entry for each row of " + weight_name,
           {{name, scale}, {weight_name, weight}});
  }
  if (!is_quantized) return;
  for (; matrix != views.end(); ++matrix)
    if (matrix->second && matrix->second.dtype != DType::f32)
      wrong_dtype("with matrices in int8 all other weights must be float32");
}

namespace {

/// The dtype in which copy_weights() gives the matrices of a layer.
DType matrix_dtype(DType dtype, WeightFormat format) { return format == WeightFormat::int8 ? DType::int8 : dtype; }

}  // namespace

void validate(const MultiHeadAttention& layer, const MultiHeadAttention::WeightOutputs& o) {
  constexpr char f[] = "MultiHeadAttention.copy_weights";
  const MultiHeadAttentionConfig& c = layer.config();
  const DType dtype = layer.dtype(), matrix = matrix_dtype(dtype, c.weight_format);
  const Index query = c.num_heads * c.head_dim, key = c.num_kv_heads * c.head_dim;
  const Index value = c.num_kv_heads * c.value_head_dim, heads = c.num_heads * c.value_head_dim;
  check_copy(f, "query_weight", o.query_weight, matrix, {query, c.embed_dim});
  check_copy(f, "key_weight", o.key_weight, matrix, {key, c.kdim});
  check_copy(f, "value_weight", o.value_weight, matrix, {value, c.vdim});
  check_copy(f, "out_weight", o.out_weight, matrix, {c.out_dim, heads});
  check_copy(f, "query_bias", o.query_bias, dtype, {query});
  check_copy(f, "key_bias", o.key_bias, dtype, {key});
  check_copy(f, "value_bias", o.value_bias, dtype, {value});
  check_copy(f, "out_bias", o.out_bias, dtype, {c.out_dim});
  check_copy(f, "added_key", o.added_key, dtype, {key});
  check_copy(f, "added_value", o.added_value, dtype, {value});
  check_copy(f, "query_scale", o.query_scale, DType::f32, {query});
  check_copy(f, "key_scale", o.key_scale, DType::f32, {key});
  check_copy(f, "value_scale", o.value_scale, DType::f32, {value});
  check_copy(f, "out_scale", o.out_scale, DType::f32, {c.out_dim});
}

void validate(const FeedForward& layer, const FeedForward::WeightOutputs& o) {
  constexpr char f[] = "FeedForward.copy_weights";
  const DType dtype = layer.dtype(), matrix = matrix_dtype(dtype, layer.weight_format());
  const Index in = layer.embed_dim(), hidden = layer.feedforward_dim();
  check_copy(f, "weight1", o.weight1, matrix, {hidden, in});
  check_copy(f, "weight2", o.weight2, matrix, {in, hidden});
  check_copy(f, "bias1", o.bias1, dtype, {hidden});
  check_copy(f, "bias2", o.bias2, dtype, {in});
  check_copy(f, "scale1", o.scale1, DType::f32, {hidden});
  check_copy(f, "scale2", o.scale2, DType::f32, {in});
}

}  // namespace mha
