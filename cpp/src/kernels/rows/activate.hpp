// Activations: relu, GELU in its exact form, by tanh and by a logistic function, SiLU, and the clamped SwiGLU of gpt-oss.
//
// All but relu are x F(x), where F rises from 0 to 1 and F(-x) = 1 - F(x). They are computed from the upper tail
// 1 - F(|x|) alone:
//   x F(x) = relu(x) - |x| (1 - F(|x|)).
// So a negative x keeps its relative accuracy, which x / 2 (1 + erf) loses where 1 and erf cancel.
#pragma once

#include <math.h>

#include "kernels/vectors/exp2.hpp"
#include "mha/activation.hpp"

namespace mha::MHA_ISA {
namespace {

/// NaN stays NaN, and -0 stays -0.
template <class T>
MHA_INLINE Packet<T> relu(const Packet<T>& x) {
  return pandnot(x, pcmp_lt(x, pset1<Packet<T>>(T(0))));
}

/// The ratio of Mills over sqrt(2 pi), for 0 <= a <= 40.
struct MillsRatio {
  Packet<float> numerator, denominator;
};
MHA_INLINE MillsRatio mills_ratio(const Packet<float>& a) {
  using P = Packet<float>;
  P p = pset1<P>(0x1.0b452cp-8f);
  p = pmadd(p, a, pset1<P>(0x1.4ae41ep-5f));
  p = pmadd(p, a, pset1<P>(0x1.75d8bcp-3f));
  p = pmadd(p, a, pset1<P>(0x1.bfe47ep-2f));
  p = pmadd(p, a, pset1<P>(0.5f));
  P q = pset1<P>(0x1.4ef82ep-7f);
  q = pmadd(q, a, pset1<P>(0x1.9ebcdap-4f));
  q = pmadd(q, a, pset1<P>(0x1.dedba0p-2f));
  q = pmadd(q, a, pset1<P>(0x1.331e5ep+0f));
  q = pmadd(q, a, pset1<P>(0x1.ac346ep+0f));
  q = pmadd(q, a, pset1<P>(1.0f));
  return {p, q};
}
/// exp(-a^2 / 2).
MHA_INLINE Packet<float> normal_power(const Packet<float>& a) {
  return exp2_of_nonpositive(pmul(pmul(a, a), pset1<Packet<float>>(-0.72134752f)));
}

/// 1 - Phi(a) for 0 <= a <= 40: 2^(-a^2 log2(e) / 2) times the ratio of Mills over sqrt(2 pi), which is a ratio of two
/// polynomials here. Minimax in relative error on [0, 14.4], where the power reaches 0: 1.1e-8 with these coefficients,
/// each fitted anew after those before it were rounded. None is negative, so nothing cancels.
MHA_INLINE Packet<float> normal_tail(const Packet<float>& a) {
  const MillsRatio ratio = mills_ratio(a);
  const Packet<float> power = normal_power(a);
  return pdiv(pmul(ratio.numerator, power), ratio.denominator);
}
/// Few use GELU in f64, so this is the C library.
MHA_INLINE Packet<double> normal_tail(const Packet<double>& a) {
  alignas(kVectorBytes) double lanes[kLanes<double>];
  pstore(lanes, a);
  for (double& lane : lanes) lane = 0.5 * ::erfc(0.70710678118654752 * lane);
  return pload<Packet<double>>(lanes);
}

/// 1 - (1 + tanh(z)) / 2 = e / (1 + e) with e = exp(-2 z), z = sqrt(2 / pi) (a + 0.044715 a^3).
template <class T>
MHA_INLINE Packet<T> tanh_tail(const Packet<T>& a) {
  using P = Packet<T>;
  constexpr double kSlope = -2.30220819814432489;  // -2 sqrt(2 / pi) log2(e)
  const P slope = pmadd(pmul(a, a), pset1<P>(T(0.044715 * kSlope)), pset1<P>(T(kSlope)));
  const P e = exp2_of_nonpositive(pmul(a, slope));
  return pdiv(e, padd(e, pset1<P>(T(1))));
}

/// 1 - 1 / (1 + exp(-a)) = e / (1 + e) with e = exp(-a).
template <class T>
MHA_INLINE Packet<T> logistic_tail(const Packet<T>& a) {
  using P = Packet<T>;
  const P e = exp2_of_nonpositive(pmul(a, pset1<P>(T(-1.44269504088896341))));  // -log2(e)
  return pdiv(e, padd(e, pset1<P>(T(1))));
}

/// The slope in the exponent of Activation::quick_gelu and Activation::swiglu_oai, and the limit of arguments of the
/// second.
constexpr double kQuickGeluSlope = 1.702, kSwigluLimit = 7;

/// 1 - 1 / (1 + exp(-1.702 a)).
template <class T>
MHA_INLINE Packet<T> quick_gelu_tail(const Packet<T>& a) {
  return logistic_tail<T>(pmul(a, pset1<Packet<T>>(T(kQuickGeluSlope))));
}

/// x, but no more than the limit. NaN stays NaN.
template <class T>
MHA_INLINE Packet<T> swiglu_argument(const Packet<T>& x) {
  const Packet<T> limit = pset1<Packet<T>>(T(kSwigluLimit));
  return pselect(pcmp_lt(limit, x), limit, x);
}

/// The factor of a gated activation. NaN stays NaN.
template <class T>
MHA_INLINE Packet<T> gated_factor(Activation activation, const Packet<T>& up) {
  using P = Packet<T>;
  if (activation != Activation::swiglu_oai) return up;
  const P least = pset1<P>(T(-kSwigluLimit)), clamped = swiglu_argument<T>(pselect(pcmp_lt(up, least), least, up));
  return padd(clamped, pset1<P>(T(1)));
}

/// |x| is limited to `limit`, where the tail is 0, in f64 too: infinity times 0 would be NaN. The effect of
/// the limit on a NaN does not matter, since relu keeps NaN.
template <class T, class Tail>
MHA_INLINE Packet<T> activate_by_tail(const Packet<T>& x, double limit, Tail tail) {
  const Packet<T> a = pmin(pabs(x), pset1<Packet<T>>(T(limit)));
  return pmadd(pnegate(a), tail(a), relu<T>(x));
}

/// Replaces `rows` rows of `vectors` vectors, from row `first` on: row r of vector j lies at columns[j] + r * row.
template <class T, class Function>
MHA_INLINE void replace_vectors(T* const* columns, int vectors, Index first, Index rows, Index row, Function function) {
  for (Index r = first; r < first + rows; ++r)
    for (int j = 0; j < vectors; ++j) {
      T* const at = columns[j] + r * row;
      pstoreu(at, function(ploadu<Packet<T>>(at)));
    }
}

/// Activates the results of a register tile while they are in level 1. Not inlined: one copy serves all shapes of
/// tiles.
template <class T>
__attribute__((noinline)) void activate(Activation activation, T* const* columns, int vectors, Index first, Index rows,
                                        Index row) {
  using P = Packet<T>;
  const auto replace = [&](auto function)
                           MHA_INLINE_LAMBDA { replace_vectors<T>(columns, vectors, first, rows, row, function); };
  switch (activation) {
    case Activation::none:
      return;
    case Activation::relu:
      return replace([](const P& x) MHA_INLINE_LAMBDA { return relu<T>(x); });
    case Activation::gelu:
      return replace([](const P& x) MHA_INLINE_LAMBDA {
        return activate_by_tail<T>(x, 40, [](const P& a) MHA_INLINE_LAMBDA { return normal_tail(a); });
      });
    case Activation::gelu_tanh:
      return replace([](const P& x) MHA_INLINE_LAMBDA {
        return activate_by_tail<T>(x, 40, [](const P& a) MHA_INLINE_LAMBDA { return tanh_tail<T>(a); });
      });
    case Activation::silu:
      return replace([](const P& x) MHA_INLINE_LAMBDA {
        return activate_by_tail<T>(x, 1000, [](const P& a) MHA_INLINE_LAMBDA { return logistic_tail<T>(a); });
      });
    case Activation::swiglu_oai:
      return replace([](const P& x) MHA_INLINE_LAMBDA {
        return activate_by_tail<T>(swiglu_argument<T>(x), 1000,
                                   [](const P& a) MHA_INLINE_LAMBDA { return quick_gelu_tail<T>(a); });
      });
    case Activation::quick_gelu:
      return replace([](const P& x) MHA_INLINE_LAMBDA {
        return activate_by_tail<T>(x, 1000, [](const P& a) MHA_INLINE_LAMBDA { return quick_gelu_tail<T>(a); });
      });
  }
}

}  // namespace
}  // namespace mha::MHA_ISA
