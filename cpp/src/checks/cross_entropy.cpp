#include "checks/cross_entropy.hpp"

#include <stdexcept>
#include <string>
#include <utility>

#include "checks/rules.hpp"
#include "views/describe.hpp"

namespace mha {

Index validate_cross_entropy(const TensorView& x, const TensorView& weight, const TensorView& bias,
                             const std::int64_t* targets, const MutableTensorView& loss,
                             const CrossEntropyGradients& gradients, const CrossEntropyOptions& options) {
  constexpr char f[] = "cross_entropy";
  const Named inputs = {{"x", x}, {"weight", weight}, {"bias", bias}};
  check_rank(f, "x", x, 1, kMaxRank, inputs);
  check_dtypes(f, x.dtype, inputs);
  check_rank(f, "weight", weight, 2, 2, inputs);
  const Index features = x.extents[x.rank - 1], words = weight.extents[0];
  if (weight.extents[1] != features || features < 1 || words < 1)
    fail(f, "weight must be [V, features of x], and neither number 0", inputs);
  check_tensor(f, "bias", bias);
  if (bias && !has_shape(bias, {words})) fail(f, "bias must have an element for each row of weight", inputs);
  Index rows = 1;
  for (int axis = 0; axis < x.rank - 1; ++axis) rows *= x.extents[axis];

  if (targets == nullptr && rows > 0) fail(f, "targets must be given, not be a null pointer", inputs);
  for (Index i = 0; i < rows; ++i)
    if (targets[i] != options.ignore_index && (targets[i] < 0 || targets[i] >= words))
      throw std::invalid_argument(std::string(f) + ": targets must be at least 0 and less than the rows of weight, " +
                                  std::to_string(words) + ", or ignore_index, " + std::to_string(options.ignore_index) +
                                  "; got " + std::to_string(targets[i]) + " for row " + std::to_string(i));
  if (!(options.label_smoothing >= 0 && options.label_smoothing <= 1))
    throw std::invalid_argument(std::string(f) + ": label_smoothing must be from 0 to 1; got " +
                                text_of(options.label_smoothing));

  if (loss.dtype != accumulator_of(x.dtype))
    throw DTypeError(std::string(f) + ": loss must be float64 for x in float64, else float32; got " +
                     name_of(loss.dtype));
  if (!has_shape(loss, {options.reduction == Reduction::none ? rows : 1}))
    fail(f, "loss must have an element for each row of x, or one with a reduction", {{"x", x}, {"loss", loss}});
  check_output(f, "loss", loss, inputs);
  if (gradients.bias && !bias) throw std::invalid_argument(std::string(f) + ": the gradient of bias needs a bias");
  const auto check = [&](const char* name, const MutableTensorView& out, const char* of, const TensorView& like,
                         Named others) {
    if (!out) return;
    check_dtypes(f, x.dtype, {{"x", x}, {name, out}});
    check_same_shape(f, name, out, of, like);
    check_output(f, name, out, inputs);
    check_output(f, name, out, others);
  };
  check("the gradient of x", gradients.x, "x", x, {{"loss", loss}});
  check("the gradient of weight", gradients.weight, "weight", weight,
        {{"loss", loss}, {"the gradient of x", gradients.x}});
  check("the gradient of bias", gradients.bias, "bias", bias,
        {{"loss", loss}, {"the gradient of x", gradients.x}, {"the gradient of weight", gradients.weight}});
  return rows;
}

}  // namespace mha
