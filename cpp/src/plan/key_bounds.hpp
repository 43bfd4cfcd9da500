// Structural masks. Causal masks, windows and lengths all leave each query one range of keys. A new mask of this kind
// is a change of key_bounds() and nothing else.
#pragma once

#include <algorithm>

#include "plan/attention_plan.hpp"

namespace mha {

/// The position of query `i` of batch element `b` among the keys.
inline std::int64_t query_position(const AttentionPlan& plan, Index b, Index i) {
  return (plan.query_offsets ? plan.query_offsets[b] : plan.query_offset) + i;
}

/// The keys [first, last); none if they are equal.
struct KeyBounds {
  Index first, last;
};

/// The keys that query `i` of batch element `b` may see. The kernels rely on two properties: neither bound falls as i
/// grows, and the queries that see any key are neighbours.
inline KeyBounds key_bounds(const AttentionPlan& plan, Index b, Index i) {
  const std::int64_t position = query_position(plan, b, i);
  std::int64_t first = 0, last = plan.keys_of(b);
  if (plan.is_causal) last = std::min(last, position + 1);
  // Compared with what it would have to exceed, a window of any 64 bits adds up to nothing that does not fit them.
  if (plan.window_right >= 0 && plan.window_right < last - position) last = position + plan.window_right + 1;
  if (plan.window_left >= 0 && plan.window_left < position) first = position - plan.window_left;
  last = std::max<std::int64_t>(last, 0);
  first = std::min(first, last);
  if (plan.query_lengths && i >= plan.query_lengths[b]) first = last;
  return {Index(first), Index(last)};
}

}  // namespace mha
