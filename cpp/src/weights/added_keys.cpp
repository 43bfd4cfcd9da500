#include "weights/added_keys.hpp"

#include "views/copy_elements.hpp"

namespace mha {
namespace {

/// `count` rows of `width` elements: first the row that is given, if there is one, then rows of zeros.
std::vector<std::byte> stacked_rows(const TensorView& given, Index count, Index width, DType dtype) {
  std::vector<std::byte> rows(static_cast<std::size_t>(count * width * size_of(dtype)));
  if (given) copy_elements(given, {rows.data(), dtype, {width}});
  return rows;
}

}  // namespace

AddedKeys::AddedKeys(const MultiHeadAttentionConfig& config, const MultiHeadAttentionWeights& weights, DType dtype)
    : dtype_(dtype),
      has_bias_kv_(config.add_bias_kv),
      count_(config.added_keys()),
      kv_heads_(config.num_kv_heads),
      head_dim_(config.head_dim),
      value_head_dim_(config.value_head_dim),
      keys_(stacked_rows(weights.added_key, count_, kv_heads_ * head_dim_, dtype_)),
      values_(stacked_rows(weights.added_value, count_, kv_heads_ * value_head_dim_, dtype_)) {}

void AddedKeys::unpack(const MutableTensorView& key, const MutableTensorView& value) const {
  if (!has_bias_kv_) return;
  if (key) copy_elements({keys_.data(), dtype_, {key.extents[0]}}, key);
  if (value) copy_elements({values_.data(), dtype_, {value.extents[0]}}, value);
}

}  // namespace mha
