#include "weights/int4_row.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

namespace mha {
namespace {

constexpr int kLeastCode = -8, kMostCode = 7, kMostMultiplier = 15;
constexpr Index kGroup = kInt4GroupFeatures;

/// Where the words of a group lie in a row of words, and where its multiplier does.
Index words_of(Index group) {
  return group / kInt4GroupsOfMultipliers * kInt4RowsOfMultipliers + 1 +
         group % kInt4GroupsOfMultipliers * kInt4RowsOfGroup;
}
Index multipliers_of(Index group) { return group / kInt4GroupsOfMultipliers * kInt4RowsOfMultipliers; }
int place_of_multiplier(Index group) { return static_cast<int>(group % kInt4GroupsOfMultipliers * 4); }

/// Bits of the code of a feature within the words of its group: word, and place in it.
Index word_of_code(Index feature) { return feature / 8; }
int place_of_code(Index feature) { return static_cast<int>(feature % 4 * 8 + feature / 4 % 2 * 4); }

// Four numbers at a time, as every processor has them.
using Four = float __attribute__((vector_size(16)));

Four load(const float* from) {
  Four four;
  __builtin_memcpy(&four, from, sizeof four);
  return four;
}
float sum_of(const Four& x) { return (x[0] + x[1]) + (x[2] + x[3]); }

/// The nearest codes for numbers that are multiples of a step, where `factor` is 1 / step.
Four codes(const Four& numbers, float factor) {
  constexpr float kRounds = 12582912.0f;  // 1.5 * 2^23 rounds to an integer
  const Four least = Four{} + float(kLeastCode), most = Four{} + float(kMostCode), scaled = numbers * factor;
  const Four above = scaled > least ? scaled : least;
  return ((above < most ? above : most) + kRounds) - kRounds;
}

/// 1 / (scale * multiplier), of 1 / scale.
float factor_of(float inverse, int multiplier) {
  static constexpr std::array<float, kMostMultiplier + 1> kInverses = [] {
    std::array<float, kMostMultiplier + 1> inverses{};
    for (int m = 1; m <= kMostMultiplier; ++m) inverses[static_cast<std::size_t>(m)] = 1 / float(m);
    return inverses;
  }();
  return inverse * kInverses[static_cast<std::size_t>(multiplier)];
}

/// The sum of squared errors of a group at a step.
float error_of(const float* numbers, float step, float factor) {
  Four sum = {};
  for (Index i = 0; i < kGroup; i += 4) {
    const Four error = load(numbers + i) - codes(load(numbers + i), factor) * step;
    sum += error * error;
  }
  return sum_of(sum);
}

}  // namespace

Int4Row::Int4Row(Index in_features)
    : in_features_(in_features),
      groups_(int4_groups(in_features)),
      numbers_(static_cast<std::size_t>(groups_ * kGroup)),
      integers_(numbers_.size()),
      limits_(static_cast<std::size_t>(groups_)),
      chosen_(limits_.size()),
      best_(limits_.size()),
      words_(static_cast<std::size_t>(panel_rows(DType::f32, WeightFormat::int4, in_features))) {}

Int4Row::Choice Int4Row::choose(float scale, Index between) {
  // Of the least step that reaches all numbers of a group: smaller ones cut numbers off, larger ones may fit them better.
  constexpr float kLeastStep = 0.75f, kMostStep = 1.3f;
  Choice choice{0, 0};
  double products = 0, squares = 0;  // of numbers and integers, of integers
  const float inverse = 1 / scale;
  for (Index group = 0; group < groups_; group += between) {
    const float* const numbers = numbers_.data() + group * kGroup;
    const float in_scales = limits_[static_cast<std::size_t>(group)] * inverse;  // may be much larger than all
    const int first = std::max(1, int(std::min(in_scales * kLeastStep, float(kMostMultiplier))));
    const int last = std::max(first, int(std::min(in_scales * kMostStep + 1, float(kMostMultiplier))));
    float least = std::numeric_limits<float>::infinity();
    int multiplier = first;
    for (int m = first; m <= last; ++m) {
      const float error = error_of(numbers, scale * float(m), factor_of(inverse, m));
      if (error < least) least = error, multiplier = m;
    }
    chosen_[static_cast<std::size_t>(group)] = static_cast<unsigned char>(multiplier);
    Four product = {}, square = {};
    for (Index i = 0; i < kGroup; i += 4) {
      const Four code = codes(load(numbers + i), factor_of(inverse, multiplier));
      product += code * load(numbers + i);
      square += code * code;
    }
    products += double(sum_of(product) * float(multiplier));
    squares += double(sum_of(square) * float(multiplier * multiplier));
    choice.error += double(least);
  }
  choice.scale = squares > 0 ? float(products / squares) : scale;
  return choice;
}

float Int4Row::quantize() {
  std::fill(numbers_.begin() + in_features_, numbers_.end(), 0.0f);
  std::fill(integers_.begin(), integers_.end(), std::int8_t{0});
  float most = 0;  // the largest step that a group needs
  for (Index group = 0; group < groups_; ++group) {
    float high = 0, low = 0;
    for (const float* x = numbers_.data() + group * kGroup; x != numbers_.data() + (group + 1) * kGroup; ++x) {
      if (!std::isfinite(*x)) return std::numeric_limits<float>::quiet_NaN();
      high = std::max(high, *x), low = std::min(low, *x);
    }
    float& limit = limits_[static_cast<std::size_t>(group)];
    limit = std::max(high / float(kMostCode), low / float(kLeastCode));
    most = std::max(most, limit);
  }
  // Squares of smaller or larger numbers leave the range of float.
  most = std::max(most, kLeastQuantizedMax / 127);
  const float unit = std::ldexp(1.0f, -std::ilogb(most));
  for (float& x : numbers_) x *= unit;
  for (float& x : limits_) x *= unit;
  most *= unit;

  // Multiples of the scale at which no number is out of reach, by some of the groups where there are many; then, by all,
  // the scale with the least error for the choice before.
  constexpr int kFractions = 10, kRefinements = 3;
  constexpr float kMostFraction = 1.25f, kBetween = 0.0625f;  // 1 is one of them
  constexpr Index kSample = 64;
  const Index between = std::max<Index>(1, groups_ / kSample);
  float scale = 0, next = 0;
  double error = std::numeric_limits<double>::infinity();
  for (int i = 0; i < kFractions; ++i) {
    const Choice choice = choose(most / kMostMultiplier * (kMostFraction - kBetween * float(i)), between);
    if (choice.error < error) error = choice.error, next = choice.scale;
  }
  error = std::numeric_limits<double>::infinity();
  for (int i = 0; i <= kRefinements && next > 0; ++i) {
    const Choice choice = choose(next, 1);
    if (!(choice.error < error)) break;
    error = choice.error;
    scale = next;
    next = choice.scale;
    best_.swap(chosen_);
  }

  const float inverse = 1 / scale;
  for (Index group = 0; group < groups_; ++group) {
    const int multiplier = best_[static_cast<std::size_t>(group)];
    for (Index i = group * kGroup; i < (group + 1) * kGroup; i += 4) {
      const Four code = codes(load(numbers_.data() + i), factor_of(inverse, multiplier));
      for (int lane = 0; lane < 4; ++lane)
        integers_[static_cast<std::size_t>(i + lane)] = static_cast<std::int8_t>(int(code[lane]) * multiplier);
    }
  }
  return scale / unit;
}

bool Int4Row::pack() {
  std::fill(integers_.begin() + in_features_, integers_.end(), std::int8_t{0});
  std::fill(words_.begin(), words_.end(), 0u);
  for (Index group = 0; group < groups_; ++group) {
    const std::int8_t* const integers = integers_.data() + group * kGroup;
    // Every multiplier with a factor for all of them does, so the least is taken: the words of integers are unique.
    const auto [least, most] = std::minmax_element(integers, integers + kGroup);
    int m = std::max({1, (-*least + 7) / 8, (*most + 6) / 7});
    const auto divides = [&](int divisor) {
      return std::all_of(integers, integers + kGroup, [divisor](int integer) { return integer % divisor == 0; });
    };
    while (m <= kMostMultiplier && !divides(m)) ++m;
    if (m > kMostMultiplier) return false;
    if (*least == 0 && *most == 0) continue;
    words_[static_cast<std::size_t>(multipliers_of(group))] |= std::uint32_t(m) << place_of_multiplier(group);
    for (Index i = 0; i < kGroup; ++i)
      words_[static_cast<std::size_t>(words_of(group) + word_of_code(i))] |= (std::uint32_t(integers[i] / m) & 15)
                                                                             << place_of_code(i);
  }
  return true;
}

void Int4Row::unpack() {
  for (Index group = 0; group < groups_; ++group) {
    const std::uint32_t multipliers = words_[static_cast<std::size_t>(multipliers_of(group))];
    const int m = static_cast<int>(multipliers >> place_of_multiplier(group) & 15);
    for (Index i = 0; i < kGroup; ++i) {
      const std::uint32_t word = words_[static_cast<std::size_t>(words_of(group) + word_of_code(i))];
      const int bits = static_cast<int>(word >> place_of_code(i) & 15);
      integers_[static_cast<std::size_t>(group * kGroup + i)] =
          static_cast<std::int8_t>((bits < 8 ? bits : bits - 16) * m);
    }
  }
}

}  // namespace mha
