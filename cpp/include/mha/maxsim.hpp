// Late interaction: scores of queries and documents that are matrices of token vectors.
//
// Nq is the number of queries, Nd of documents, Tq and Tk of the tokens of all queries and of all documents, D of
// features.
#pragma once

#include <cstdint>

#include "mha/errors.hpp"
#include "mha/export.h"
#include "mha/tensor_view.hpp"

namespace mha {

/// Matrices of token vectors, one after another: matrix i has the rows [cu_seqlens[i], cu_seqlens[i + 1]). Offsets begin
/// with 0, never fall, and end with the number of rows. A matrix may be empty.
struct TokenMatrices {
  TensorView tokens = {};                    // [T, D], any strides
  TensorView scale = {};                     // [T] f32 for tokens of int8: a vector is scale times integers; else empty
  Index count = 0;                           // matrices
  const std::int64_t* cu_seqlens = nullptr;  // [count + 1]
};

/// A query and a document, by their numbers.
struct QueryAndDocument {
  std::int64_t query, document;
};

struct MaxSimOptions {
  const QueryAndDocument* pairs = nullptr;  // null: every query with every document
  Index pair_count = 0;
  int num_threads = 0;  // 0: the default of runtime.hpp. The result does not depend on it
};

/// The score of a query q and a document d is
///
///   sum over tokens i of q  of  max over tokens j of d  of  q_i . d_j
///
/// ("ColBERT", Khattab and Zaharia, 2020). The products of a query and a document are never in memory together. A score
/// does not depend on other queries and documents, on their order, or on threads. Maxima are added in double precision
/// in the order of tokens, and the sum is rounded once. A document without tokens has a score of minus infinity, a
/// query without tokens a score of 0. NaN in a product makes the scores of its query and document NaN, and no other.
///
/// @param queries   of any dtype for attention, or of int8 with scales
/// @param documents of the same dtype and with the same D
/// @param scores    [Nq, Nd], with pairs [pair_count]; f64 for f64, else f32; written whole
/// @throws std::invalid_argument, DTypeError, AllocationError before anything is written
MHA_API void maxsim(const TokenMatrices& queries, const TokenMatrices& documents, const MutableTensorView& scores,
                    const MaxSimOptions& options = {});

/// Rounds vectors to int8 with a scale each, as maxsim() takes them: scale = max |x| / 127, integer = rint(x / scale).
/// A row of zeros has the scale 0. A row with an infinity or NaN has this as its scale, and integers of 0.
///
/// @param x        [T, D] f32; any strides
/// @param integers [T, D] int8, neighbours in a row next to each other
/// @param scale    [T] f32, contiguous
/// @throws std::invalid_argument, DTypeError before anything is written
MHA_API void quantize_tokens(const TensorView& x, const MutableTensorView& integers, const MutableTensorView& scale,
                             int num_threads = 0);

}  // namespace mha
