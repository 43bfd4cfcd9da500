// 2^t for t <= 0, the exponential of the softmax.
#pragma once

#include <cstdint>

#include "kernels/vectors/eigen.hpp"

namespace mha::MHA_ISA {
namespace {

// t = n + r with n = round(t), |r| <= 1/2; 2^r by a polynomial whose constant term is exactly 1, so that the largest
// weight of a row, t = 0, is exactly 1; then a step of n in the exponent. Scores arrive as (s - max) * scale * log2(e),
// so base 2 costs nothing. Coefficients: minimax in relative error on [-1/2, 1/2] under that constraint.
//
// t = -inf, a masked score, gives exactly 0; NaN stays NaN.

#ifdef EIGEN_VECTORIZE_AVX512
// One instruction for p * 2^n, correct for every n, -inf and NaN included. It saves 1 % of attention at D = 64. A
// result below the smallest normal number is 0, since results are flushed to zero while a task runs
// (platform/floating_point_state.hpp); this holds for every instruction that underflows (Intel 64 and IA-32
// Architectures Software Developer's Manual, volume 1, 10.2.3.3).
MHA_INLINE Packet<float> scale_by_power(const Packet<float>& p, const Packet<float>& n, const Packet<float>&) {
  return _mm512_scalef_ps(p, n);
}
MHA_INLINE Packet<double> scale_by_power(const Packet<double>& p, const Packet<double>& n, const Packet<double>&) {
  return _mm512_scalef_pd(p, n);
}
#else
// p * 2^n by adding n to the exponent field. The field ends at t = -126, and smaller weights become 0. (At n = -126 it
// is just enough, since t >= n then means p >= 1.) The comparison is false for NaN, which stays. In f64 the weights
// between 2^-1080 and 2^-1022 are flushed to zero, as with AVX-512.
MHA_INLINE Packet<float> scale_by_power(const Packet<float>& p, const Packet<float>& n, const Packet<float>& t) {
  using Integers = unpacket_traits<Packet<float>>::integer_packet;
  const Integers exponent = plogical_shift_left<23>(pcast<Packet<float>, Integers>(n));
  const Packet<float> scaled = preinterpret<Packet<float>>(padd(preinterpret<Integers>(p), exponent));
  return pandnot(scaled, pcmp_lt(t, pset1<Packet<float>>(-126.0f)));
}
MHA_INLINE Packet<double> scale_by_power(const Packet<double>& p, const Packet<double>& n, const Packet<double>& t) {
  return pandnot(pldexp(p, n), pcmp_lt(t, pset1<Packet<double>>(-1080.0)));
}
#endif

/// 2^t by a polynomial, its coefficients from the highest power down.
template <class T, int N>
MHA_INLINE Packet<T> exp2_by(const T (&coefficients)[N], const Packet<T>& t) {
  using P = Packet<T>;
  const P n = print(t);
  const P r = psub(t, n);
  P p = pset1<P>(coefficients[0]);
  MHA_UNROLL
  for (int i = 1; i < N; ++i) p = pmadd(p, r, pset1<P>(coefficients[i]));
  return scale_by_power(p, n, t);
}

// Degree 6 in f32: relative error 3.1e-9 with these coefficients, each fitted anew after those before it were rounded;
// 0.78 ulp when evaluated. Degree 5 has 1.95 ulp and makes attention 0.5 % faster at D = 64, but then the result would
// be less exact than the unfused computation.
constexpr float kExp2OfFloat[] = {
    0x1.40b58ep-13f, 0x1.5f04e6p-10f, 0x1.3b2f14p-7f, 0x1.c6af82p-5f, 0x1.ebfbdap-3f, 0x1.62e430p-1f, 1.0f};
MHA_INLINE Packet<float> exp2_of_nonpositive(const Packet<float>& t) { return exp2_by(kExp2OfFloat, t); }

// Degree 4: 2.8e-6 with these coefficients, for weights that are rounded to bf16 (2e-3).
constexpr float kCoarseExp2[] = {0x1.3a0512p-7f, 0x1.c9fc68p-5f, 0x1.ec036ep-3f, 0x1.62e12cp-1f, 1.0f};
MHA_INLINE Packet<float> coarse_exp2_of_nonpositive(const Packet<float>& t) { return exp2_by(kCoarseExp2, t); }

// The same in stages, for several vectors at once: n = whole_parts(t), r = differences(t, n), coarse_exp2_begin(r),
// coarse_exp2_step<2>() to <4>(), scale_by_power(). A kernel can put other work between the stages.
template <int kCount>
struct Vectors {
  Packet<float> x[kCount];
};
template <int kCount, class Of>
MHA_INLINE Vectors<kCount> for_each_vector(Of of) {
  Vectors<kCount> result;
  MHA_UNROLL
  for (int i = 0; i < kCount; ++i) result.x[i] = of(i);
  return result;
}
template <int kCount>
MHA_INLINE Vectors<kCount> whole_parts(const Vectors<kCount>& t) {
  return for_each_vector<kCount>([&](int i) MHA_INLINE_LAMBDA { return print(t.x[i]); });
}
template <int kCount>
MHA_INLINE Vectors<kCount> differences(const Vectors<kCount>& a, const Vectors<kCount>& b) {
  return for_each_vector<kCount>([&](int i) MHA_INLINE_LAMBDA { return psub(a.x[i], b.x[i]); });
}
template <int kStep, int kCount>
MHA_INLINE Vectors<kCount> coarse_exp2_step(const Vectors<kCount>& p, const Vectors<kCount>& r) {
  using P = Packet<float>;
  return for_each_vector<kCount>([&](int i)
                                     MHA_INLINE_LAMBDA { return pmadd(p.x[i], r.x[i], pset1<P>(kCoarseExp2[kStep])); });
}
template <int kCount>
MHA_INLINE Vectors<kCount> coarse_exp2_begin(const Vectors<kCount>& r) {
  using P = Packet<float>;
  return coarse_exp2_step<1>(for_each_vector<kCount>([](int) MHA_INLINE_LAMBDA { return pset1<P>(kCoarseExp2[0]); }),
                             r);
}

// Degree 11 in f64: 4.2e-17 with these coefficients.
constexpr double kExp2OfDouble[] = {0x1.c0638527edf34p-32, 0x1.e605f979c7a5dp-28, 0x1.b54167a0b9061p-24,
                                    0x1.62bfd49ed0adfp-20, 0x1.ffcbee3b0af8cp-17, 0x1.4309130961163p-13,
                                    0x1.5d87fe7bbbe07p-10, 0x1.3b2ab6fba1e1cp-7,  0x1.c6b08d7048f31p-5,
                                    0x1.ebfbdff82c598p-3,  0x1.62e42fefa39f3p-1,  1.0};
MHA_INLINE Packet<double> exp2_of_nonpositive(const Packet<double>& t) { return exp2_by(kExp2OfDouble, t); }

}  // namespace
}  // namespace mha::MHA_ISA
