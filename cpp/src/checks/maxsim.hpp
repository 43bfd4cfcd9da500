// The preconditions of maxsim() and quantize_tokens().
#pragma once

#include "mha/maxsim.hpp"

namespace mha {

void validate_maxsim(const TokenMatrices& queries, const TokenMatrices& documents, const MutableTensorView& scores,
                     const MaxSimOptions& options);

void validate_quantize_tokens(const TensorView& x, const MutableTensorView& integers, const MutableTensorView& scale);

}  // namespace mha
