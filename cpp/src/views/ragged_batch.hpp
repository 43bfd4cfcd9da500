// The offsets of a ragged batch: the rules that they keep, and sizes computed from them.
#pragma once

#include <vector>

#include "mha/varlen.hpp"

namespace mha {

/// The offsets [size + 1] begin with 0, never fall, and end with `rows`, so that each row of the tensor called
/// `rows_of` belongs to one sequence. `name` names the offsets in messages. @throws std::invalid_argument
void check_offsets(const char* function, const char* name, const std::int64_t* offsets, Index size, const char* rows_of,
                   Index rows);

/// check_offsets() for the offsets of queries and of keys.
void check_ragged_batch(const char* function, const RaggedBatch& batch, Index query_rows, Index key_rows);

/// The batch lies over a cache of `cache_size` sequences: `sequences` names some of them, or there is one for each.
/// @throws std::invalid_argument
void check_sequences(const char* function, const RaggedBatch& batch, Index cache_size);

/// Which sequence of a cache sequence b of the batch continues.
inline Index sequence_of(const RaggedBatch& batch, Index b) { return batch.sequences ? batch.sequences[b] : b; }

/// The batch of a call over a cache, where keys do not lie one sequence after another: it has no offsets of keys.
inline RaggedBatch over_cache(const RaggedBatch& batch) {
  return {batch.size, batch.cu_seqlens_q, nullptr, batch.sequences};
}

/// The number of keys of sequence b. The offsets must have been checked, here and below.
inline Index keys_of(const RaggedBatch& batch, Index b) { return batch.cu_seqlens_k[b + 1] - batch.cu_seqlens_k[b]; }

/// The number of queries, or of keys, of the longest sequence.
Index longest_queries(const RaggedBatch& batch);
Index longest_keys(const RaggedBatch& batch);

/// How many tokens each of the `cache_size` sequences of a cache gets from a call: new_lengths[b], if the call is no
/// ragged batch; else the keys of a sequence that the batch names, and none of the others.
class NewTokens {
 public:
  /// `cache_size` is 0 without a cache.
  NewTokens(const RaggedBatch* batch, const std::int64_t* new_lengths, Index cache_size);
  NewTokens(const NewTokens&) = delete;
  NewTokens& operator=(const NewTokens&) = delete;

  /// [cache_size], or null: as many of all.
  const std::int64_t* counts() const { return counts_; }

 private:
  static constexpr Index kFew = 128;  // a step of as many sequences allocates nothing
  std::int64_t few_[kFew];
  std::vector<std::int64_t> many_;
  const std::int64_t* counts_;
};

/// The rows of a ragged batch that read one memory, as a ragged batch over a cache of `num_memories` sequences, without
/// new keys. Neighbouring sequences that read the same memory become one, so that its keys are read once for all rows.
class RowsOfMemories {
 public:
  /// `memories` [size] is the memory of each sequence of `batch`; null: sequence b reads memory b.
  /// @throws std::invalid_argument
  RowsOfMemories(const char* function, const RaggedBatch& batch, const std::int64_t* memories, Index num_memories);
  RowsOfMemories(const RowsOfMemories&) = delete;
  RowsOfMemories& operator=(const RowsOfMemories&) = delete;

  const RaggedBatch& batch() const { return batch_; }

 private:
  std::vector<std::int64_t> numbers_;  // the offsets of queries, of keys, and the memories
  RaggedBatch batch_;
};

/// The number of pairs of a query and a key of the same sequence.
double count_pairs(const RaggedBatch& batch);

}  // namespace mha
