// The offsets of a ragged batch: the rules that they keep, and sizes computed from them.
#pragma once

#include "mha/varlen.hpp"

namespace mha {

/// The offsets [size + 1] begin with 0, never fall, and end with `rows`, so that each row of the tensor called
/// `rows_of` belongs to one sequence. `name` is what messages call the offsets. @throws std::invalid_argument
void check_offsets(const char* function, const char* name, const std::int64_t* offsets, Index size, const char* rows_of,
                   Index rows);

/// check_offsets() for the offsets of queries and of keys.
void check_ragged_batch(const char* function, const RaggedBatch& batch, Index query_rows, Index key_rows);

/// The number of keys of the longest sequence. The offsets must have been checked.
Index longest_keys(const RaggedBatch& batch);

/// The number of pairs of a query and a key of the same sequence. The offsets must have been checked.
double count_pairs(const RaggedBatch& batch);

}  // namespace mha
