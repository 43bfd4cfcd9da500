// Quantizes rows of f32 to 8-bit integers, for projections with int8 weights: x = q * scale, with one scale for each
// row.
//
// A row may have outliers: a few features, most_outliers() at most, that are larger than all others together allow
// for. The limit is the largest magnitude of the row, halved as often as no more features than that exceed it
// (kMostHalvings times at most). All features within the limit, and 0, lie in [lo, hi]. With m = hi / 2 - lo / 2, or
// kLeastQuantizedMax if that is larger,
//   scale = m / 127   and   q = rint(x * (127 / m)), ties to even.
// So there are at most 255 steps from the least q to the largest one, but for outliers, which have the same scale and
// more digits. Where all numbers of a row have one sign, as after an activation, all steps are on that side of 0.
//
// Numerics: each operation is rounded by itself, so all instruction sets give the same bits. A row that holds an
// infinity or a NaN gets the scale NaN.
#pragma once

#include "kernels/kernel_table.hpp"
#include "kernels/products/byte_products.hpp"
#include "kernels/vectors/elements.hpp"

namespace mha::MHA_ISA {
namespace {

/// Bytes of the features of a quantized row, padded to whole vectors and groups of int4 weights, or to whole rows of
/// tiles: the padding is multiplied by zeros.
inline Index quantized_features_bytes(Index in_features) {
#ifdef MHA_TILES
  constexpr Index kTogether = kTileBytes;
#else
  constexpr Index kTogether = kInt4GroupFeatures;
  static_assert(kTogether % kLanes<float> == 0);
#endif
  return (in_features + kTogether - 1) / kTogether * kTogether * ByteProducts::kFeatureBytes;
}

/// Bytes of a quantized row: its features, then the excess of its outliers.
inline Index quantized_row_bytes(Index in_features) {
  const Index listed = ByteProducts::kHasOffset ? most_outliers(in_features) : 0;
  return quantized_features_bytes(in_features) + listed * Index(sizeof(Excess));
}

/// Bytes of the quantized rows, then of their scales.
inline std::size_t quantized_bytes(Index rows, Index in_features) {
  return std::size_t(rows * (quantized_row_bytes(in_features) + Index(sizeof(QuantizedRow))));
}

/// Lists the excess of a vector of features over their bytes: 127 at most, which signed bytes hold, too.
__attribute__((noinline)) void list_excess(const Bits& words, Index first, Index most, Excess* list,
                                           QuantizedRow* row) {
  for (int i = 0; i < kLanes<float>; ++i) {
    const std::int32_t lacks = (std::int32_t(words[i]) - ByteProducts::kLeastByte) >> 8;
    const std::int32_t feature = std::int32_t(first) + i, place = feature % 4 * 8;
    if (lacks < 0) list[row->below++] = {feature / 4, -lacks << place};
    if (lacks > 0) list[most - ++row->above] = {feature / 4, lacks << place};
  }
}

/// The magnitudes of a vector of features, as integers of the same order.
MHA_INLINE Ints magnitudes_of(const Floats& lanes) { return Ints(Bits(lanes) & 0x7fffffff); }

/// Whole parts of a row have so many vectors. The largest magnitudes of the features of a part, lane by lane, are lower and
/// upper bounds of how many of them are outliers.
constexpr int kPartVectors = 8;
constexpr Index kPartFeatures = Index{kPartVectors} * kLanes<float>;
constexpr Index kLeastParts = 4;  // sums of lanes take as long as two parts
using PartMagnitudes = unsigned char[kPacketBytes];
static_assert(sizeof(PartMagnitudes) <= kPartFeatures * ByteProducts::kFeatureBytes, "they lie where integers will");

/// Whether more than `most` features of a row have a larger magnitude than `limit`. `parts` has the magnitudes of its
/// whole parts.
__attribute__((noinline)) bool has_more_beyond(const float* x, Index step, Index count, float limit,
                                               const PartMagnitudes* parts, Index most) {
  const Ints limits = Ints(Floats{} + limit);
  const Index whole = count / kPartFeatures, rest = count - whole * kPartFeatures;
  Ints beyond = {};  // minus their number, like all lanes here
  const auto add = [&](Index first, Index features) MHA_INLINE_LAMBDA {
    for_each_vector_of_row(x + first * step, step, features, [&](Index, const Floats& lanes) MHA_INLINE_LAMBDA {
      beyond += magnitudes_of(lanes) > limits;
    });
  };
  bool few_have_any = false;  // or branches are mispredicted more often than they save a part
  if (whole >= kLeastParts) {
    Ints of_parts = {};
    for (Index part = 0; part < whole; ++part) of_parts += load_vector<Ints>(parts[part]) > limits;
    const Index least = -sum_of_lanes(of_parts);
    if (least > most) return true;
    if (least * kPartVectors + rest <= most) return false;
    few_have_any = 4 * least < whole;
  }
  for (Index part = 0; part < whole; ++part) {
    if (few_have_any && !has_any(load_vector<Ints>(parts[part]) > limits)) continue;
    add(part * kPartFeatures, kPartFeatures);
  }
  add(whole * kPartFeatures, rest);
  return -sum_of_lanes(beyond) > most;
}

inline void quantize_rows(ProjectionTile& tile, void* memory) {
  const Index out_row = quantized_row_bytes(tile.in_features), outliers = most_outliers(tile.in_features);
  auto* const scales = reinterpret_cast<QuantizedRow*>(static_cast<unsigned char*>(memory) + tile.rows * out_row);
  for (Index r = 0; r < tile.rows; ++r) {
    const float* const x = static_cast<const float*>(tile.x) + r * tile.x_row;
    // Bits compared as signed integers give the largest positive number, as unsigned ones the most negative number. The
    // bits of a NaN are larger than the bits of infinity, so any NaN is found.
    Ints largest = {};
    Bits least = {};
    const auto compare = [&](Index first, Index features) MHA_INLINE_LAMBDA {
      Ints of_part = {};
      for_each_vector_of_row(x + first * tile.x_step, tile.x_step, features,
                             [&](Index, const Floats& lanes) MHA_INLINE_LAMBDA {
                               const Ints number = Ints(lanes), magnitude = magnitudes_of(lanes);
                               largest = number > largest ? number : largest;
                               least = Bits(number) > least ? Bits(number) : least;
                               of_part = magnitude > of_part ? magnitude : of_part;
                             });
      return of_part;
    };
    auto* const out = static_cast<unsigned char*>(memory) + r * out_row;
    auto* const parts = reinterpret_cast<PartMagnitudes*>(out);  // until the integers are written
    const Index whole = tile.in_features / kPartFeatures;
    for (Index part = 0; part < whole; ++part) {
      const Ints of_part = compare(part * kPartFeatures, kPartFeatures);
      __builtin_memcpy(parts[part], &of_part, sizeof of_part);
    }
    compare(whole * kPartFeatures, tile.in_features - whole * kPartFeatures);
    std::int32_t high_bits = 0;
    std::uint32_t low_bits = 0x80000000;  // -0
    for (int i = 0; i < kLanes<float>; ++i) {
      high_bits = largest[i] > high_bits ? largest[i] : high_bits;
      low_bits = least[i] > low_bits ? least[i] : low_bits;
    }
    float high, low;
    __builtin_memcpy(&high, &high_bits, sizeof high);
    __builtin_memcpy(&low, &low_bits, sizeof low);
    const bool is_finite = high_bits < 0x7f800000 && low_bits < 0xff800000;
    float limit = high > -low ? high : -low;
    int halvings = 0;
    if (outliers > 0 && is_finite)
      for (; halvings < kMostHalvings; ++halvings, limit *= 0.5f)
        if (has_more_beyond(x, tile.x_step, tile.in_features, 0.5f * limit, parts, outliers)) break;
    high = high < limit ? high : limit;
    low = low > -limit ? low : -limit;
    const float range = 0.5f * high - 0.5f * low;
    const float most = range > kLeastQuantizedMax ? range : kLeastQuantizedMax;
    const float factor = is_finite ? 127.0f / most : 0.0f;
    scales[r].scale = is_finite ? most / 127.0f : __builtin_nanf("");

    // Adding 1.5 * 2^23 rounds a number to an integer, which is then in the lower bits.
    constexpr float kRounds = 12582912.0f;
    const auto integers = [factor](const Floats& lanes) MHA_INLINE_LAMBDA { return Bits(lanes * factor + kRounds); };
    const std::uint32_t from_low = ByteProducts::kHasOffset && is_finite ? 0u - integers(Floats{} + low)[0] : 0u;
    const std::uint32_t offset = from_low + std::uint32_t(ByteProducts::kLeastByte);
    const Index bytes = quantized_features_bytes(tile.in_features);
    constexpr Index L = kLanes<float>;
    const Index written = (tile.in_features + L - 1) / L * L * ByteProducts::kFeatureBytes;
    __builtin_memset(out + written, 0, std::size_t(bytes - written));
    auto* const listed = reinterpret_cast<Excess*>(out + bytes);
    scales[r].offset = std::int32_t(from_low & 0xff) + ByteProducts::kLeastByte;
    scales[r].below = scales[r].above = 0;
    for_each_vector_of_row(x, tile.x_step, tile.in_features, [&](Index k, const Floats& lanes) MHA_INLINE_LAMBDA {
      const Bits words = integers(lanes) + offset;
      ByteProducts::store_features(out + k * ByteProducts::kFeatureBytes, words);
      if (halvings > 0 && ByteProducts::exceed_bytes(words)) list_excess(words, k, outliers, listed, &scales[r]);
    });
  }
  tile.x = memory;
  tile.x_row = out_row;
  tile.x_scales = scales;
}

}  // namespace
}  // namespace mha::MHA_ISA
