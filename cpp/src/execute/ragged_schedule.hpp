// Tasks of a ragged batch: sequences have different numbers of tiles, so which one a task belongs to is looked up.
#pragma once

#include "plan/attention_plan.hpp"

namespace mha {

/// The tasks of one sequence are `first_task` and those that follow, up to the next entry's.
struct SequenceTasks {
  Index sequence, first_task;
};

/// Memory that schedule() needs for so many sequences.
constexpr std::size_t schedule_bytes(Index sequences) {
  return static_cast<std::size_t>(sequences) * sizeof(SequenceTasks);
}

/// One entry for each sequence of a ragged plan, written to `memory`, which is aligned for them. Sequences with the
/// most keys come first: their tiles take longest, and one of them begun last would keep its worker busy when the
/// others are done.
const SequenceTasks* schedule(const AttentionPlan& plan, std::byte* memory);

/// The entry of `task`, by bisection.
const SequenceTasks& entry_of(const SequenceTasks* entries, Index count, Index task);

}  // namespace mha
