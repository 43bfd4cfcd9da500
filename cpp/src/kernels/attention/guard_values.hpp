// A masked weight is 0, but 0 times NaN is NaN. Where masks cut a block, its values are looked at first; only with such
// values about, masked positions are left out by selection, which is slow, and rare: the values behind a mask are
// seldom uninitialised.
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
