#include "views/ragged_batch.hpp"

#include <algorithm>
#include <string>

namespace mha {

void check_offsets(const char* function, const char* name, const std::int64_t* offsets, Index size, const char* rows_of,
                   Index rows) {
  const auto wrong = [&](const std::string& rule) {
    throw std::invalid_argument(std::string(function) + ": " + name + " must " + rule);
  };
  if (offsets == nullptr) wrong("be given");
  if (offsets[0] != 0) wrong("begin with 0; got " + std::to_string(offsets[0]));
  for (Index b = 0; b < size; ++b)
    if (offsets[b + 1] < offsets[b])
      wrong("never fall; got " + std::to_string(offsets[b + 1]) + " after " + std::to_string(offsets[b]) +
            " at the end of sequence " + std::to_string(b));
  if (offsets[size] != rows)
    wrong("end with the rows of " + std::string(rows_of) + ", " + std::to_string(rows) + "; got " +
          std::to_string(offsets[size]));
}

void check_ragged_batch(const char* function, const RaggedBatch& batch, Index query_rows, Index key_rows) {
  if (batch.size < 0)
    throw std::invalid_argument(
        std::string(function) +
        ": cu_seqlens_q must have B + 1 entries, one at least; got B = " + std::to_string(batch.size));
  check_offsets(function, "cu_seqlens_q", batch.cu_seqlens_q, batch.size, "query", query_rows);
  check_offsets(function, "cu_seqlens_k", batch.cu_seqlens_k, batch.size, "key", key_rows);
}

void check_sequences(const char* function, const RaggedBatch& batch, Index cache_size) {
  const auto wrong = [&](const std::string& rule) {
    throw std::invalid_argument(std::string(function) + ": sequences must " + rule);
  };
  const std::int64_t* const named = batch.sequences;
  if (!named && batch.size != cache_size && batch.size != 0)
    wrong("be given, unless there are as many as in the cache, " + std::to_string(cache_size) + "; got " +
          std::to_string(batch.size));
  std::int64_t largest = -1;
  for (Index b = 0; named && b < batch.size; ++b) {
    if (named[b] < 0 || named[b] >= cache_size)
      wrong("name sequences of the cache, 0 to " + std::to_string(cache_size - 1) + "; got " +
            std::to_string(named[b]));
    // Names that rise, the usual case, are looked at once.
    if (named[b] <= largest && std::find(named, named + b, named[b]) != named + b)
      wrong("name each sequence once; got " + std::to_string(named[b]) + " twice");
    largest = std::max(largest, named[b]);
  }
}

NewTokens::NewTokens(const RaggedBatch* batch, const std::int64_t* new_lengths, Index cache_size)
    : counts_(new_lengths) {
  if (!batch || cache_size == 0) return;
  if (cache_size > kFew) many_.resize(static_cast<std::size_t>(cache_size));
  std::int64_t* const counts = cache_size > kFew ? many_.data() : few_;
  std::fill_n(counts, cache_size, 0);
  for (Index b = 0; b < batch->size; ++b) counts[sequence_of(*batch, b)] = keys_of(*batch, b);
  counts_ = counts;
}

namespace {

Index longest(const std::int64_t* offsets, Index size) {
  Index rows = 0;
  for (Index b = 0; b < size; ++b) rows = std::max<Index>(rows, offsets[b + 1] - offsets[b]);
  return rows;
}

}  // namespace

Index longest_queries(const RaggedBatch& batch) { return longest(batch.cu_seqlens_q, batch.size); }
Index longest_keys(const RaggedBatch& batch) { return longest(batch.cu_seqlens_k, batch.size); }

RowsOfMemories::RowsOfMemories(const char* function, const RaggedBatch& batch, const std::int64_t* memories,
                               Index num_memories) {
  const auto wrong = [&](const std::string& rule) {
    throw std::invalid_argument(std::string(function) + ": memory_sequences must " + rule);
  };
  if (!memories && batch.size != num_memories)
    wrong("be given, unless there are as many sequences as in memory_caches, " + std::to_string(num_memories) +
          "; got " + std::to_string(batch.size));
  const auto most = static_cast<std::size_t>(batch.size);
  numbers_.resize(3 * most + 2);
  std::int64_t* const starts = numbers_.data();
  std::int64_t* const named = starts + 2 * (most + 1);
  Index runs = 0;
  for (Index b = 0; b < batch.size; ++b) {
    const std::int64_t memory = memories ? memories[b] : b;
    if (memory < 0 || memory >= num_memories)
      wrong("name sequences of memory_caches, 0 to " + std::to_string(num_memories - 1) + "; got " +
            std::to_string(memory));
    if (runs > 0 && named[runs - 1] == memory) continue;
    if (std::find(named, named + runs, memory) != named + runs)
      wrong("have the sequences that read one memory as neighbours; got " + std::to_string(memory) +
            " again after another");
    starts[runs] = batch.cu_seqlens_q[b];
    named[runs++] = memory;
  }
  starts[runs] = batch.cu_seqlens_q[batch.size];
  batch_ = {runs, starts, starts + most + 1, named};
}

double count_pairs(const RaggedBatch& batch) {
  double pairs = 0;
  for (Index b = 0; b < batch.size; ++b)
    pairs += double(batch.cu_seqlens_q[b + 1] - batch.cu_seqlens_q[b]) * double(keys_of(batch, b));
  return pairs;
}

}  // namespace mha
