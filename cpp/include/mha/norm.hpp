// Norms of rows: LayerNorm, RMSNorm, and Norm, which is either.
//
// E is the number of features of a row.
#pragma once

#include <memory>

#include "mha/norm_kind.hpp"
#include "mha/tensor_view.hpp"

namespace mha {

struct NormWeights;  // of the library itself

/// A norm over the last axis, made as a LayerNorm or as an RMSNorm.
///
/// Immutable: forward() may run on several threads at once. Copies share the weights.
class MHA_API Norm {
 public:
  /// @param x   [..., E], up to four axes
  /// @param out the shape of x; x itself, or memory that x does not overlap
  void forward(const TensorView& x, const MutableTensorView& out, int num_threads = 0) const;

  NormKind kind() const;
  Index embed_dim() const;  // E
  double eps() const;
  bool has_bias() const;
  DType dtype() const;
  /// Copies the weights out again, [E]; an empty view is passed over.
  void copy_weights(const MutableTensorView& weight, const MutableTensorView& bias) const;

  const NormWeights& weights() const { return *weights_; }

 protected:
  Norm(NormKind kind, const TensorView& weight, const TensorView& bias, double eps);

 private:
  std::shared_ptr<const NormWeights> weights_;
};

/// (x - mean) / sqrt(variance + eps) * weight + bias; the variance of the row itself, not an estimate (Ba, Kiros,
/// Hinton, "Layer Normalization", 2016).
class MHA_API LayerNorm : public Norm {
 public:
  /// @param weight [E]; copied
  /// @param bias   [E] or empty: none
  /// @param eps    added to the variance; at least 0
  /// @throws std::invalid_argument, DTypeError, AllocationError
  explicit LayerNorm(const TensorView& weight, const TensorView& bias = {}, double eps = 1e-5);
};

/// x / sqrt(mean(x^2) + eps) * weight, without a mean and a bias (Zhang, Sennrich, "Root Mean Square Layer
/// Normalization", 2019).
class MHA_API RMSNorm : public Norm {
 public:
  /// @param weight      [E]; copied
  /// @param eps         added to the mean of the squares; at least 0
  /// @param unit_offset multiply by 1 + weight instead; the sum is not rounded to the dtype of the weight
  /// @throws std::invalid_argument, DTypeError, AllocationError
  explicit RMSNorm(const TensorView& weight, double eps = 1e-6, bool unit_offset = false);
};

/// sum = x + residual, and out = norm(sum): one pass, with the bits of a layer of a transformer.
///
/// @param x        [..., E], up to four axes, dense, like all others
/// @param residual the shape of x
/// @param norm     null: only the sum
/// @param sum      the shape of x; may be x or residual itself
/// @param out      the shape of x, other memory; empty without a norm
MHA_API void add_and_normalize(const TensorView& x, const TensorView& residual, const Norm* norm,
                               const MutableTensorView& sum, const MutableTensorView& out, int num_threads = 0);

}  // namespace mha
