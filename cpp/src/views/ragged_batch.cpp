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

Index longest_keys(const RaggedBatch& batch) {
  Index longest = 0;
  for (Index b = 0; b < batch.size; ++b)
    longest = std::max<Index>(longest, batch.cu_seqlens_k[b + 1] - batch.cu_seqlens_k[b]);
  return longest;
}

double count_pairs(const RaggedBatch& batch) {
  double pairs = 0;
  for (Index b = 0; b < batch.size; ++b)
    pairs += double(batch.cu_seqlens_q[b + 1] - batch.cu_seqlens_q[b]) *
             double(batch.cu_seqlens_k[b + 1] - batch.cu_seqlens_k[b]);
  return pairs;
}

}  // namespace mha
