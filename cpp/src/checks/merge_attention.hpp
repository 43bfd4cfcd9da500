// Preconditions of merge_attention().
#pragma once

#include "mha/tensor_view.hpp"

namespace mha {

/// One call, as it was made.
struct MergeArguments {
  const TensorView *outs, *lses;
  Index shards;
  MutableTensorView out, lse;
};

void validate(const MergeArguments& arguments);

}  // namespace mha
