// The preconditions of merge_attention().
#pragma once

#include "mha/tensor_view.hpp"

namespace mha {

/// The arguments of one call.
struct MergeArguments {
  const TensorView *outs, *lses;  // [shards] each: [..., Tq, Dv], [..., Tq]
  Index shards;
  MutableTensorView out, lse;
};

void validate(const MergeArguments& arguments);

}  // namespace mha
