// One step of AdamW over a run of elements (Loshchilov, Hutter, "Decoupled Weight Decay Regularization", 2019):
//
//   w = w decay;  m = m + (g - m) (1 - beta1);  v = beta2 v + (1 - beta2) g^2;  w = w - rate m / (sqrt(v) / root + eps)
//
// Memory traffic: four numbers are read and three written, once.
#pragma once

#include "kernels/vectors/elements.hpp"

namespace mha::MHA_ISA {
namespace {

/// Gradients of S, all else of its accumulator.
template <class S>
void adamw_run(const AdamWRun& run) {
  using T = Compute<S>;
  using P = Packet<T>;
  constexpr Index L = kLanes<T>;
  T *const w = static_cast<T*>(run.weight), *const m = static_cast<T*>(run.m), *const v = static_cast<T*>(run.v);
  const S* const gradient = static_cast<const S*>(run.gradient);
  const P scale = pset1<P>(T(run.gradient_scale)), decay = pset1<P>(T(run.decay)), eps = pset1<P>(T(run.eps));
  const P to_m = pset1<P>(T(1 - run.beta1)), beta2 = pset1<P>(T(run.beta2)), to_v = pset1<P>(T(1 - run.beta2));
  const P rate = pset1<P>(T(run.rate)), root = pset1<P>(T(run.root));
  struct Numbers {
    P w, m, v;
  };
  const auto step = [&](Numbers& x, P g) MHA_INLINE_LAMBDA {
    g = pmul(g, scale);
    x.m = padd(x.m, pmul(psub(g, x.m), to_m));
    x.v = padd(pmul(x.v, beta2), pmul(pmul(g, g), to_v));
    const P denominator = padd(pmul(psqrt(x.v), root), eps);
    x.w = psub(pmul(x.w, decay), pdiv(pmul(x.m, rate), denominator));
  };
  Index i = 0;
  for (; i + L <= run.count; i += L) {
    Numbers x = {ploadu<P>(w + i), ploadu<P>(m + i), ploadu<P>(v + i)};
    step(x, load_packet(gradient + i));
    pstoreu(w + i, x.w);
    pstoreu(m + i, x.m);
    pstoreu(v + i, x.v);
  }
  if (i == run.count) return;
  alignas(kVectorBytes) T lanes[3][L] = {};
  alignas(kVectorBytes) S of_gradient[L] = {};
  for (Index r = 0; r < run.count - i; ++r) {
    lanes[0][r] = w[i + r];
    lanes[1][r] = m[i + r];
    lanes[2][r] = v[i + r];
    of_gradient[r] = gradient[i + r];
  }
  Numbers x = {pload<P>(lanes[0]), pload<P>(lanes[1]), pload<P>(lanes[2])};
  step(x, load_packet(of_gradient));
  pstore(lanes[0], x.w);
  pstore(lanes[1], x.m);
  pstore(lanes[2], x.v);
  for (Index r = 0; r < run.count - i; ++r) {
    w[i + r] = lanes[0][r];
    m[i + r] = lanes[1][r];
    v[i + r] = lanes[2][r];
  }
}

/// The sum of the squares of a run, in f64.
template <class S>
double squares_of_run(const void* elements, Index count) {
  constexpr Index kSums = 8;
  double sums[kSums] = {};
  const S* const x = static_cast<const S*>(elements);
  Index i = 0;
  const auto add = [&](const Compute<S>* numbers) {
    for (Index k = 0; k < kSums; ++k) sums[k] += double(numbers[k]) * double(numbers[k]);
  };
  constexpr Index kBlock = kLanes<Compute<S>> > kSums ? kLanes<Compute<S>> : kSums;
  alignas(kVectorBytes) Compute<S> numbers[kBlock];
  for (; i + kBlock <= count; i += kBlock) {
    for (Index k = 0; k < kBlock; k += kLanes<Compute<S>>) pstore(numbers + k, load_packet(x + i + k));
    for (Index k = 0; k < kBlock; k += kSums) add(numbers + k);
  }
  double total = 0;
  for (; i < count; ++i) {
    const double number = double(load_element(x + i));
    total += number * number;
  }
  for (const double sum : sums) total += sum;
  return total;
}

}  // namespace
}  // namespace mha::MHA_ISA
