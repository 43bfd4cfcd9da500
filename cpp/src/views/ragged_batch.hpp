// The offsets of a ragged batch: their rules, and what follows from them.
#pragma once

#include "mha/varlen.hpp"

namespace mha {

/// Throws std::invalid_argument unless the offsets [size + 1] give each of `rows` rows, those of `rows_of`, to one
/// sequence. `name` is the offsets'.
void check_offsets(const char* function, const char* name, const std::int64_t* offsets, Index size, const char* rows_of,
                   Index rows);

/// Throws std::invalid_argument unless each of `query_rows` and `key_rows` belongs to one sequence.
void check_ragged_batch(const char* function, const RaggedBatch& batch, Index query_rows, Index key_rows);

/// Keys of the longest sequence, of offsets that have been checked; as are those below.
Index longest_keys(const RaggedBatch& batch);

/// Pairs of a query and a key of its sequence.
double count_pairs(const RaggedBatch& batch);

}  // namespace mha
