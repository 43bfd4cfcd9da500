// The weights of a multi-head attention layer, packed.
#pragma once

#include "weights/added_keys.hpp"
#include "weights/packed_linear.hpp"

namespace mha {

struct PackedAttention {
  PackedAttention(const MultiHeadAttentionConfig& sizes, const MultiHeadAttentionWeights& w)
      : config(sizes),
        query(w.query_weight, w.query_bias, sizes.head_dim, sizes.weight_format, w.query_scale),
        key(w.key_weight, w.key_bias, sizes.head_dim, sizes.weight_format, w.key_scale),
        value(w.value_weight, w.value_bias, sizes.value_head_dim, sizes.weight_format, w.value_scale),
        out(w.out_weight, w.out_bias, sizes.out_dim, sizes.weight_format, w.out_scale),
        added(sizes, w, query.dtype()) {}

  DType dtype() const { return query.dtype(); }

  MultiHeadAttentionConfig config;  // its zeros, which stand for defaults, are replaced
  PackedLinear query, key, value, out;
  AddedKeys added;
};

}  // namespace mha
