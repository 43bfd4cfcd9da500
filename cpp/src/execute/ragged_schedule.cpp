#include "execute/ragged_schedule.hpp"

#include <algorithm>
#include <new>

namespace mha {

const SequenceTasks* schedule(const AttentionPlan& plan, std::byte* memory) {
  SequenceTasks* const entries = reinterpret_cast<SequenceTasks*>(memory);
  for (Index b = 0; b < plan.batch; ++b) new (entries + b) SequenceTasks{b, 0};
  std::sort(entries, entries + plan.batch, [&](const SequenceTasks& a, const SequenceTasks& b) {
    return plan.keys_of(a.sequence) > plan.keys_of(b.sequence);
  });
  Index task = 0;
  for (Index i = 0; i < plan.batch; ++i) {
    entries[i].first_task = task;
    task += plan.kv_heads * plan.tiles_of(entries[i].sequence);
  }
  return entries;
}

const SequenceTasks& entry_of(const SequenceTasks* entries, Index count, Index task) {
  // Of entries that begin at the same task all but the last have none.
  const auto begins_after = [](Index t, const SequenceTasks& entry) { return t < entry.first_task; };
  return *(std::upper_bound(entries, entries + count, task, begins_after) - 1);
}

}  // namespace mha
