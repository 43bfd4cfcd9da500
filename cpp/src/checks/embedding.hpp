// The preconditions of embed_tokens() and mean_pool().
#pragma once

#include <cstdint>

#include "mha/embedding.hpp"

namespace mha {

void validate_embed_tokens(const std::int64_t* tokens, const std::int64_t* places, const std::int64_t* cu_seqlens,
                           Index batch_size, const EmbeddingTables& tables, const MutableTensorView& out);

void validate_mean_pool(const TensorView& x, const std::int64_t* cu_seqlens, Index batch_size,
                        const MutableTensorView& out);

/// Returns N.
Index validate_embedding_gradient(const std::int64_t* ids, const TensorView& dout, const MutableTensorView& out);

}  // namespace mha
