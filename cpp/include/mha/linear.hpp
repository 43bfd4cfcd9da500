// A linear map of rows: projections to other widths, heads of models.
#pragma once

#include <cstdint>
#include <memory>
#include <utility>

#include "mha/export.h"
#include "mha/linear_weights.hpp"
#include "mha/weight_format.hpp"

namespace mha {

class PackedLinear;  // of the library itself

/// x W^T + b, for each row. Threads share the output features out where rows are few: one row and a wide matrix, such
/// as the head of a language model, keep all of them busy.
///
/// Immutable: forward() may run on several threads at once. Copies share the weights.
class MHA_API Linear {
 public:
  /// @param weights of one dtype, with WeightFormat::int8 as BasicMultiHeadAttentionWeights has it; or a matrix in blocks,
  ///                which keeps its format
  /// @throws std::invalid_argument, DTypeError, AllocationError
  explicit Linear(const LinearWeights& weights, WeightFormat weight_format = WeightFormat::plain);
  /// For the library itself.
  explicit Linear(std::shared_ptr<const PackedLinear> packed) : packed_(std::move(packed)) {}

  /// @param x   [..., in_features], up to four axes
  /// @param out [..., out_features], otherwise of the shape of x, which it does not overlap
  void forward(const TensorView& x, const MutableTensorView& out, int num_threads = 0) const;

  Index in_features() const;
  Index out_features() const;
  bool has_bias() const;
  DType dtype() const;
  WeightFormat weight_format() const;

  /// Copies the weights out again, as MultiHeadAttention does; empty views are passed over.
  void copy_weights(const LinearWeightOutputs& outputs) const;
  /// Writes the numbers of some rows of a matrix in blocks, as dequantize() rounds them: a language head whose matrix is
  /// the word table, too, is stored once.
  ///
  /// @param features [count], each at least 0 and less than out_features()
  /// @param rows     f32 [count, in_features], dense
  /// @throws std::invalid_argument, DTypeError before anything is written
  void dequantize_rows(const std::int64_t* features, Index count, const MutableTensorView& rows) const;

  const PackedLinear& packed() const { return *packed_; }

 private:
  std::shared_ptr<const PackedLinear> packed_;
};

/// The bits of Linear(weights).forward(x, out), for weights that change from call to call: they are packed for this
/// call alone, which takes as long as multiplying 50 to 150 rows. `out` must not overlap weights.
MHA_API void linear(const TensorView& x, const LinearWeights& weights, const MutableTensorView& out,
                    int num_threads = 0);

/// The numbers of a matrix in blocks, each rounded to f32 as readers of GGUF files round it.
///
/// @param weights only its matrix and block_format count
/// @param out     f32 [out_features, in_features], whose rows are dense
/// @throws std::invalid_argument, DTypeError before anything is written
MHA_API void dequantize(const LinearWeights& weights, const MutableTensorView& out, int num_threads = 0);

}  // namespace mha
