#include "weights/norm_weights.hpp"

#include <cstring>

#include "kernels/kernel_table.hpp"
#include "mha/half_precision.hpp"
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

NormWeights NormWeights::in_accumulators() const {
  NormWeights wide = *this;
  wide.dtype = accumulator_of(dtype);
  const Index count = embed_dim * (has_bias ? 2 : 1);
  wide.data.resize(static_cast<std::size_t>(count * size_of(wide.dtype)));
  const auto convert = [&](auto element, auto number) {
    for (Index i = 0; i < count; ++i) {
      std::memcpy(&element, data.data() + i * Index(sizeof element), sizeof element);
      number = static_cast<decltype(number)>(to_double(element));
      std::memcpy(wide.data.data() + i * Index(sizeof number), &number, sizeof number);
    }
  };
  switch (dtype) {
#define MHA_DTYPE(name, scalar, accumulator) \
  case DType::name:                          \
    convert(scalar(), accumulator());        \
    break;
#include "mha/dtypes.def"
#undef MHA_DTYPE
    case DType::boolean:
    case DType::int8:
      break;
  }
  return wide;
}

void NormWeights::write_to(NormalizeTile& tile) const {
  tile.kind = kind;
  tile.weight = weight();
  tile.bias = bias();
  tile.eps = eps;
}

}  // namespace mha
