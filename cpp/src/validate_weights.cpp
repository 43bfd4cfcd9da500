#include "validate_weights.hpp"

#include "describe.hpp"

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
    if (!is_quantized || !weight) continue;  // one that is missing is refused for its shape
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

}  // namespace mha
