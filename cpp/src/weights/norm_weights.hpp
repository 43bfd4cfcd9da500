// The weights of a norm.
#pragma once

#include <vector>

#include "mha/norm_kind.hpp"
#include "mha/tensor_view.hpp"

namespace mha {

struct NormalizeTile;  // of the kernels

/// Copies of the weight [E] and, if there is one, of the bias [E], one after the other.
struct NormWeights {
  NormWeights(NormKind which, const TensorView& weight, const TensorView& bias, double epsilon);

  NormKind kind;
  DType dtype;
  Index embed_dim;
  double eps;
  bool has_bias;
  std::vector<std::byte> data;

  /// The same in the type in which elements of this dtype are computed.
  NormWeights in_accumulators() const;

  /// Sets the fields that the kernel of norms reads.
  void write_to(NormalizeTile& tile) const;
  const std::byte* weight() const { return data.data(); }
  const std::byte* bias() const { return has_bias ? data.data() + embed_dim * size_of(dtype) : nullptr; }
};

}  // namespace mha
