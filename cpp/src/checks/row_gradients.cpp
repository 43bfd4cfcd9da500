#include "checks/row_gradients.hpp"

#include <cmath>
#include <stdexcept>
#include <string>

#include "checks/rules.hpp"
#include "views/describe.hpp"

namespace mha {
void validate_norm_gradient(NormKind kind, const TensorView& x, const TensorView& weight, double eps,
                            const TensorView& dout, const NormGradients& gradients) {
  const bool is_layer = kind == NormKind::layer;
  const char* const f = is_layer ? "layer_norm_gradient" : "rms_norm_gradient";
  const Named views = {{"x", x}, {"weight", weight}, {"dout", dout}};
  check_rank(f, "x", x, 1, kMaxRank, views);
  check_dtypes(f, x.dtype, views);
  check_tensor(f, "dout", dout);
  check_same_shape(f, "dout", dout, "x", x);
  const Index features = x.extents[x.rank - 1];
  if (features < 1) fail(f, "x must have at least 1 feature", views);
  check_tensor(f, "weight", weight);
  if (weight && !has_shape(weight, {features}))
    fail(f, "weight must have an element for each feature of x", {{"weight", weight}, {"x", x}});
  if (!(eps >= 0) || std::isinf(eps))
    throw std::invalid_argument(std::string(f) + ": eps must be a finite number of at least 0; got " + text_of(eps));
  if (const DType sums = accumulator_of(x.dtype); !is_zero_or_normal(eps, sums))
    throw std::invalid_argument(std::string(f) + ": eps must be " + zero_or_normal(sums) + "; got " + text_of(eps));
  if (gradients.weight && !weight)
    throw std::invalid_argument(std::string(f) + ": the gradient of weight needs a weight");
  if (gradients.bias && !is_layer) throw std::invalid_argument(std::string(f) + ": there is no bias");
  const auto check = [&](const char* name, const MutableTensorView& out, Named apart) {
    if (!out) return;
    check_dtypes(f, x.dtype, {{"x", x}, {name, out}});
    check_output(f, name, out, {{"x", x}, {"weight", weight}, {"dout", dout}});
    check_output(f, name, out, apart);
  };
  if (gradients.x) check_same_shape(f, "the gradient of x", gradients.x, "x", x);
  for (const auto& [name, out] :
       {std::pair<const char*, const MutableTensorView&>{"the gradient of weight", gradients.weight},
        {"the gradient of bias", gradients.bias}})
    if (out && !has_shape(out, {features}))
      fail(f, std::string(name) + " must have an element for each feature of x", {{name, out}, {"x", x}});
  check("the gradient of x", gradients.x, {});
  check("the gradient of weight", gradients.weight, {{"the gradient of x", gradients.x}});
  check("the gradient of bias", gradients.bias,
        {{"the gradient of x", gradients.x}, {"the gradient of weight", gradients.weight}});
}

namespace {

void check_activation_arguments(const char* f, const TensorView& x, const TensorView& up, const TensorView& dout) {
  const Named views = {{"x", x}, {"up", up}, {"dout", dout}};
  check_rank(f, "x", x, 1, kMaxRank, views);
  check_dtypes(f, x.dtype, views);
  for (const auto& [name, view] : views) {
    if (!view) continue;
    check_tensor(f, name, view);
    check_same_shape(f, name, view, "x", x);
  }
}

}  // namespace

void validate_activate(const TensorView& x, const TensorView& up, const MutableTensorView& out) {
  constexpr char f[] = "activation";
  check_activation_arguments(f, x, up, {});
  check_dtypes(f, x.dtype, {{"x", x}, {"out", out}});
  check_same_shape(f, "out", out, "x", x);
  check_output(f, "out", out, {{"x", x}, {"up", up}});
}

void validate_activation_gradient(const TensorView& x, const TensorView& up, const TensorView& dout,
                                  const ActivationGradients& gradients) {
  constexpr char f[] = "activation_gradient";
  check_activation_arguments(f, x, up, dout);
  check_same_shape(f, "dout", dout, "x", x);  // given, too
  if (gradients.up && !up) throw std::invalid_argument(std::string(f) + ": the gradient of up needs an up");
  for (const auto& [name, out] : {std::pair<const char*, const MutableTensorView&>{"the gradient of x", gradients.x},
                                  {"the gradient of up", gradients.up}}) {
    if (!out) continue;
    check_dtypes(f, x.dtype, {{"x", x}, {name, out}});
    check_same_shape(f, name, out, "x", x);
    check_output(f, name, out, {{"x", x}, {"up", up}, {"dout", dout}});
  }
  if (gradients.up) check_output(f, "the gradient of up", gradients.up, {{"the gradient of x", gradients.x}});
}

}  // namespace mha
