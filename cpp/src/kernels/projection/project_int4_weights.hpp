// Projections of quantized rows with weights of four bits (products/int4_products.hpp): the bits of int8 weights.
//
// A few rows multiply codes: the exact sum of a group, times its multiplier, is added to the sum of a column. So a row
// reads half the bytes of int8 weights. For more rows a block of features becomes int8 weights, which stay in level 1,
// and strips of rows are multiplied by these; their sums wait where the results go. Matrix units take a whole panel.
#pragma once

#include "kernels/products/int4_products.hpp"
#include "kernels/projection/project_int8_weights.hpp"

namespace mha::MHA_ISA {
namespace {

/// The most rows that multiply codes.
constexpr Index kFewInt4Rows = 16;

/// Input features of a block that several strips of few rows multiply: 34 KB of a panel. Blocks of 256 features take 1.1
/// times as long for 4 to 12 rows.
constexpr Index kFewRowsFeatures = 1024;

/// Input features that become int8 weights at a time: 32 KB of a whole panel.
constexpr Index kExpandedFeatures = 512;
static_assert(kExpandedFeatures % kInt4FeaturesOfMultipliers == 0);
static_assert(kFewRowsFeatures % kInt4FeaturesOfMultipliers == 0);

/// A prefetch of a row of the panel so many rows before it is read.
constexpr int kInt4RowsAhead = 32;

/// The most vectors of columns of one row, for which the registers suffice.
constexpr int kInt4RowVectors = kRowVectors < 2 * kVectors ? kRowVectors : 2 * kVectors;

/// The words of one group of a strip.
struct Int4Group {
  const std::byte *multipliers, *codes;
  Index place;  // among the eight groups of the multipliers

  Int4Group(const WeightStrip& g, Index group)
      : multipliers(g.panel() + group / kInt4GroupsOfMultipliers * kInt4RowsOfMultipliers * kPanelBytes),
        codes(multipliers + (1 + group % kInt4GroupsOfMultipliers * kInt4RowsOfGroup) * kPanelBytes),
        place(group % kInt4GroupsOfMultipliers) {}
};

/// For sum_beside_bytes().
struct Int4PanelWords {
  MHA_INLINE static ByteProducts::Vector load(const WeightStrip& g, Index word, Index column) {
    const Int4Group group(g, word / (kInt4GroupFeatures / 4));
    const auto words = [column](const std::byte* row)
                           MHA_INLINE_LAMBDA { return load_vector<Bits>(row + column * Index(sizeof(float))); };
    const Factors factors(multipliers_of(words(group.multipliers), group.place));
    const Bits codes = words(group.codes + word / 2 % kInt4RowsOfGroup * kPanelBytes) ^ kCodesFromZero;
    const Ints weights = int8_weights(codes >> int(word % 2 * 4), factors);
    return ByteProducts::load(reinterpret_cast<const std::int32_t*>(&weights));
  }
};

/// Groups of a strip that rows multiply, from `first` on. Their sums wait where the results go.
struct Int4Part {
  const WeightStrip* strip;
  Index first, groups;
  bool is_last;
  Index rows_ahead;  // how many rows of the panel later the rows lie that are prefetched
};

template <class, int M, int N>
struct Int4WeightsStrip {
  static void run(const Int4Part& part, Index row) {
    constexpr Index L = kLanes<float>;
    constexpr int kLines = N * kPacketBytes < kVectorBytes ? 1 : N * kPacketBytes / kVectorBytes;
    const WeightStrip& g = *part.strip;
    const ProjectionTile& tile = *g.tile;
    // The strips of rows share the lines of the cache that they prefetch of each row of the panel.
    Index ahead[kLines];
    const Index from = row * kLines / tile.rows, to = (row + M) * kLines / tile.rows;
    MHA_UNROLL
    for (int line = 0; line < kLines; ++line)
      ahead[line] = part.rows_ahead * kPanelBytes + (from + (to > from ? line % (to - from) : 0)) * kVectorBytes;
    const auto words_at = [&](const std::byte* at, int j) MHA_INLINE_LAMBDA {
      if (j * kPacketBytes % kVectorBytes == 0) __builtin_prefetch(at + ahead[j * kPacketBytes / kVectorBytes]);
      return load_vector<Bits>(at + Index{j} * kPacketBytes);
    };
    const auto out = [&](int i, int j) MHA_INLINE_LAMBDA { return g.out[j] + (row + i) * g.out_row; };
    const auto* x = static_cast<const unsigned char*>(tile.x) + row * tile.x_row +
                    part.first * kInt4GroupFeatures * ByteProducts::kFeatureBytes;
    const std::byte* panel = Int4Group(g, part.first).multipliers;
    Ints sums[M][N];
    MHA_UNROLL
    for (int i = 0; i < M; ++i) {
      MHA_UNROLL
      for (int j = 0; j < N; ++j) sums[i][j] = part.first == 0 ? Ints{} : load_vector<Ints>(out(i, j));
    }
    for (Index groups = part.groups; groups > 0; groups -= kInt4GroupsOfMultipliers) {
      const std::byte* const multipliers = panel;
      MHA_UNROLL
      for (int line = 0; line < kLines; ++line) __builtin_prefetch(panel + ahead[line]);
      panel += kPanelBytes;
      const Index end = groups < kInt4GroupsOfMultipliers ? groups : kInt4GroupsOfMultipliers;
      for (Index group = 0; group < end; ++group) {
        Ints of_group[M][N] = {};
        MHA_UNROLL
        for (Index word = 0; word < kInt4RowsOfGroup; ++word) {
          typename ByteProducts::Vector low[M], high[M];
          MHA_UNROLL
          for (int i = 0; i < M; ++i) {
            low[i] = ByteProducts::broadcast(x + i * tile.x_row);
            high[i] = ByteProducts::broadcast(x + i * tile.x_row + Index{4} * ByteProducts::kFeatureBytes);
          }
          MHA_UNROLL
          for (int j = 0; j < N; ++j) {
            const Codes codes = codes_of(words_at(panel, j));
            MHA_UNROLL
            for (int i = 0; i < M; ++i)
              of_group[i][j] = ByteProducts::multiply_add(
                  high[i], codes.high, ByteProducts::multiply_add(low[i], codes.low, of_group[i][j]));
          }
          panel += kPanelBytes;
          x += Index{8} * ByteProducts::kFeatureBytes;
        }
        asm("" ::: "memory");  // or the compiler reads multipliers once, and moves them to the stack
        MHA_UNROLL
        for (int j = 0; j < N; ++j) {
          const Ints multiplier = Ints(multipliers_of(load_vector<Bits>(multipliers + Index{j} * kPacketBytes), group));
          MHA_UNROLL
          for (int i = 0; i < M; ++i) sums[i][j] = add_group(sums[i][j], of_group[i][j], multiplier);
        }
      }
    }
    MHA_UNROLL
    for (int i = 0; i < M; ++i) {
      MHA_UNROLL
      for (int j = 0; j < N; ++j) {
        if (!ByteProducts::kHasOffset && part.is_last)
          pstoreu(out(i, j), scale_sums(g, row + i, j * L, sums[i][j]));
        else
          __builtin_memcpy(out(i, j), &sums[i][j], sizeof sums[i][j]);
      }
    }
    if constexpr (ByteProducts::kHasOffset)
      if (part.is_last) finish_rows_in_place<N, Int4PanelWords>(g, row, M);
  }
};

/// One strip of rows reads the panel once. Several ones read a block of it, one after the other, and prefetch the next.
template <class After>
MHA_INLINE void project_few_rows(int vectors, const WeightStrip& strip, After after) {
  static constexpr StripTable<Int4WeightsStrip, Int4Products, Int4Part, kVectors, kInt4RowVectors> strips;
  const ProjectionTile& tile = *strip.tile;
  const Index groups = int4_groups(tile.in_features);
  const bool is_one_strip = tile.rows <= Int4Products::Tile::kMostRows;
  const Index most = is_one_strip ? groups : kFewRowsFeatures / kInt4GroupFeatures;
  const Index ahead = is_one_strip ? kInt4RowsAhead : panel_rows(DType::f32, WeightFormat::int4, kFewRowsFeatures);
  for (Index first = 0; first < groups; first += most) {
    const Index rest = groups - first, count = rest < most ? rest : most;
    strips.run(vectors, tile.rows, {&strip, first, count, count == rest, ahead}, {}, nullptr,
               [&](Index row, Index rows) MHA_INLINE_LAMBDA {
                 if (count == rest) after(row, rows);
               });
  }
}

/// Turns `groups` groups of a strip into int8 weights: rows of kVectors vectors, `to_row` apart.
__attribute__((noinline)) void expand_groups(const WeightStrip& g, Index first, Index groups, std::int32_t* to,
                                             Index to_row) {
  for (Index i = first; i < first + groups; ++i) {
    const Int4Group group(g, i);
    MHA_UNROLL
    for (int j = 0; j < kVectors; ++j) {
      const Factors factors(
          multipliers_of(load_vector<Bits>(group.multipliers + Index{j} * kPacketBytes), group.place));
      MHA_UNROLL
      for (Index word = 0; word < kInt4RowsOfGroup; ++word) {
        const std::byte* const from = group.codes + Index{word} * kPanelBytes + Index{j} * kPacketBytes;
        if (j % (kVectorBytes / kPacketBytes) == 0) __builtin_prefetch(from + Index{kInt4RowsAhead} * kPanelBytes);
        const Bits codes = load_vector<Bits>(from) ^ kCodesFromZero;
        const Ints low = int8_weights(codes, factors), high = int8_weights(codes >> 4, factors);
        std::int32_t* const row = to + Index{2} * word * to_row + Index{j} * kLanes<float>;
        __builtin_memcpy(row, &low, sizeof low);
        __builtin_memcpy(row + to_row, &high, sizeof high);
      }
    }
    to += kInt4GroupFeatures / 4 * to_row;
  }
}

#ifdef MHA_TILES
/// Input features that become int8 weights at a time: all of them.
inline Index expanded_features(Index in_features) { return int4_groups(in_features) * kInt4GroupFeatures; }

template <class After>
MHA_INLINE void project_many_rows(const WeightStrip& strip, After after) {
  ProjectionTile tile = *strip.tile;
  auto* const weights = static_cast<std::int32_t*>(tile.expanded);
  constexpr Index kColumns = kPanelBytes / Index(sizeof(float));
  expand_groups(strip, 0, int4_groups(tile.in_features), weights + strip.column, kColumns);
  tile.panel = weights;
  WeightStrip expanded = strip;
  expanded.tile = &tile;
  TileStrips<Int8Tiles>::run(tile.rows, expanded, after);
}
#else
inline Index expanded_features(Index in_features) {
  const Index all = int4_groups(in_features) * kInt4GroupFeatures;
  return all < kExpandedFeatures ? all : kExpandedFeatures;
}

/// Features from `first` on of a strip, as int8 weights.
struct ExpandedStrip {
  const WeightStrip* strip;
  const std::int32_t* weights;
  Index first, words;
  bool is_last;
};

template <class, int M, int N>
struct ExpandedRows {
  static void run(const ExpandedStrip& block, Index row) {
    constexpr Index L = kLanes<float>;
    const WeightStrip& g = *block.strip;
    const ProjectionTile& tile = *g.tile;
    const auto at = [&](int i, int j) MHA_INLINE_LAMBDA { return g.out[j] + (row + i) * g.out_row; };
    const auto start = [&](int i, int j)
                           MHA_INLINE_LAMBDA { return block.first == 0 ? Ints{} : load_vector<Ints>(at(i, j)); };
    const auto finish = [&](int i, int j, const Ints& sums) MHA_INLINE_LAMBDA {
      if (!ByteProducts::kHasOffset && block.is_last)
        pstoreu(at(i, j), scale_sums(g, row + i, j * L, sums));
      else
        __builtin_memcpy(at(i, j), &sums, sizeof sums);
    };
    const auto* const x = static_cast<const unsigned char*>(tile.x) + row * tile.x_row;
    ByteProducts::Tile::multiply<M, N>(block.words, x + block.first * ByteProducts::kFeatureBytes, tile.x_row,
                                       Index{4} * ByteProducts::kFeatureBytes, block.weights, N * L, start, finish);
    if constexpr (ByteProducts::kHasOffset)
      if (block.is_last) finish_rows_in_place<N, Int4PanelWords>(g, row, M);
  }
};

template <class After>
MHA_INLINE void project_many_rows(const WeightStrip& strip, After after) {
  static constexpr StripTable<ExpandedRows, ByteProducts, ExpandedStrip, kVectors> strips;
  const ProjectionTile& tile = *strip.tile;
  auto* const weights = static_cast<std::int32_t*>(tile.expanded);
  for (Index first = 0; first < tile.in_features; first += kExpandedFeatures) {
    const Index rest = tile.in_features - first, features = rest < kExpandedFeatures ? rest : kExpandedFeatures;
    expand_groups(strip, first / kInt4GroupFeatures, int4_groups(features), weights, Index{kVectors} * kLanes<float>);
    const bool is_last = features == rest;
    const Index next_rows = panel_rows(DType::f32, WeightFormat::int4, features);
    const Upcoming next = {Int4Group(strip, first / kInt4GroupFeatures).multipliers + next_rows * kPanelBytes,
                           kPanelBytes, next_rows, Index{kVectors} * kPacketBytes};
    strips.run(kVectors, tile.rows, {&strip, weights, first, (features + 3) / 4, is_last}, next, nullptr,
               [&](Index row, Index rows) MHA_INLINE_LAMBDA {
                 if (is_last) after(row, rows);
               });
  }
}
#endif

/// Bytes of quantized rows, up to where int8 weights may begin.
inline std::size_t expanded_at(Index rows, Index in_features) {
  constexpr std::size_t kLine = kVectorBytes;
  return (quantized_bytes(rows, in_features) + kLine - 1) / kLine * kLine;
}
inline std::size_t int4_bytes(Index rows, Index in_features) {
  return expanded_at(rows, in_features) + std::size_t(expanded_features(in_features) / 4 * kPanelBytes);
}

inline void read_int4_rows(ProjectionTile& tile, void* memory) {
  quantize_rows(tile, memory);
  tile.expanded = static_cast<std::byte*>(memory) + expanded_at(tile.rows, tile.in_features);
}

inline void project_int4_weights(const ProjectionTile& tile, void* scratch) {
  prefetch_bias(tile, 3);
  project_narrow<kInt4RowVectors>(tile, scratch, [&](int vectors, const WeightStrip& strip, auto after) {
    if (tile.rows <= kFewInt4Rows)
      project_few_rows(vectors, strip, after);
    else
      project_many_rows(strip, after);
  });
}

}  // namespace
}  // namespace mha::MHA_ISA
