// The table of rotary positions.
#include "mha/rotary.hpp"

#include "checks/rotary.hpp"

namespace mha {

RotaryEmbedding::RotaryEmbedding(const TensorView& cos, const TensorView& sin, RotaryPairs pairs) {
  validate_rotary(cos, sin);
  table_ = std::make_shared<const RotaryTable>(cos, sin, pairs);
}

Index RotaryEmbedding::max_positions() const { return table_->max_positions; }
Index RotaryEmbedding::rotary_dim() const { return 2 * table_->num_pairs; }
RotaryPairs RotaryEmbedding::pairs() const { return table_->pairs; }
DType RotaryEmbedding::dtype() const { return table_->dtype; }
TensorView RotaryEmbedding::cos() const { return table_->cos(); }
TensorView RotaryEmbedding::sin() const { return table_->sin(); }

}  // namespace mha
