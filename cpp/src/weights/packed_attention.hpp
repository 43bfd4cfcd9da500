// The weights of a multi-head attention layer, packed.
#pragma once

#include "weights/added_keys.hpp"
#include "weights/packed_linear.hpp"

namespace mha {

struct PackedAttention {
  PackedAttention(const MultiHeadAttentionConfig& sizes, const MultiHeadAttentionWeights& w)
      : config(sizes),
        query(w.query, sizes.head_dim, sizes.weight_format),
        key(w.key, sizes.head_dim, sizes.weight_format),
        value(w.value, sizes.value_head_dim, sizes.weight_format),
        out(w.out, sizes.out_dim, sizes.weight_format),
        added(sizes, w, query.dtype()) {}

  void unpack(const MultiHeadAttention::WeightOutputs& outputs) const {
    query.unpack(outputs.query);
    key.unpack(outputs.key);
    value.unpack(outputs.value);
    out.unpack(outputs.out);
    added.unpack(outputs.added_key, outputs.added_value);
  }

  DType dtype() const { return query.dtype(); }

  MultiHeadAttentionConfig config;  // its zeros, which stand for defaults, are replaced
  PackedLinear query, key, value, out;
  AddedKeys added;
};

}  // namespace mha
