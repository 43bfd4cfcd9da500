// Where the keys and values of a plan lie, and which of them a tile is given. A new form of cache is a field here, set
// in make_plan.cpp, and an answer in kernels/attention/key_value_source.hpp.
#pragma once

#include "kernels/kernel_table.hpp"
#include "plan/strided.hpp"
#include "views/cache_memory.hpp"

namespace mha {

/// Keys and values of all batch elements and heads: tensors with any strides, or sequences of a cache.
struct KeyValues {
  Input key, value;
  Index element_size;                       // bytes
  PageTables tables = {};                   // of a cache that has pages
  const std::int64_t* sequences = nullptr;  // [batch]: the sequence of the cache that a batch element is; null: its own
  Input key_scale = {}, value_scale = {};   // of rows of int8: one of f32 for each; data null: none

  bool are_contiguous() const { return key.step == 1 && value.step == 1; }

  /// The source of the tiles of one key-value head, from row `first` of the tensors on.
  KeyValueSource source(Index batch, Index kv_head, Index first) const {
    const Index sequence = sequences ? Index(sequences[batch]) : batch;
    return {key.at(sequence, kv_head, first),
            value.at(sequence, kv_head, first),
            key.row / element_size,
            key.step,
            value.row / element_size,
            value.step,
            tables.table_of(sequence),
            tables.page_rows,
            scale_of(key_scale, sequence, kv_head, first),
            scale_of(value_scale, sequence, kv_head, first)};
  }

 private:
  static const float* scale_of(const Input& scales, Index sequence, Index kv_head, Index first) {
    if (!scales.data) return nullptr;
    return reinterpret_cast<const float*>(scales.at(sequence, kv_head, first));
  }
};

}  // namespace mha
