// Runs the gradient of attention: heads, spans of keys, tiles of queries.
#pragma once

#include "plan/attention_plan.hpp"

namespace mha {

/// The call whose gradient is wanted, as a plan, and what its gradient reads and writes. All arrays have elements of the
/// accumulator's type but dquery, dkey and dvalue, whose elements are of type `dtype`.
struct GradientPlan {
  AttentionPlan attention;
  Input out, dout, lse, dlse;  // dlse.data null: none
  DType dtype;
  const DTypeKernels* rounding;    // of `dtype`
  Output dquery, dkey, dvalue;     // data null: not wanted, here and below
  Output dattn_mask;               // zeros; gradients are added
  Output dposition_bias;           // [head, distance], next to each other; zeros likewise
  double *dalibi_slopes, *dsinks;  // [batch or 1, head] and [head]; zeros likewise
  Index dalibi_slopes_batch;       // numbers between batch elements
  bool adds_batches, adds_heads;   // some of these sums are over batch elements, over heads
};

void run_gradient(const GradientPlan& plan, int num_threads);

}  // namespace mha
