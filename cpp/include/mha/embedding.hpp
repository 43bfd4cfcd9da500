// The first and the last step of a text encoder: tokens to vectors, and the vectors of a text to one vector.
//
// N is the number of tokens of all texts together, one text after another as in varlen.hpp; B the number of texts.
#pragma once

#include "mha/errors.hpp"
#include "mha/export.h"
#include "mha/tensor_view.hpp"

namespace mha {

/// The tables of embed_tokens(), all of one dtype. Neighbours along E are contiguous.
struct EmbeddingTables {
  TensorView words;             // [V, E]: a row for each token of the vocabulary
  TensorView positions;         // [P, E]: one for each place in a text, plus all that is the same for every text
  TensorView norm_weight = {};  // [E] or empty: 1
  TensorView norm_bias = {};    // [E] or empty: 0
  double norm_eps = 0;
};

/// Row i of out is the layer norm of words[tokens[i]] + positions[places[i]].
///
/// @param tokens     [N] in [0, V)
/// @param places     [N] in [0, P), or null: the place of each token in its text, counted from 0. Of S types of tokens
///                   each may have its own sums with n positions, in [S n, E]: a token of type s at t has s n + t
/// @param cu_seqlens [B + 1]: text b has the tokens [cu_seqlens[b], cu_seqlens[b + 1]), at most P without places.
///                   Begins with 0, never falls, ends with N
/// @param out        [N, E], neighbours along E next to each other; written whole; must not overlap a table
/// @param num_threads 0: the default of runtime.hpp. The result does not depend on it
/// @throws std::invalid_argument, DTypeError, AllocationError before anything is written
MHA_API void embed_tokens(const std::int64_t* tokens, const std::int64_t* places, const std::int64_t* cu_seqlens,
                          Index batch_size, const EmbeddingTables& tables, const MutableTensorView& out,
                          int num_threads = 0);

/// Row b of out is the mean of the rows of text b of x, or, with normalize, that scaled to length 1. Summed in double
/// precision, row by row, and rounded once. A text without rows gives zeros, and so does normalize of zeros.
///
/// @param x          [N, E]; any strides
/// @param cu_seqlens [B + 1], as for embed_tokens()
/// @param out        [B, E], f64 for x in f64, else f32; written whole; must not overlap x
/// @throws std::invalid_argument, DTypeError, AllocationError before anything is written
MHA_API void mean_pool(const TensorView& x, const std::int64_t* cu_seqlens, Index batch_size, bool normalize,
                       const MutableTensorView& out, int num_threads = 0);

/// From `dout`, the gradient of a function by rows ids[i] of a table, the gradient by the table: row v of out is the sum
/// of dout[i] over all i with ids[i] = v, in their order, in the accumulator's type, rounded once.
///
/// @param ids  [N], in [0, V): one for each row of dout
/// @param dout [..., E] with N rows, up to four axes; any strides
/// @param out  [V, E]; written whole; must not overlap dout
/// @throws std::invalid_argument, DTypeError, AllocationError before anything is written
MHA_API void embedding_gradient(const std::int64_t* ids, const TensorView& dout, const MutableTensorView& out,
                                int num_threads = 0);

}  // namespace mha
