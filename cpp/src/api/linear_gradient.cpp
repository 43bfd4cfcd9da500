#include "mha/linear_gradient.hpp"

#include <utility>

#include "checks/linear_gradient.hpp"
#include "execute/run_linear_gradient.hpp"
#include "mha/linear.hpp"
#include "platform/floating_point_state.hpp"

namespace mha {

void linear_gradient(const TensorView& x, const TensorView& weight, const TensorView& dout,
                     const LinearGradients& gradients, int num_threads) {
  const FloatingPointState state;
  validate_linear_gradient(x, weight, dout, gradients);
  if (gradients.x) {
    TensorView transposed = weight;
    std::swap(transposed.extents[0], transposed.extents[1]);
    std::swap(transposed.strides[0], transposed.strides[1]);
    linear(dout, transposed, gradients.x, num_threads);
  }
  if (gradients.weight || gradients.bias) run_linear_gradient(x, dout, gradients.weight, gradients.bias, num_threads);
}

}  // namespace mha
