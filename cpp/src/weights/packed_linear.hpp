// The weights of one projection, packed once, when a layer is made, into the panels that the kernels read.
#pragma once

#include "kernels/kernel_table.hpp"
#include "mha/linear_weights.hpp"
#include "weights/int4_row.hpp"
#include "weights/weight_memory.hpp"

namespace mha {

/// y = x W^T + b with W [out_features, in_features].
///
/// Output features come in segments (one for each head; a single one for the output projection). A segment is padded to
/// whole vectors of the widest instruction set, so that the columns of a vector belong to one segment. Panels hold
/// kPanelBytes of columns for each input feature: [panel][in_features][columns], the same for every instruction set.
/// With narrow weights the four bytes of a column hold several features: [panel][in_features / n][columns][n]. Of int4
/// weights a row of multipliers precedes the codes of each 128 features. Weights in blocks lie as BlockPanel has them:
/// [panel][blocks of a row].
class PackedLinear {
 public:
  /// @param weights weight [segments * segment_columns, in_features], any strides; of int8 only with a scale
  /// @param num_threads threads that pack; 0: the default of runtime.hpp. Bits do not depend on it.
  PackedLinear(const LinearWeights& weights, Index segment_columns, WeightFormat format = WeightFormat::plain,
               int num_threads = 0);

  /// Copies the weights to views of the shapes above: the inverse of packing, up to the rounding of the format. Empty
  /// views are left out.
  void unpack(const LinearWeightOutputs& outputs) const;

  /// The dtype of the rows that are multiplied, and of the results.
  DType dtype() const { return dtype_; }
  WeightFormat format() const { return format_; }
  bool has_bias() const { return has_bias_; }
  Index in_features() const { return in_features_; }
  Index segments() const { return segments_; }
  Index segment_columns() const { return segment_columns_; }
  Index padded_segment_columns() const { return padded_segment_columns_; }

  /// The time that a projection of so many rows takes, in multiply-adds of f32. Reading four bytes of weights from
  /// memory takes as long as 8 of them; int8, and int4 as int8, is multiplied at 4 times the rate.
  double work(double rows) const {
    const double rate = has_scales(format_) || has_blocks(format_) ? 4 : 1;
    const double near = 8 * double(panel_bytes()) / (double(in_features_) * double(kPanelBytes));
    return (rows / rate + near) * double(segments_ * segment_columns_) * double(in_features_);
  }

  /// The numbers of one output feature of a matrix in blocks.
  void dequantize_row(Index feature, float* weights) const;

  Index panels() const { return panels_; }
  const std::byte* panel(Index p) const { return data_.get() + p * panel_bytes(); }
  /// The bias of the columns of panel p, kPanelBytes; for int8 and int4 weights three such rows, as ProjectionTile::bias
  /// says.
  const std::byte* bias(Index p) const { return data_.get() + bias_at(p); }

 private:
  struct Packing;
  void pack(const LinearWeights& weights, Index panel, Int4Row& int4);
  template <class Visitor>
  void for_each_feature(Index panel, Visitor visit) const;
  template <class Byte, class View, class Visitor>
  void for_each_block(Byte* panel, const View& matrix, Index feature, Visitor visit) const;
  void pack_blocks(const TensorView& weight, Index panel);
  template <class Visitor>
  void with_types(Visitor visit) const;
  template <class Packed, class Number, class View, class Move>
  void for_each_number(Index panel, const View& matrix, Move move) const;
  void pack_int8(const LinearWeights& weights, Index feature, std::byte* panel, std::byte* bias_row);
  void pack_int4(const LinearWeights& weights, Index feature, Int4Row& row, std::byte* panel, std::byte* bias_row);

  Index features_per_word() const { return mha::features_per_word(dtype_, format_); }
  Index panel_rows() const { return mha::panel_rows(dtype_, format_, in_features_); }
  Index panel_bytes() const {
    const BlockPanel block = block_panel(format_);
    return block.features > 0 ? in_features_ / block.features * block.size() : panel_rows() * kPanelBytes;
  }
  Index bias_rows() const { return has_scales(format_) ? 3 : 1; }
  Index bias_at(Index p) const { return panels_ * panel_bytes() + p * bias_rows() * kPanelBytes; }

  DType dtype_;
  WeightFormat format_;
  bool has_bias_;
  Index in_features_, segments_, segment_columns_, padded_segment_columns_, panels_;
  WeightMemory data_;  // all panels, then the bias rows of all panels
};

}  // namespace mha
