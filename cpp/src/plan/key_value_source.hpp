// Where the keys and values of a plan lie, and which of them a tile is given. A new form of cache is a field here, set
// in make_plan.cpp, and an answer in kernels/attention/key_value_source.hpp.
#pragma once

#include "kernels/kernel_table.hpp"
#include "plan/strided.hpp"

namespace mha {

/// Keys and values of all batch elements and heads. One form so far: dense tensors with any strides.
struct KeyValues {
  Input key, value;
  Index element_size;  // bytes

  bool are_contiguous() const { return key.step == 1 && value.step == 1; }

  /// What the tiles of one key-value head read, from row `first` of the tensors on.
  KeyValueSource source(Index batch, Index kv_head, Index first) const {
    return {key.at(batch, kv_head, first), value.at(batch, kv_head, first),
            key.row / element_size,        key.step,
            value.row / element_size,      value.step};
  }
};

}  // namespace mha
