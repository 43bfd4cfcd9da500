// Values behind a mask must not reach the result. The weight of a masked key is 0, but 0 times NaN or infinity is NaN.
// So where a mask cuts a block, its values are tested first. Only if one of them is not finite are masked keys left out
// by selection, which is slow and rare: few callers leave memory behind a mask uninitialised.
#pragma once

#include "kernels/attention/key_value_source.hpp"

namespace mha::MHA_ISA {
namespace {

/// Whether a value of the keys [begin, end) of a block is not finite: x * 0 is 0 for every finite x and NaN for every
/// other.
template <class S>
bool has_non_finite_value(const KeyValueRows<S>& source, Index value_dim, Index begin, Index end) {
  using T = Compute<S>;
  using P = Packet<T>;
  constexpr Index L = kLanes<T>;
  P sum = pset1<P>(T(0));
  T rest = T(0);
  const Rows<S> values = source.values(begin);
  for (Index i = 0; i < end - begin; ++i) {
    const S* value = values.data + i * values.row;
    Index d = 0;
    if (values.step == 1)
      for (; d + L <= value_dim; d += L) sum = pmadd(load_packet(value + d), pset1<P>(T(0)), sum);
    for (; d < value_dim; ++d) rest += load_element(value + d * values.step) * T(0);
  }
  rest += predux(sum);
  return rest != rest;
}

}  // namespace
}  // namespace mha::MHA_ISA
