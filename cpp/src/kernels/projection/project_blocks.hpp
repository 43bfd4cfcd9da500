// Projections of rows that are quantized block by block (quantize_blocks.hpp) with weights in the blocks of GGUF files:
// exact sums of integers in each block, which are scaled and added up in f32, in the order of the blocks.
//
// With d, m: scale and offset of a block of weights; s_p, m_p: small scale and offset of a part of it; x: scale of the
// block of the row; S, S_p: sums of products of integers; X, X_p: sums of the integers of the row.
//
//   blocks of 32    out += S * (d * x), and for offsets out += m * (x * X)
//   blocks of 256   out += (sum of s_p S_p) * (d * x), and for offsets out -= (sum of m_p X_p) * (m * x)
//
// Numerics: sums are exact, and each operation on f32 is rounded by itself, in this order, whatever rows are computed
// together: all instruction sets give the same bits.
#pragma once

#include "kernels/products/block_products.hpp"
#include "kernels/projection/quantize_blocks.hpp"
#include "kernels/projection/rows_ahead.hpp"
#include "kernels/rows/activate.hpp"

namespace mha::MHA_ISA {
namespace {

/// How a format of blocks is multiplied: its codes, and the weight that code 0 stands for, before scales.
template <WeightFormat kFormat>
struct BlockFormat;
template <>
struct BlockFormat<WeightFormat::q4_0> {
  using Codes = NibbleCodes;
  static constexpr std::int32_t kOffset = 8;
};
template <>
struct BlockFormat<WeightFormat::q4_1> {
  using Codes = NibbleCodes;
  static constexpr std::int32_t kOffset = 0;
};
template <>
struct BlockFormat<WeightFormat::q5_0> {
  using Codes = HighBitCodes<1>;
  static constexpr std::int32_t kOffset = 16;
};
template <>
struct BlockFormat<WeightFormat::q5_1> {
  using Codes = HighBitCodes<1>;
  static constexpr std::int32_t kOffset = 0;
};
template <>
struct BlockFormat<WeightFormat::q8_0> {
  using Codes = ByteCodes;
  static constexpr std::int32_t kOffset = kByteOffset;
};
template <>
struct BlockFormat<WeightFormat::iq4_nl> {
  using Codes = TableCodes<Iq4NlTable>;
  static constexpr std::int32_t kOffset = Iq4NlTable::kOffset;
};
template <>
struct BlockFormat<WeightFormat::mxfp4> {
  using Codes = TableCodes<Mxfp4Table>;
  static constexpr std::int32_t kOffset = Mxfp4Table::kOffset;
};
template <>
struct BlockFormat<WeightFormat::q4_k> {
  using Codes = NibbleCodes;
  static constexpr std::int32_t kOffset = 0;
};
template <>
struct BlockFormat<WeightFormat::q5_k> {
  using Codes = HighBitCodes<1>;
  static constexpr std::int32_t kOffset = 0;
};
template <>
struct BlockFormat<WeightFormat::q6_k> {
  using Codes = HighBitCodes<2>;
  static constexpr std::int32_t kOffset = 32;
};

/// Some rows times a panel.
struct BlockStrip {
  const ProjectionTile* tile;
  float* out[kPanelBytes / kVectorBytes];  // of columns as wide as the widest vector
  Index out_row;
  Index ahead;  // how many bytes before they are read a panel is prefetched; 0: it is not

  float* at(Index row, Index column) const {
    constexpr Index kGroup = kVectorBytes / Index(sizeof(float));
    return out[column / kGroup] + row * out_row + column % kGroup;
  }
  MHA_INLINE void prefetch(const unsigned char* from, Index bytes) const {
    if (ahead == 0) return;
    for (Index i = 0; i < bytes; i += 64) __builtin_prefetch(from + ahead + i);
  }
};

MHA_INLINE Ints broadcast_word(const void* four) {
  std::int32_t word;
  __builtin_memcpy(&word, four, sizeof word);
  return Ints{} + word;
}

/// The bytes of M rows. Three rows share a base, at which addresses with one or two times the distance of rows begin: the
/// compiler would give each row a register.
template <int M>
struct RowBytes {
  static constexpr int kBases = (M + 2) / 3;
  const unsigned char* bases[kBases];
  Index row;

  MHA_INLINE RowBytes(const void* first, Index row_bytes) : row(row_bytes) {
    const unsigned char* base = static_cast<const unsigned char*>(first);
    MHA_UNROLL
    for (int b = 0; b < kBases; ++b, base += 3 * row) {
      bases[b] = base;
      asm("" : "+r"(bases[b]));
    }
  }
  MHA_INLINE const unsigned char* at(int i) const { return bases[i / 3] + i % 3 * row; }
};

template <class Sums, int M, int N>
MHA_INLINE void start_parts(Sums (&sums)[M][N]) {
  MHA_UNROLL
  for (int i = 0; i < M; ++i) {
    MHA_UNROLL
    for (int j = 0; j < N; ++j) sums[i][j].start_part();
  }
}
template <class Sums, int M, int N>
MHA_INLINE void end_parts(Sums (&sums)[M][N]) {
  MHA_UNROLL
  for (int i = 0; i < M; ++i) {
    MHA_UNROLL
    for (int j = 0; j < N; ++j) sums[i][j].end_part();
  }
}

/// M rows of N vectors of columns: adds the products of the 16 features of a half of kCodeFeatures, which are at `at` in the
/// rows.
template <class Codes, int M, int N>
MHA_INLINE void add_half(const unsigned char* codes, int half, const RowBytes<M>& x, Index at,
                         CodeSums<Codes::kMostCode> (&sums)[M][N]) {
  MHA_UNROLL
  for (int pair = 0; pair < 2; ++pair) {
    Bits low[N], high[N];
    MHA_UNROLL
    for (int j = 0; j < N; ++j) Codes::load(codes + Index{j} * kPacketBytes, half, pair, low + j, high + j);
    if constexpr (!CodeSums<Codes::kMostCode>::kTakesHalf) start_parts(sums);
    MHA_UNROLL
    for (int i = 0; i < M; ++i) {
      const Ints first = broadcast_word(x.at(i) + at + 8 * pair);
      MHA_UNROLL
      for (int j = 0; j < N; ++j) sums[i][j].add(Ints(low[j]), first);
    }
    MHA_UNROLL
    for (int i = 0; i < M; ++i) {
      const Ints last = broadcast_word(x.at(i) + at + 8 * pair + 4);
      MHA_UNROLL
      for (int j = 0; j < N; ++j) sums[i][j].add(Ints(high[j]), last);
    }
    if constexpr (!CodeSums<Codes::kMostCode>::kTakesHalf) end_parts(sums);
  }
}

/// The same of all kCodeFeatures. A loop over the halves: its code would be as long again for a hundredth of the time.
template <class Codes, int M, int N>
MHA_INLINE void add_codes(const unsigned char* codes, const RowBytes<M>& x, Index at,
                          CodeSums<Codes::kMostCode> (&sums)[M][N]) {
  using Sums = CodeSums<Codes::kMostCode>;
  if constexpr (Sums::kTakesAll) start_parts(sums);
#pragma GCC unroll 1
  for (int half = 0; half < 2; ++half) {
    if constexpr (!Sums::kTakesAll && Sums::kTakesHalf) start_parts(sums);
    add_half<Codes>(codes, half, x, at + Index{16} * half, sums);
    if constexpr (!Sums::kTakesAll && Sums::kTakesHalf) end_parts(sums);
  }
  if constexpr (Sums::kTakesAll) end_parts(sums);
}

MHA_INLINE Floats load_halves(const unsigned char* from) {
  return Floats(load_packet(reinterpret_cast<const Float16*>(from)));
}
MHA_INLINE Floats in_floats(const Ints& integers) { return __builtin_convertvector(integers, Floats); }

/// The scales of blocks of 32, at a vector of columns.
template <WeightFormat kFormat>
MHA_INLINE Floats load_scales(const unsigned char* unit, Index column) {
  constexpr BlockPanel kPanel = block_panel(kFormat);
  if constexpr (kPanel.numbers > 0)
    return load_halves(unit + kPanel.numbers_at() + 2 * column);
  else {  // 2^(exponent - 128): the exponents of f32, but for two numbers that are subnormal there
    const Bits exponents = Bits(load_signed_bytes(unit + kPanel.bytes_at() + column)) & 0xff;
    const Bits small = Bits(exponents < 2), subnormal = 0x00200000u << (exponents & 1);
    return Floats((small & subnormal) | (~small & (exponents - 1) << 23));
  }
}

template <WeightFormat kFormat, int M, int N>
struct BlockRows {
  using Format = BlockFormat<kFormat>;
  using Codes = typename Format::Codes;
  static constexpr BlockPanel kPanel = block_panel(kFormat);
  static constexpr int kFeatures = int(kPanel.features), kPasses = int(kPanelColumns) / (N * kLanes<float>);
  using Sums = CodeSums<Codes::kMostCode>[M][N];
  using Results = Floats[M][N];

  static void run(const BlockStrip& strip, Index row) {
    constexpr Index L = kLanes<float>;
    const ProjectionTile& tile = *strip.tile;
    const auto* unit = static_cast<const unsigned char*>(tile.panel);
    const RowBytes<M> x(static_cast<const unsigned char*>(tile.x) + row * tile.x_row, tile.x_row);
    Results results[kPasses] = {};
    Index block = tile.in_features;  // where in a row
    for (Index k = 0; k < tile.in_features; k += kFeatures, unit += kPanel.size(), block += sizeof(Block)) {
      if constexpr (kFeatures == 32) strip.prefetch(unit, kPanel.size());
      for (int pass = 0; pass < kPasses; ++pass) {
        // Words of rows are broadcast anew: the compiler would keep those of the first pass, in memory.
        if constexpr (kPasses > 1) asm volatile("" ::: "memory");
        if constexpr (kFeatures == 32)
          add_block(unit, Index{pass} * N * L, x, k, block, results[pass]);
        else
          add_parts(strip, unit, Index{pass} * N * L, x, k, block, results[pass]);
      }
    }
    const float* const bias = static_cast<const float*>(tile.bias);
    MHA_UNROLL
    for (int i = 0; i < M; ++i)
      for (int pass = 0; pass < kPasses; ++pass) {
        MHA_UNROLL
        for (int j = 0; j < N; ++j) {
          const Index column = (pass * N + j) * L;
          const Floats result = results[pass][i][j] + load_vector<Floats>(bias + column);
          __builtin_memcpy(strip.at(row + i, column), &result, sizeof result);
        }
      }
  }

 private:
  using Block = RowBlock<kFeatures>;
  /// The block of row i that lies at `block`.
  MHA_INLINE static const Block& of_row(const RowBytes<M>& x, Index block, int i) {
    return *reinterpret_cast<const Block*>(x.at(i) + block);
  }

  MHA_INLINE static void add_block(const unsigned char* unit, Index column, const RowBytes<M>& x, Index k, Index block,
                                   Results& results) {
    Sums sums;
    MHA_UNROLL
    for (int i = 0; i < M; ++i) {
      MHA_UNROLL
      for (int j = 0; j < N; ++j) sums[i][j].start(-Format::kOffset * of_row(x, block, i).sum);
    }
    add_codes<Codes>(unit + 4 * column, x, k, sums);
    Floats scales[N];
    MHA_UNROLL
    for (int j = 0; j < N; ++j) scales[j] = load_scales<kFormat>(unit, column + Index{j} * kLanes<float>);
    MHA_UNROLL
    for (int i = 0; i < M; ++i) {
      MHA_UNROLL
      for (int j = 0; j < N; ++j)
        results[i][j] += in_floats(sums[i][j].total) * (scales[j] * of_row(x, block, i).scale);
    }
    if constexpr (kPanel.numbers > 1) {
      MHA_UNROLL
      for (int j = 0; j < N; ++j)
        scales[j] = load_halves(unit + kPanel.numbers_at() + 2 * (kPanelColumns + column + Index{j} * kLanes<float>));
      MHA_UNROLL
      for (int i = 0; i < M; ++i) {
        MHA_UNROLL
        for (int j = 0; j < N; ++j) results[i][j] += scales[j] * of_row(x, block, i).scaled_sum;
      }
    }
  }

  /// Of a block of 256 features, in parts of 32 or 16 with small scales.
  MHA_INLINE static void add_parts(const BlockStrip& strip, const unsigned char* unit, Index column,
                                   const RowBytes<M>& x, Index k, Index block, Results& results) {
    constexpr Index L = kLanes<float>;
    constexpr int kPartsOfChunk = kFormat == WeightFormat::q6_k ? 2 : 1;
    const unsigned char* small = unit + kPanel.bytes_at() + column;
    constexpr Index kChunks = kPanel.features / kCodeFeatures, kShare = kPanel.size() / kChunks;  // of the panel
    Ints totals[M][N] = {};
    const unsigned char* codes = unit + 4 * column;
    for (Index chunk = 0; chunk < kChunks; ++chunk) {
      if (column == 0) strip.prefetch(unit + chunk * kShare, kShare);
#pragma GCC unroll 1
      for (int part = 0; part < kPartsOfChunk; ++part) {
        Sums sums;
        MHA_UNROLL
        for (int i = 0; i < M; ++i) {
          const std::int32_t first =
              Format::kOffset == 0 ? 0 : -Format::kOffset * of_row(x, block, i).sums_of_16[2 * chunk + part];
          MHA_UNROLL
          for (int j = 0; j < N; ++j) sums[i][j].start(first);
        }
        if constexpr (kPartsOfChunk == 1) {
          add_codes<Codes>(codes, x, k, sums);
        } else {
          if constexpr (CodeSums<Codes::kMostCode>::kTakesHalf) start_parts(sums);
          add_half<Codes>(codes, part, x, k + Index{16} * part, sums);
          if constexpr (CodeSums<Codes::kMostCode>::kTakesHalf) end_parts(sums);
        }
        MHA_UNROLL
        for (int j = 0; j < N; ++j) {
          const Ints scale = load_signed_bytes(small + j * L);
          MHA_UNROLL
          for (int i = 0; i < M; ++i) totals[i][j] += sums[i][j].total * scale;
        }
        small += kPanelColumns;
      }
      codes += kPanel.code_bytes();
      k += kCodeFeatures;
    }
    MHA_UNROLL
    for (int j = 0; j < N; ++j) {
      const Floats scale = load_halves(unit + kPanel.numbers_at() + 2 * (column + j * L));
      MHA_UNROLL
      for (int i = 0; i < M; ++i) results[i][j] += in_floats(totals[i][j]) * (scale * of_row(x, block, i).scale);
    }
    if constexpr (kPanel.numbers > 1) subtract_offsets(unit, column, x, block, results);
  }

  MHA_INLINE static void subtract_offsets(const unsigned char* unit, Index column, const RowBytes<M>& x, Index block,
                                          Results& results) {
    constexpr Index L = kLanes<float>;
    const unsigned char* const pairs = unit + kPanel.bytes_at() + 8 * kPanelColumns + 2 * column;
    MHA_UNROLL
    for (int j = 0; j < N; ++j) {
      Shorts offsets[4];
      MHA_UNROLL
      for (int p = 0; p < 4; ++p)
        offsets[p] = load_pairs_of_bytes(pairs + Index{2} * p * kPanelColumns + Index{2} * j * L);
      const Floats least = load_halves(unit + kPanel.numbers_at() + 2 * (kPanelColumns + column + j * L));
      MHA_UNROLL
      for (int i = 0; i < M; ++i) {
        const auto& of_block = of_row(x, block, i);
        Ints sum = {};
        MHA_UNROLL
        for (int p = 0; p < 4; ++p)
          sum += multiply_pairs(offsets[p], Shorts(broadcast_word(of_block.sums_of_32 + 2 * p)));
        results[i][j] -= in_floats(sum) * (least * of_block.scale);
      }
    }
  }
};

/// Strips have 4, 2 or 1 rows. With 4 x 4 vectors of sums 128 rows take 0.69 of the peak of VPDPBUSD on Zen 5 (q4_0), with
/// 8 x 2 vectors 0.66, for twice the code.
using BlockStripFunction = void (*)(const BlockStrip&, Index first_row);
struct BlockStrips {
  BlockStripFunction four, two, one;
};

/// Bytes of a panel that the first strip of rows prefetches before it reads them. The others find it in level 2.
constexpr Index kBlockBytesAhead = 8192;

/// Computes all rows of a tile, strip by strip.
inline void project_strips(const ProjectionTile& tile, void* scratch, const BlockStrips& strips) {
  prefetch_bias(tile, 1);
  constexpr Index L = kLanes<float>, kGroup = kVectorBytes / Index(sizeof(float)), kGroups = kPanelColumns / kGroup;
  bool is_direct = tile.out_step == 1;
  for (Index g = 0; g < kGroups; ++g) is_direct = is_direct && tile.group_columns[g] == kGroup;
  float* const staged = static_cast<float*>(scratch);
  BlockStrip strip{&tile, {}, is_direct ? tile.out_row : kPanelColumns, kBlockBytesAhead};
  for (Index g = 0; g < kGroups; ++g) strip.out[g] = is_direct ? static_cast<float*>(tile.out[g]) : staged + g * kGroup;
  float* columns[kPanelColumns / L];
  for (Index c = 0; c < kPanelColumns; c += L) columns[c / L] = strip.at(0, c);
  for (Index row = 0, height; row < tile.rows; row += height) {
    const Index left = tile.rows - row;
    height = left >= 4 ? 4 : left >= 2 ? 2 : 1;
    (height == 4 ? strips.four : height == 2 ? strips.two : strips.one)(strip, row);
    activate<float>(tile.activation, columns, int(kPanelColumns / L), row, height, strip.out_row);
    strip.ahead = 0;
  }
  if (is_direct) return;
  for (Index g = 0; g < kGroups; ++g)
    for (Index r = 0; r < tile.rows; ++r) {
      const float* const from = staged + r * kPanelColumns + g * kGroup;
      float* const to = static_cast<float*>(tile.out[g]) + r * tile.out_row;
      for (Index c = 0; c < tile.group_columns[g]; ++c) to[c * tile.out_step] = from[c];
    }
}

template <WeightFormat kFormat>
void project_blocks(const ProjectionTile& tile, void* scratch) {
  static constexpr BlockStrips kStrips = {&BlockRows<kFormat, 4, kVectors>::run, &BlockRows<kFormat, 2, kVectors>::run,
                                          &BlockRows<kFormat, 1, kVectors>::run};
  project_strips(tile, scratch, kStrips);
}

}  // namespace
}  // namespace mha::MHA_ISA
