// The optimizer AdamW: one pass over a weight, its gradient and its moments.
#pragma once

#include <cstdint>

#include "mha/errors.hpp"
#include "mha/export.h"
#include "mha/tensor_view.hpp"

namespace mha {

/// The numbers of one step.
struct AdamWStep {
  double lr = 1e-3;            // the learning rate
  double beta1 = 0.9;          // of the first moment, in [0, 1)
  double beta2 = 0.999;        // of the second one, in [0, 1)
  double eps = 1e-8;           // at least 0
  double weight_decay = 0.01;  // times lr, is taken from the weight, and not from the gradient
  double gradient_scale = 1;   // multiplies the gradient first
  std::int64_t step = 1;       // counted from 1
};

/// With g = gradient_scale * gradient, in place:
///
///   weight = weight (1 - lr weight_decay)
///   m = m + (g - m) (1 - beta1),  v = beta2 v + (1 - beta2) g^2
///   weight = weight - lr m' / (sqrt(v') + eps),  m' = m / (1 - beta1^step),  v' = v / (1 - beta2^step)
///
/// (Loshchilov, Hutter, "Decoupled Weight Decay Regularization", 2019.) No bit depends on the number of threads.
///
/// @param weight   up to four axes, f32 or f64; any strides
/// @param gradient the shape of the weight; of its dtype, or of 16 bits for f32
/// @param m,v      the shape and dtype of the weight; 0 before step 1
/// @throws std::invalid_argument, DTypeError, AllocationError before anything is written
MHA_API void adamw(const MutableTensorView& weight, const TensorView& gradient, const MutableTensorView& m,
                   const MutableTensorView& v, const AdamWStep& step, int num_threads = 0);

/// The sum of the squares of all elements, in double precision. No bit depends on the number of threads.
MHA_API double sum_of_squares(const TensorView& x, int num_threads = 0);

}  // namespace mha
