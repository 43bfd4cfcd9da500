// Attention over disjoint shards of the keys, merged into attention over all of them.
#pragma once

#include "mha/errors.hpp"
#include "mha/export.h"
#include "mha/tensor_view.hpp"

namespace mha {

/// out = sum_s exp(lses[s] - lse) outs[s] with lse = log sum_s exp(lses[s]): what scaled_dot_product_attention() gives
/// for all keys, from what it gives for each shard s of them. So the keys can be spread over processes or machines, or
/// arrive in parts. Every key is in one shard, positions are counted from the first key of the shard, and sinks are
/// given with one shard only, since they count in its lse.
///
/// @param outs   `shards` views [..., Tq, Dv] of one shape, with 2 to 4 axes; any strides
/// @param lses   `shards` views [..., Tq] of one dtype: f64, or f32 where outs are not f64. Of results that are merged
///               again f64 tells more: an f32 lse of 10 is off by 5e-7, and so are the shares of what it stands for
/// @param shards at least 1
/// @param out    [..., Tq, Dv]; written whole. It may be outs[0] itself, which merges further shards into a running
///               result; otherwise it must not overlap an input
/// @param lse    [..., Tq] of the dtype of lses, or empty; it may be lses[0] itself, likewise
/// @param num_threads 0: the default of runtime.hpp. The result does not depend on it
///
/// Each row is computed in double precision and rounded once. A shard in which a row sees no key, that is with an lse of
/// minus infinity, adds nothing to the row, whatever its out holds; if no shard sees a key, the row is zeros with an lse
/// of minus infinity. NaN or plus infinity in an lse makes its row NaN, and no other.
/// @throws std::invalid_argument, DTypeError, AllocationError before anything is written
MHA_API void merge_attention(const TensorView* outs, const TensorView* lses, Index shards, const MutableTensorView& out,
                             const MutableTensorView& lse = {}, int num_threads = 0);

}  // namespace mha
