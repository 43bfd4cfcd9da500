// The weights of a multi-head attention layer, packed.
#pragma once

#include <algorithm>
#include <optional>

#include "mha/multi_head_attention.hpp"
#include "weights/added_keys.hpp"
#include "weights/norm_weights.hpp"
#include "weights/packed_linear.hpp"
#include "weights/rotary_table.hpp"

namespace mha {

/// Steps for each row of a head of query or key, in this order. Both are of the accumulator's type.
struct HeadSteps {
  const NormWeights* norm = nullptr;    // [D], or of all heads together; null: none
  const RotaryTable* rotary = nullptr;  // null: none

  explicit operator bool() const { return norm || rotary; }
};

struct PackedAttention {
  PackedAttention(const MultiHeadAttentionConfig& sizes, const MultiHeadAttentionWeights& w,
                  const QueryKeySteps& of_heads)
      : config(sizes),
        query(w.query, sizes.head_dim, sizes.weight_format),
        key(w.key, sizes.head_dim, sizes.weight_format),
        value(w.value, sizes.value_head_dim, sizes.weight_format),
        out(w.out, sizes.out_dim, sizes.weight_format),
        added(sizes, w, query.dtype()),
        steps(of_heads) {
    if (steps.query_norm) query_norm = steps.query_norm->weights().in_accumulators();
    if (steps.key_norm) key_norm = steps.key_norm->weights().in_accumulators();
  }

  void unpack(const MultiHeadAttention::WeightOutputs& outputs) const {
    query.unpack(outputs.query);
    key.unpack(outputs.key);
    value.unpack(outputs.value);
    out.unpack(outputs.out);
    added.unpack(outputs.added_key, outputs.added_value);
  }

  DType dtype() const { return query.dtype(); }
  HeadSteps query_steps() const { return {query_norm ? &*query_norm : nullptr, rotary()}; }
  HeadSteps key_steps() const { return {key_norm ? &*key_norm : nullptr, rotary()}; }
  /// The most features that one norm of several heads covers; 0: none does.
  Index joint_features() const {
    Index most = 0;
    for (const std::optional<NormWeights>* norm : {&query_norm, &key_norm})
      if (*norm && (*norm)->embed_dim != config.head_dim) most = std::max(most, (*norm)->embed_dim);
    return most;
  }
  const RotaryTable* rotary() const { return steps.rotary ? &steps.rotary->table() : nullptr; }

  MultiHeadAttentionConfig config;  // its zeros, which stand for defaults, are replaced
  PackedLinear query, key, value, out;
  AddedKeys added;
  QueryKeySteps steps;
  std::optional<NormWeights> query_norm, key_norm;  // of the accumulator's type
};

}  // namespace mha
