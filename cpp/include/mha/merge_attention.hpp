// Attention over disjoint shards of the keys, merged into attention over all of them.
#pragma once

#include "mha/errors.hpp"
#include "mha/export.h"
#include "mha/tensor_view.hpp"

namespace mha {

/// out = sum_s exp(lses[s] - lse) outs[s] with lse = log sum_s exp(lses[s]): the result of
/// scaled_dot_product_attention() for all keys, from its result for each shard s. So you can spread the keys over
/// processes or machines, or compute them in parts. Every key is in one shard. Positions are counted from the first key
/// of the shard. Pass sinks with one shard only, since they count in its lse.
///
/// @param outs   `shards` views [..., Tq, Dv] of one shape, with 2 to 4 axes; any strides
/// @param lses   `shards` views [..., Tq] of one dtype: f64, or f32 where outs are not f64. If you
///               merge the result again, f64 is more accurate: an f32 lse of 10 has an error of 5e-7, and so have its
///               shares
/// @param shards at least 1
/// @param out    [..., Tq, Dv]; written whole. It may be outs[0] itself, which merges further shards into a running
///               result; otherwise it must not overlap an input
/// @param lse    [..., Tq] of the dtype of lses, or empty; it may be lses[0] itself, likewise
/// @param num_threads 0: the default of runtime.hpp. The result does not depend on it
///
/// Each row is computed in double precision and rounded once. A shard in which a row sees no key, that is with an lse
/// of minus infinity, adds nothing to the row, whatever its out holds; if no shard sees a key, the row is zeros with an
/// lse of minus infinity. NaN or plus infinity in an lse makes its row NaN, and no other.
/// @throws std::invalid_argument, DTypeError, AllocationError before anything is written
MHA_API void merge_attention(const TensorView* outs, const TensorView* lses, Index shards, const MutableTensorView& out,
                             const MutableTensorView& lse = {}, int num_threads = 0);

}  // namespace mha
