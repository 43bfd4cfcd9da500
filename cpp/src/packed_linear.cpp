#include "packed_linear.hpp"

#include <cstring>

#include "mha/errors.hpp"

namespace mha {
namespace {

Index round_up(Index n, Index multiple) { return (n + multiple - 1) / multiple * multiple; }

}  // namespace

PackedLinear::PackedLinear(const TensorView& weight, const TensorView& bias, Index segment_columns)
    : dtype_(weight.dtype),
      has_bias_(bool(bias)),
      in_features_(weight.extents[1]),
      segments_(weight.extents[0] / segment_columns),
      segment_columns_(segment_columns),
      padded_segment_columns_(round_up(segment_columns, kVectorBytes / size_of(dtype_))) {
  panels_ = round_up(segments_ * padded_segment_columns_ * size_of(dtype_), kPanelBytes) / kPanelBytes;
  const std::size_t bytes = static_cast<std::size_t>(panels_ * (in_features_ + 1) * kPanelBytes);
  data_.reset(new (std::align_val_t{64}, std::nothrow) std::byte[bytes]);
  if (!data_) throw AllocationError(bytes);
  std::memset(data_.get(), 0, bytes);

  const Index size = size_of(dtype_);
  const auto* from = static_cast<const std::byte*>(weight.data);
  const auto* bias_from = static_cast<const std::byte*>(bias.data);
  for_each_element([&](Index feature, Index input, Index at) {
    const std::byte* source = input < in_features_
                                  ? from + (feature * weight.strides[0] + input * weight.strides[1]) * size
                                  : bias_from + feature * bias.strides[0] * size;
    if (input < in_features_ || has_bias_) std::memcpy(data_.get() + at, source, static_cast<std::size_t>(size));
  });
}

void PackedLinear::unpack(const MutableTensorView& weight, const MutableTensorView& bias) const {
  const Index size = size_of(dtype_);
  for_each_element([&](Index feature, Index input, Index at) {
    const bool is_bias = input == in_features_;
    const MutableTensorView& view = is_bias ? bias : weight;
    if (!view || (is_bias && !has_bias_)) return;
    const Index element = feature * view.strides[0] + (is_bias ? 0 : input * view.strides[1]);
    std::memcpy(static_cast<std::byte*>(view.data) + element * size, data_.get() + at, static_cast<std::size_t>(size));
  });
}

/// Calls visit(output feature, input feature, byte offset in data_) for every weight; input = in_features is the bias.
template <class Visitor>
void PackedLinear::for_each_element(Visitor visit) const {
  const Index size = size_of(dtype_), width = kPanelBytes / size;
  for (Index feature = 0; feature < segments_ * segment_columns_; ++feature) {
    const Index column = feature / segment_columns_ * padded_segment_columns_ + feature % segment_columns_;
    const Index p = column / width, offset = column % width * size;
    for (Index input = 0; input < in_features_; ++input)
      visit(feature, input, (p * in_features_ + input) * kPanelBytes + offset);
    visit(feature, in_features_, (panels_ * in_features_ + p) * kPanelBytes + offset);
  }
}

}  // namespace mha
