// From the arguments of a call to a plan: typed views become addresses and strides, options become numbers.
#pragma once

#include "plan/attention_plan.hpp"
#include "views/arguments.hpp"

namespace mha {

/// `arguments` must have passed validate().
AttentionPlan make_plan(const AttentionArguments& arguments, AttentionOutput output, const KernelTable& table);

}  // namespace mha
