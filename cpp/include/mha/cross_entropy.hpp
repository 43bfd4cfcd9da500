// The cross-entropy of a linear map over a vocabulary, and its gradients, without the logits of all rows in memory.
//
// N is the number of rows, E of features, V of words of the vocabulary.
#pragma once

#include <cstdint>

#include "mha/errors.hpp"
#include "mha/export.h"
#include "mha/tensor_view.hpp"

namespace mha {

/// What becomes of the losses of the rows.
enum class Reduction : unsigned char {
  mean,  // over the rows that are not ignored; NaN without such a row
  sum,
  none,
};

struct CrossEntropyOptions {
  std::int64_t ignore_index = -100;  // rows with this target have no loss, and gradients of 0
  double label_smoothing = 0;        // from 0 to 1: how much of the target is spread over the vocabulary
  Reduction reduction = Reduction::mean;
  int num_threads = 0;  // 0: the default of runtime.hpp. The result does not depend on it
};

/// Where gradients of the loss go, of the sum of the losses with Reduction::none; an empty view: not wanted. All have
/// the dtype of x.
struct CrossEntropyGradients {
  MutableTensorView x = {};       // the shape of x
  MutableTensorView weight = {};  // [V, E]
  MutableTensorView bias = {};    // [V]
};

/// With logits z = x W^T + b of a row, its target t, and label smoothing s, the loss of the row is
///
///   (1 - s) (log sum_j exp(z_j) - z_t) + s (log sum_j exp(z_j) - mean z)
///
/// Logits are computed for some rows at a time, for x of 16 bits in f32; rows that are ignored have none. The gradients
/// of weight and bias are sums over rows, of spans of 128 rows that are added in order.
///
/// @param x       [..., E], up to four axes; any strides
/// @param weight  [V, E]
/// @param bias    [V] or empty: none
/// @param targets [N], each in [0, V) or ignore_index
/// @param loss    [N], with a reduction [1]; f64 for x in f64, else f32
/// @throws std::invalid_argument, DTypeError, AllocationError before anything is written
MHA_API void cross_entropy(const TensorView& x, const TensorView& weight, const TensorView& bias,
                           const std::int64_t* targets, const MutableTensorView& loss,
                           const CrossEntropyGradients& gradients, const CrossEntropyOptions& options = {});

}  // namespace mha
