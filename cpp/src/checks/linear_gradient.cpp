#include "checks/linear_gradient.hpp"

#include <string>
#include <utility>

#include "checks/rules.hpp"

namespace mha {
namespace {

/// [..., features] with the leading axes of `rows`.
bool has_rows_of(const TensorView& view, const TensorView& rows, Index features) {
  if (view.rank != rows.rank || view.extents[view.rank - 1] != features) return false;
  for (int axis = 0; axis < view.rank - 1; ++axis)
    if (view.extents[axis] != rows.extents[axis]) return false;
  return true;
}

}  // namespace

void validate_linear_gradient(const TensorView& x, const TensorView& weight, const TensorView& dout,
                              const LinearGradients& gradients) {
  constexpr char f[] = "linear_gradient";
  const std::pair<const char*, MutableTensorView> outputs[] = {
      {"gradients.x", gradients.x}, {"gradients.weight", gradients.weight}, {"gradients.bias", gradients.bias}};
  const Named inputs = {{"x", x}, {"weight", weight}, {"dout", dout}};
  check_dtypes(f, dout.dtype, inputs);
  for (const auto& [name, view] : outputs) check_dtypes(f, dout.dtype, {{"dout", dout}, {name, view}});
  check_rank(f, "dout", dout, 1, kMaxRank, inputs);
  if (gradients.weight && !x) fail(f, "the gradient of weight needs x", inputs);
  if (gradients.x && !weight) fail(f, "the gradient of x needs weight", inputs);
  const Index out_features = dout.extents[dout.rank - 1];
  if (out_features < 1) fail(f, "dout must have at least 1 feature", inputs);
  if (x) check_rank(f, "x", x, 1, kMaxRank, inputs);
  if (weight) check_rank(f, "weight", weight, 2, 2, inputs);
  const Index in_features = x ? x.extents[x.rank - 1] : weight ? weight.extents[1] : 1;
  if (in_features < 1) fail(f, std::string(x ? "x" : "weight") + " must have at least 1 feature", inputs);
  if (x && !has_rows_of(x, dout, in_features)) fail(f, "x and dout must have the same rows", inputs);
  if (weight && !has_shape(weight, {out_features, in_features}))
    fail(f,
         "weight must be [" + std::to_string(out_features) + ", " + std::to_string(in_features) +
             "], the features of dout and of x",
         inputs);
  if (gradients.x && !has_rows_of(gradients.x, dout, in_features))
    fail(f, "gradients.x must have the features of weight, and otherwise the shape of dout",
         {{"gradients.x", gradients.x}, {"weight", weight}, {"dout", dout}});
  check_copy(f, "gradients.weight", gradients.weight, dout.dtype, {out_features, in_features});
  check_copy(f, "gradients.bias", gradients.bias, dout.dtype, {out_features});
  for (const auto& [name, view] : outputs) {
    if (!view) continue;
    check_output(f, name, view, inputs);
    for (const auto& [other, second] : outputs)
      if (second && other != name) check_output(f, name, view, {{other, second}});
  }
}

}  // namespace mha
