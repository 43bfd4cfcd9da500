// Decode over pages that sequences share: a span of 512 keys that lies in the same pages for several sequences, such as
// a prompt that all of them begin with, is read once for the query rows of all.
//
// Decode takes the time of reading keys and values. Sixteen sequences with one row each after a common prefix of 2,000
// tokens read it sixteen times, although it is there once. Here a task is one span of a key-value head for as many
// sequences as fit a tile, of the kernel for many rows if they are many; the sums of their rows are copied to
// their own sequences, and then the spans of each sequence are merged in order, as always. The sums of a span do not
// depend on the rows that share the tile nor on the kernel, so the bits are the same as in a call of one sequence
// alone.
//
// Source: Ye et al., "Cascade inference", 2024; Juravsky et al., "Hydragen", 2024, which merge two parts by their lse.
#pragma once

#include <cstdint>

#include "plan/attention_plan.hpp"
#include "platform/parallel.hpp"
#include "platform/workspace.hpp"

namespace mha {

/// Who reads which span for whom.
struct SharedSpans {
  Index sequences = 0;          // those that have queries; 0: nothing is shared
  const std::int32_t* order;    // [sequences]: batch elements; those that begin with the same page are neighbours
  const std::uint8_t* members;  // [spans, sequences]: for how many neighbours, from this one on, a task reads the span;
                                //   0: another one does, or it does not exist
  std::byte *sums, *aside;      // of the spans of each sequence and head; of one shared span for each worker
};

/// Bytes of the sums of a span by whichever kernel.
std::size_t most_span_bytes(const DTypeKernels& kernels, Index value_dim);

/// Memory that find_shared_spans() takes; 0, if the first pages of all sequences differ, or there is too much to sum.
///
/// @param sequences [batch] or null, as KeyValues has them
/// @param rows      most query rows of a key-value head in a sequence
double shared_spans_bytes(const DTypeKernels& kernels, const KeyValues& keys, Index batch, Index kv_heads, Index rows,
                          Index spans, Index value_dim, int threads);

/// The spans that `plan` shares, written to shared_spans_bytes() of `memory`. Nothing, if that would save few of the
/// spans, or if the plan has masks that are not of single rows.
SharedSpans find_shared_spans(const AttentionPlan& plan, std::byte* memory, const Workers& workers);

}  // namespace mha
