// Activations of whole arrays, and their derivatives.
//
// With the upper tail t = 1 - F(|x|) of activate.hpp, and the density f = F', the derivative of x F(x) is
//   u = t - |x| f(|x|)  for x < 0,  1 - u  otherwise,
// since F(-x) = 1 - F(x) and f(-x) = f(x). So a negative x, whose derivative vanishes, keeps its relative accuracy.
#pragma once

#include "kernels/rows/activate.hpp"
#include "kernels/vectors/elements.hpp"

namespace mha::MHA_ISA {
namespace {

/// activation(x), and its derivative.
template <class T>
struct Activated {
  Packet<T> value, slope;
};

/// The upper tail at a, and the derivative at -a.
template <class T>
struct Tail {
  Packet<T> tail, slope;
};

MHA_INLINE Tail<float> normal_tails(const Packet<float>& a) {
  using P = Packet<float>;
  const MillsRatio ratio = mills_ratio(a);
  const P power = normal_power(a), tail = pdiv(pmul(ratio.numerator, power), ratio.denominator);
  return {tail, psub(tail, pmul(pmul(a, pset1<P>(0.39894228f)), power))};  // 1 / sqrt(2 pi)
}
MHA_INLINE Tail<double> normal_tails(const Packet<double>& a) {
  using P = Packet<double>;
  const P tail = normal_tail(a), power = exp2_of_nonpositive(pmul(pmul(a, a), pset1<P>(-0.72134752044448170)));
  return {tail, psub(tail, pmul(pmul(a, pset1<P>(0.39894228040143268)), power))};
}

/// f(a) = t (1 - t) times the derivative of the argument of the logistic function.
template <class T>
MHA_INLINE Tail<T> tanh_tails(const Packet<T>& a) {
  using P = Packet<T>;
  constexpr double kSlope = 1.59576912160573071;  // 2 sqrt(2 / pi)
  const P tail = tanh_tail<T>(a), rest = psub(pset1<P>(T(1)), tail);
  const P slope = pmadd(pmul(a, a), pset1<P>(T(3 * 0.044715 * kSlope)), pset1<P>(T(kSlope)));
  return {tail, pmul(tail, psub(pset1<P>(T(1)), pmul(pmul(a, slope), rest)))};
}

template <class T>
MHA_INLINE Tail<T> logistic_tails(const Packet<T>& a) {
  using P = Packet<T>;
  const P tail = logistic_tail<T>(a), rest = psub(pset1<P>(T(1)), tail);
  return {tail, pmul(tail, psub(pset1<P>(T(1)), pmul(a, rest)))};
}

template <class T>
MHA_INLINE Tail<T> quick_gelu_tails(const Packet<T>& a) {
  using P = Packet<T>;
  const P tail = quick_gelu_tail<T>(a), rest = psub(pset1<P>(T(1)), tail);
  return {tail, pmul(tail, psub(pset1<P>(T(1)), pmul(pmul(a, pset1<P>(T(kQuickGeluSlope))), rest)))};
}

/// The value has the bits of activate_by_tail(). NaN stays NaN in both.
template <class T, class Tails>
MHA_INLINE Activated<T> activated_by_tail(const Packet<T>& x, double limit, Tails tails) {
  using P = Packet<T>;
  const P a = pmin(pabs(x), pset1<P>(T(limit)));
  const Tail<T> at = tails(a);
  const P slope = pselect(pcmp_lt(x, pset1<P>(T(0))), at.slope, psub(pset1<P>(T(1)), at.slope));
  return {pmadd(pnegate(a), at.tail, relu<T>(x)), pselect(pcmp_eq(x, x), slope, x)};
}

/// Calls visit(function), where function(x) is an Activated.
template <class T, class Visit>
MHA_INLINE void with_activation(Activation activation, Visit visit) {
  using P = Packet<T>;
  switch (activation) {
    case Activation::none:
      return visit([](const P& x) MHA_INLINE_LAMBDA { return Activated<T>{x, pset1<P>(T(1))}; });
    case Activation::relu:
      return visit([](const P& x) MHA_INLINE_LAMBDA {
        return Activated<T>{relu<T>(x), pandnot(pset1<P>(T(1)), pcmp_le(x, pset1<P>(T(0))))};
      });
    case Activation::gelu:
      return visit([](const P& x) MHA_INLINE_LAMBDA {
        return activated_by_tail<T>(x, 40, [](const P& a) MHA_INLINE_LAMBDA { return normal_tails(a); });
      });
    case Activation::gelu_tanh:
      return visit([](const P& x) MHA_INLINE_LAMBDA {
        return activated_by_tail<T>(x, 40, [](const P& a) MHA_INLINE_LAMBDA { return tanh_tails<T>(a); });
      });
    case Activation::silu:
      return visit([](const P& x) MHA_INLINE_LAMBDA {
        return activated_by_tail<T>(x, 1000, [](const P& a) MHA_INLINE_LAMBDA { return logistic_tails<T>(a); });
      });
    case Activation::swiglu_oai:
      return visit([](const P& x) MHA_INLINE_LAMBDA {
        Activated<T> at = activated_by_tail<T>(swiglu_argument<T>(x), 1000,
                                               [](const P& a) MHA_INLINE_LAMBDA { return quick_gelu_tails<T>(a); });
        at.slope = pandnot(at.slope, pcmp_lt(pset1<P>(T(kSwigluLimit)), x));  // 0 where x is clamped
        return at;
      });
    case Activation::quick_gelu:
      return visit([](const P& x) MHA_INLINE_LAMBDA {
        return activated_by_tail<T>(x, 1000, [](const P& a) MHA_INLINE_LAMBDA { return quick_gelu_tails<T>(a); });
      });
  }
}

/// Computes vectors of a run of `count` elements. Reads `sources` of them, null where there is none, and writes
/// `targets`: compute(vectors of sources, vectors of targets).
template <class S, int kSources, int kTargets, class Function>
MHA_INLINE void map_vectors(Index count, const S* const (&sources)[kSources], S* const (&targets)[kTargets],
                            Function compute) {
  using P = Packet<Compute<S>>;
  constexpr Index L = kLanes<Compute<S>>;
  P in[kSources], out[kTargets];
  Index i = 0;
  for (; i + L <= count; i += L) {
    MHA_UNROLL
    for (int k = 0; k < kSources; ++k)
      if (sources[k]) in[k] = load_packet(sources[k] + i);
    compute(in, out);
    MHA_UNROLL
    for (int k = 0; k < kTargets; ++k)
      if (targets[k]) store_packet(targets[k] + i, out[k]);
  }
  if (i == count) return;
  alignas(kVectorBytes) S lanes[L] = {};
  for (int k = 0; k < kSources; ++k) {
    if (!sources[k]) continue;
    for (Index rest = 0; rest < count - i; ++rest) lanes[rest] = sources[k][i + rest];
    in[k] = load_packet(lanes);
  }
  compute(in, out);
  for (int k = 0; k < kTargets; ++k) {
    if (!targets[k]) continue;
    store_packet(lanes, out[k]);
    for (Index rest = 0; rest < count - i; ++rest) targets[k][i + rest] = lanes[rest];
  }
}

template <class S>
void activate_run(const ActivationRun& run) {
  using T = Compute<S>;
  using P = Packet<T>;
  const S *const x = static_cast<const S*>(run.x), *const up = static_cast<const S*>(run.up);
  S* const out = static_cast<S*>(run.out);
  with_activation<T>(run.activation, [&](auto function) MHA_INLINE_LAMBDA {
    if (up)
      map_vectors<S, 2, 1>(run.count, {x, up}, {out}, [&](const P* in, P* to) MHA_INLINE_LAMBDA {
        to[0] = pmul(gated_factor<T>(run.activation, in[1]), function(in[0]).value);
      });
    else
      map_vectors<S, 1, 1>(run.count, {x}, {out},
                           [&](const P* in, P* to) MHA_INLINE_LAMBDA { to[0] = function(in[0]).value; });
  });
}

template <class S>
void activation_gradient_run(const ActivationRun& run) {
  using T = Compute<S>;
  using P = Packet<T>;
  const S *const x = static_cast<const S*>(run.x), *const up = static_cast<const S*>(run.up),
                 *const dout = static_cast<const S*>(run.dout);
  S *const dx = static_cast<S*>(run.out), *const dup = static_cast<S*>(run.dup);
  with_activation<T>(run.activation, [&](auto function) MHA_INLINE_LAMBDA {
    if (up)
      map_vectors<S, 3, 2>(run.count, {x, dout, up}, {dx, dup}, [&](const P* in, P* to) MHA_INLINE_LAMBDA {
        const Activated<T> at = function(in[0]);
        to[0] = pmul(pmul(in[1], gated_factor<T>(run.activation, in[2])), at.slope);
        to[1] = pmul(in[1], at.value);
        if (run.activation == Activation::swiglu_oai)  // 0 where the factor is clamped
          to[1] = pandnot(to[1], pcmp_lt(pset1<P>(T(kSwigluLimit)), pabs(in[2])));
      });
    else
      map_vectors<S, 2, 1>(run.count, {x, dout}, {dx},
                           [&](const P* in, P* to) MHA_INLINE_LAMBDA { to[0] = pmul(in[1], function(in[0]).slope); });
  });
}

}  // namespace
}  // namespace mha::MHA_ISA
