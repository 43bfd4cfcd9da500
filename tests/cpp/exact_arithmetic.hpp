// Sums and products of float32 in integers: exact, then rounded once, to nearest or to odd. Subnormal numbers are 0, and so
// are results that are subnormal after they are rounded: the state in which the library computes.
#pragma once

#include <algorithm>
#include <cstdint>

namespace mha::testing {

using Wide = unsigned __int128;

/// A float32 as sign * digits * 2^exponent. Subnormal numbers are zeros.
struct Exact {
  enum Kind { finite, infinite, nan } kind = finite;
  bool is_negative = false;
  std::uint64_t digits = 0;
  int exponent = 0;

  explicit Exact(std::uint32_t bits) : is_negative((bits >> 31) != 0) {
    const std::uint32_t fraction = bits & 0x7fffff;
    const int biased = static_cast<int>(bits >> 23 & 0xff);
    if (biased == 255) kind = fraction != 0 ? nan : infinite;
    if (biased == 0 || biased == 255) return;
    digits = fraction | 0x800000;
    exponent = biased - 150;
  }
  Exact(Kind which, bool negative, std::uint64_t number, int power)
      : kind(which), is_negative(negative), digits(number), exponent(power) {}
  bool is_zero() const { return kind == finite && digits == 0; }
};

constexpr std::uint32_t kNan = 0x7fc00000, kInfinity = 0x7f800000;

/// To nearest, ties to even; or, if there is a rest, to the one of the two neighbours whose last digit is odd.
enum class Rounding { nearest, odd };

/// digits * 2^exponent rounded; 0 if it is subnormal after that.
inline std::uint32_t rounded(bool is_negative, Wide digits, int exponent, Rounding rounding = Rounding::nearest) {
  const std::uint32_t sign = is_negative ? 0x80000000U : 0U;
  int top = 127;
  while ((digits >> top & 1) == 0) --top;
  int drop = top - 23;
  Wide kept = drop > 0 ? digits >> drop : digits << -drop;
  if (drop > 0) {
    const Wide rest = digits - (kept << drop), half = Wide{1} << (drop - 1);
    if (rounding == Rounding::odd)
      kept |= Wide{rest != 0};
    else if (rest > half || (rest == half && (kept & 1) != 0))
      ++kept;
    if (kept >> 24 != 0) {
      kept >>= 1;
      ++drop;
    }
  }
  const int biased = exponent + drop + 150;
  if (biased >= 255) return sign | kInfinity;
  if (biased <= 0) return sign;
  return sign | static_cast<std::uint32_t>(biased) << 23 | (static_cast<std::uint32_t>(kept) & 0x7fffff);
}

inline Exact product(const Exact& a, const Exact& b) {
  const bool is_negative = a.is_negative != b.is_negative;
  if (a.kind == Exact::nan || b.kind == Exact::nan) return {Exact::nan, false, 0, 0};
  if (a.kind == Exact::infinite || b.kind == Exact::infinite)
    return {a.is_zero() || b.is_zero() ? Exact::nan : Exact::infinite, is_negative, 0, 0};
  return {Exact::finite, is_negative, a.digits * b.digits, a.exponent + b.exponent};
}

inline std::uint32_t sum(const Exact& x, const Exact& y, Rounding rounding = Rounding::nearest) {
  if (x.kind == Exact::nan || y.kind == Exact::nan) return kNan;
  if (x.kind == Exact::infinite || y.kind == Exact::infinite) {
    if (x.kind == y.kind && x.is_negative != y.is_negative) return kNan;
    const bool is_negative = x.kind == Exact::infinite ? x.is_negative : y.is_negative;
    return (is_negative ? 0x80000000U : 0U) | kInfinity;
  }
  if (x.is_zero() && y.is_zero()) return x.is_negative && y.is_negative ? 0x80000000U : 0U;
  if (x.is_zero()) return rounded(y.is_negative, y.digits, y.exponent, rounding);
  if (y.is_zero()) return rounded(x.is_negative, x.digits, x.exponent, rounding);
  const bool x_first = x.exponent >= y.exponent;
  const Exact &high = x_first ? x : y, &low = x_first ? y : x;
  constexpr int kMost = 70;  // 48 digits and as many more fit; what is farther below only says that there is something
  const int apart = high.exponent - low.exponent;
  const Wide large = Wide{high.digits} << std::min(apart, kMost);
  const Wide small = apart > kMost ? Wide{1} : Wide{low.digits};
  const int exponent = apart > kMost ? high.exponent - kMost : low.exponent;
  if (high.is_negative == low.is_negative) return rounded(high.is_negative, large + small, exponent, rounding);
  if (large == small) return 0;
  return large > small ? rounded(high.is_negative, large - small, exponent, rounding)
                       : rounded(low.is_negative, small - large, exponent, rounding);
}

/// a * b + c, rounded once.
inline std::uint32_t fused(std::uint32_t a, std::uint32_t b, std::uint32_t c) {
  return sum(product(Exact(a), Exact(b)), Exact(c));
}
inline std::uint32_t added(std::uint32_t a, std::uint32_t b, Rounding rounding = Rounding::nearest) {
  return sum(Exact(a), Exact(b), rounding);
}
/// a * b.
inline std::uint32_t multiplied(std::uint32_t a, std::uint32_t b, Rounding rounding = Rounding::nearest) {
  const Exact exact = product(Exact(a), Exact(b));
  return sum(exact, {Exact::finite, exact.is_negative, 0, 0}, rounding);
}

}  // namespace mha::testing
