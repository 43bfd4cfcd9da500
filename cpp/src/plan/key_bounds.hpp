// Structural masks: causal, window and lengths are all the same thing, a range of keys for each query. A new structural
// mask is a change of this one function.
#pragma once

#include <algorithm>

#include "plan/attention_plan.hpp"

namespace mha {

// Offsets and windows further away than this see the same keys as at it; sums of three of them fit.
constexpr std::int64_t kFar = std::int64_t{1} << 60;

/// Where query `i` of batch element `b` stands among the keys.
inline std::int64_t query_position(const AttentionPlan& plan, Index b, Index i) {
  return std::clamp(plan.query_offsets ? plan.query_offsets[b] : plan.query_offset, -kFar, kFar) + i;
}

struct KeyBounds {
  Index first, last;  // [first, last); equal: none
};

/// The keys that query `i` of batch element `b` may see. Neither end falls as i grows, and the queries that see
/// something are neighbours: the kernels rely on both.
inline KeyBounds key_bounds(const AttentionPlan& plan, Index b, Index i) {
  const std::int64_t position = query_position(plan, b, i);
  std::int64_t first = 0, last = plan.keys_of(b);
  if (plan.is_causal) last = std::min(last, position + 1);
  if (plan.window_right >= 0) last = std::min(last, position + plan.window_right + 1);
  if (plan.window_left >= 0) first = std::max<std::int64_t>(first, position - plan.window_left);
  last = std::max<std::int64_t>(last, 0);
  first = std::min(first, last);
  if (plan.query_lengths && i >= plan.query_lengths[b]) first = last;
  return {Index(first), Index(last)};
}

}  // namespace mha
