#include "weights/norm_weights.hpp"

#include "views/copy_elements.hpp"

namespace mha {

NormWeights::NormWeights(NormKind which, const TensorView& w, const TensorView& b, double epsilon)
    : kind(which),
      dtype(w.dtype),
      embed_dim(w.extents[0]),
      eps(epsilon),
      has_bias(bool(b)),
      data(static_cast<std::size_t>((has_bias ? 2 : 1) * embed_dim * size_of(dtype))) {
  copy_elements(w, {data.data(), dtype, {embed_dim}});
  if (has_bias) copy_elements(b, {data.data() + embed_dim * size_of(dtype), dtype, {embed_dim}});
}

}  // namespace mha
