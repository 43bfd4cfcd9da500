// Typed views in, AttentionPlan out. Types, dtypes and ranks end here.
#pragma once

#include "plan/attention_plan.hpp"
#include "views/arguments.hpp"

namespace mha {

/// What to compute for each tile.
enum class AttentionOutput { attended_values, weights, scores };

/// `arguments` must have passed validate().
AttentionPlan make_plan(const AttentionArguments& arguments, AttentionOutput output, const KernelTable& table);

}  // namespace mha
