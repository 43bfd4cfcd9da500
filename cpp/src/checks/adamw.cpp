#include "checks/adamw.hpp"

#include <cmath>
#include <stdexcept>
#include <string>

#include "checks/rules.hpp"
#include "views/describe.hpp"

namespace mha {

void validate_adamw(const MutableTensorView& weight, const TensorView& gradient, const MutableTensorView& m,
                    const MutableTensorView& v, const AdamWStep& step) {
  constexpr char f[] = "AdamW";
  const Named views = {{"weight", weight}, {"gradient", gradient}, {"m", m}, {"v", v}};
  check_dtypes(f, weight.dtype, {{"weight", weight}, {"m", m}, {"v", v}});
  check_dtypes(f, gradient.dtype, {{"gradient", gradient}});
  if (accumulator_of(weight.dtype) != weight.dtype || accumulator_of(gradient.dtype) != weight.dtype)
    throw DTypeError(std::string(f) +
                     ": weight must be float32 or float64, and gradient of its dtype or of 16 bits; got " +
                     dtypes_of(views));
  for (const auto& [name, view] : views) {
    check_rank(f, name, view, 1, kMaxRank, views);
    check_same_shape(f, name, view, "weight", weight);
  }
  check_output(f, "weight", weight, {{"gradient", gradient}});
  check_output(f, "m", m, {{"gradient", gradient}, {"weight", weight}});
  check_output(f, "v", v, {{"gradient", gradient}, {"weight", weight}, {"m", m}});
  const auto check = [&](const char* name, double number, bool holds, const char* rule) {
    if (!holds)
      throw std::invalid_argument(std::string(f) + ": " + name + " must be " + rule + "; got " + text_of(number));
  };
  check("lr", step.lr, step.lr >= 0 && std::isfinite(step.lr), "a finite number of at least 0");
  check("beta1", step.beta1, step.beta1 >= 0 && step.beta1 < 1, "at least 0 and less than 1");
  check("beta2", step.beta2, step.beta2 >= 0 && step.beta2 < 1, "at least 0 and less than 1");
  check("eps", step.eps, step.eps >= 0 && std::isfinite(step.eps), "a finite number of at least 0");
  check("weight_decay", step.weight_decay, step.weight_decay >= 0 && std::isfinite(step.weight_decay),
        "a finite number of at least 0");
  check("step", double(step.step), step.step >= 1, "at least 1");
}

void validate_sum_of_squares(const TensorView& x) {
  constexpr char f[] = "sum_of_squares";
  check_dtypes(f, x.dtype, {{"x", x}});
  check_rank(f, "x", x, 1, kMaxRank, {{"x", x}});
}

}  // namespace mha
