// What tests of products of bf16 share: numbers of many kinds, and a projection whose results tell every digit of its
// sums.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <new>
#include <random>
#include <string>
#include <vector>

#include "exact_arithmetic.hpp"
#include "mha/runtime.hpp"
#include "platform/dispatch.hpp"
#include "platform/floating_point_state.hpp"

namespace mha::testing {

inline std::uint32_t widened(BFloat16 x) { return std::uint32_t{x.bits} << 16; }

/// What the elements of a product are like.
struct Elements {
  const char* name;
  std::uint32_t least, exponents;      // biased exponents of the factors
  std::uint32_t least_c, exponents_c;  // of what is added to
  int specials;                        // one in so many elements is an infinity or NaN; 0: none

  BFloat16 factor(std::mt19937& random) const {
    return BFloat16{static_cast<std::uint16_t>(number(random, least, exponents) >> 16)};
  }
  std::uint32_t sum(std::mt19937& random) const { return number(random, least_c, exponents_c); }

  /// Of `count` exponents from `from` on.
  std::uint32_t number(std::mt19937& random, std::uint32_t from, std::uint32_t count) const {
    const std::uint32_t kind =
        specials > 0 ? static_cast<std::uint32_t>(random()) % static_cast<std::uint32_t>(specials) : 9;
    const auto sign = static_cast<std::uint32_t>(random() & 0x80000000U);
    if (kind < 2) return sign | (kind == 0 ? kInfinity : kNan);
    return static_cast<std::uint32_t>(sign | (from + random() % count) << 23 | (random() & 0x7fffff));
  }
};

inline constexpr Elements kElements[] = {
    {"of one size, which cancel", 126, 3, 126, 3, 0},
    {"of many sizes", 97, 60, 97, 60, 0},
    {"equal, with ties", 127, 1, 127, 24, 0},
    {"of which products underflow", 50, 20, 0, 20, 0},
    {"subnormal and tiny", 0, 4, 0, 4, 0},
    {"of which sums end near the smallest normal number", 60, 6, 0, 3, 0},
    {"of which some sums overflow", 183, 9, 235, 20, 0},
    {"of any size", 0, 255, 0, 255, 0},
    {"with infinities and NaN", 100, 60, 100, 60, 64},
};

inline constexpr Index kPanelColumns = kPanelBytes / 4;

/// Memory as kernels want it.
class Aligned {
 public:
  explicit Aligned(std::size_t bytes)
      : data_(::operator new(std::max<std::size_t>(bytes, 1), std::align_val_t{kVectorBytes})) {}
  ~Aligned() { ::operator delete(data_, std::align_val_t{kVectorBytes}); }
  Aligned(const Aligned&) = delete;
  Aligned& operator=(const Aligned&) = delete;
  template <class T>
  T* as() const {
    return static_cast<T*>(data_);
  }

 private:
  void* data_;
};

/// A projection of bf16 by one panel. Of its sums nothing but rounding errors are left, since the second half of the
/// features takes away what the first half adds: so the 16 bits of a result tell every digit of its sum.
class Projection {
 public:
  static constexpr Index kRows = 70;

  explicit Projection(Index features)
      : features_(features),
        x_(static_cast<std::size_t>(kRows * features)),
        weights_(static_cast<std::size_t>(features * kPanelColumns)) {
    std::mt19937 random(static_cast<unsigned>(features));
    for (std::vector<BFloat16>* numbers : {&x_, &weights_})
      for (BFloat16& one : *numbers)
        one.bits = static_cast<std::uint16_t>((random() & 0x807f) | (124 + random() % 6) << 7);
    for (Index k = features - features / 2; k < features; ++k) {
      const Index other = k - (features - features / 2);
      for (Index r = 0; r < kRows; ++r) x(r, k) = x(r, other);
      for (Index n = 0; n < kPanelColumns; ++n)
        weight(k, n).bits = static_cast<std::uint16_t>(weight(other, n).bits ^ 0x8000);
    }
  }

  /// By the kernel, for rows [first, first + rows): 64 results for each.
  std::vector<BFloat16> run(const KernelTable& table, Index first, Index rows) {
    const DTypeKernels& kernels = table.kernels[static_cast<int>(DType::bf16)];
    const ProjectionKernel& kernel = kernels.project[static_cast<int>(WeightFormat::plain)];
    const Aligned memory(kernel.read_bytes(rows, features_)), scratch(kernels.projection_scratch(rows));
    const std::size_t panel_bytes = static_cast<std::size_t>((features_ + 1) / 2 * kPanelBytes);
    const Aligned panel(panel_bytes), bias(kPanelBytes);
    std::memset(panel.as<char>(), 0, panel_bytes);
    std::memset(bias.as<char>(), 0, kPanelBytes);
    for (Index k = 0; k < features_; ++k)
      for (Index n = 0; n < kPanelColumns; ++n)
        std::memcpy(panel.as<char>() + k / 2 * kPanelBytes + n * 4 + k % 2 * 2, &weight(k, n), sizeof(BFloat16));
    std::vector<BFloat16> out(static_cast<std::size_t>(rows * kPanelColumns));
    ProjectionTile tile{};
    tile.rows = rows;
    tile.in_features = features_;
    tile.x = &x(first, 0);
    tile.x_row = features_;
    tile.x_step = 1;
    tile.panel = panel.as<void>();
    tile.bias = bias.as<void>();
    for (Index g = 0; g < kPanelBytes / kVectorBytes; ++g) {
      tile.out[g] = out.data() + g * 16;
      tile.group_columns[g] = 16;
    }
    tile.out_row = kPanelColumns;
    tile.out_step = 1;
    tile.activation = Activation::none;
    kernel.read(tile, memory.as<void>());
    kernel.run(tile, scratch.as<void>());
    return out;
  }

  BFloat16& x(Index r, Index k) { return x_[static_cast<std::size_t>(r * features_ + k)]; }
  BFloat16& weight(Index k, Index n) { return weights_[static_cast<std::size_t>(k * kPanelColumns + n)]; }
  Index features() const { return features_; }

 private:
  Index features_;
  std::vector<BFloat16> x_, weights_;
};

/// Expects projections of an instruction set to have the bits of total(projection, row, column), sums of f32 that are
/// rounded.
template <class Total>
void expect_projections(const std::string& isa, const std::vector<Index>& depths, const Total& total) {
  set_isa(isa.c_str());
  const KernelTable& table = active_kernels();
  set_isa(nullptr);
  const FloatingPointState state;
  for (const Index features : depths) {
    Projection projection(features);
    std::vector<BFloat16> expected;
    for (Index r = 0; r < Projection::kRows; ++r)
      for (Index n = 0; n < kPanelColumns; ++n) {
        const std::uint32_t bits = total(projection, r, n);
        expected.push_back({static_cast<std::uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16)});
      }
    // One row, tiles of fewer rows, one tile, two, the last of which overlaps the first, and further ones.
    for (const Index rows : {1, 2, 7, 15, 16, 17, 31, 32, 33, 48, 50, 70}) {
      const Index first = Projection::kRows - rows;
      const std::vector<BFloat16> results = projection.run(table, first, rows);
      for (std::size_t i = 0; i < results.size(); ++i)
        ASSERT_EQ(results[i].bits, expected[static_cast<std::size_t>(first * kPanelColumns) + i].bits)
            << features << " features, " << rows << " rows, element " << i;
    }
  }
}

}  // namespace mha::testing
