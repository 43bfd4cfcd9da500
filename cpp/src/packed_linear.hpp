// The weights of one projection, packed once into the panels that the kernels read.
#pragma once

#include <memory>
#include <new>

#include "kernels/kernel_table.hpp"

namespace mha {

/// y = x W^T + b with W [out_features, in_features].
///
/// Output features come in segments (one for each head; a single one for the output projection). A segment is padded to
/// whole vectors of the widest instruction set, so that the columns of a vector belong to one segment. Panels hold
/// kPanelBytes of columns for each input feature: [panel][in_features][columns], the same for every instruction set.
class PackedLinear {
 public:
  /// @param weight [segments * segment_columns, in_features], any strides
  /// @param bias   [segments * segment_columns] or empty
  PackedLinear(const TensorView& weight, const TensorView& bias, Index segment_columns);

  /// Writes the weights back out: the inverse of packing. Empty views are passed over.
  void unpack(const MutableTensorView& weight, const MutableTensorView& bias) const;

  DType dtype() const { return dtype_; }
  bool has_bias() const { return has_bias_; }
  Index in_features() const { return in_features_; }
  Index segments() const { return segments_; }
  Index segment_columns() const { return segment_columns_; }
  Index padded_segment_columns() const { return padded_segment_columns_; }

  /// What a projection of so many rows costs, in multiply-adds. Bringing a weight near costs as much as eight.
  double work(double rows) const { return (rows + 8) * double(segments_ * segment_columns_) * double(in_features_); }

  Index panels() const { return panels_; }
  const std::byte* panel(Index p) const { return data_.get() + p * in_features_ * kPanelBytes; }
  const std::byte* bias(Index p) const { return data_.get() + (panels_ * in_features_ + p) * kPanelBytes; }

 private:
  template <class Visitor>
  void for_each_element(Visitor visit) const;

  struct FreeAligned {
    void operator()(std::byte* data) const { ::operator delete[](data, std::align_val_t{64}); }
  };

  DType dtype_;
  bool has_bias_;
  Index in_features_, segments_, segment_columns_, padded_segment_columns_, panels_;
  std::unique_ptr<std::byte[], FreeAligned> data_;  // the panels, then one bias row for each
};

}  // namespace mha
