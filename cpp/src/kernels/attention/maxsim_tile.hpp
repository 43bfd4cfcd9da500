// Late interaction: for each token of some queries its largest product with the tokens of a document.
//
//   maxima[i] = max over tokens j of  q_i . d_j                      numbers
//   maxima[i] = max over tokens j of (q_i . d_j) (scale_i scale_j)   rows of int8
//
// The sum of the maxima of a query is its score in "ColBERT: Efficient and Effective Passage Search via Contextualized
// Late Interaction over BERT" (Khattab and Zaharia, 2020, section 3.3), where it is called MaxSim.
//
// Blocks. Query tokens are the lanes, packed once for many documents; document tokens are read by broadcast, 6 to 8 at
// a time. Products end in registers: a strip loads the running maxima of its lanes, takes the larger ones, and stores
// them. So no product is written to memory, and a query token costs one load and one store for each strip. Tiles write a
// block of 64 tokens to level 1, since their registers have no maximum.
//
// Traffic. Numbers of the accumulator's type are read where they lie. 16-bit elements that no instruction multiplies,
// and bytes, become operands 64 tokens at a time, in level 1, and are read there by all lanes. Every token of a document
// is read from memory once for all lanes of a call. With 32 query tokens of 128 features that is a multiply-add for each
// eighth of a byte, so that two cores of a Zen 5 wait for memory at f32: docs/decisions/0035. The next tokens are
// prefetched strip by strip.
//
// Numerics. A product is summed in the order of the features, in parts of kPartialSumTerms, as in attention. The largest
// one does not depend on the order of tokens. NaN in a product is the maximum. Sums of bytes are exact, and scaled by
// operations that are rounded one by one, so that all instruction sets give the same bits.
#pragma once

#include <type_traits>

#include "kernels/attention/pack_queries.hpp"
#include "kernels/attention/score_strips.hpp"
#include "kernels/kernel_table.hpp"
#include "kernels/products/byte_products.hpp"
#include "kernels/products/kinds.hpp"
#include "kernels/products/strips.hpp"

namespace mha::MHA_ISA {
namespace {

/// The larger number in each lane, and NaN where either is.
template <class P>
MHA_INLINE P larger(const P& a, const P& b) {
  return pmax<Eigen::PropagateNaN>(a, b);
}

/// Products of int8. Both operands are packed here, so that each may be widened, but once.
#if defined(MHA_VNNI) || defined(__ARM_FEATURE_DOTPROD) || defined(MHA_TILES)
using IntegerProducts = ByteProducts;
#else
using IntegerProducts = ShortProducts;
#endif

/// Tokens of a document against one panel of query tokens.
template <class Products, class T>
struct MaxSimArguments {
  Index depth;  // operands of a row
  const typename Products::Operand* tokens;
  Index token_row, token_step;  // operands between tokens, and between neighbours of a token
  const typename Products::PanelOperand* queries;
  T* maxima;                       // of each lane so far
  const float* token_scale;        // of each token; these four only of bytes
  Index token_scale_step;          // elements between neighbours
  const float* query_scale;        // of each lane
  const std::int32_t* query_sums;  // of each lane: minus the sum that the offset of token bytes adds
};

template <class Products, int M, int N>
struct MaxSimTokens {
  static void run(const MaxSimArguments<Products, typename Products::Sum>& g, Index token) {
    using T = typename Products::Sum;
    using P = Packet<T>;
    constexpr Index L = kLanes<T>;
    P highest[N];  // loaded after the products, which need all registers
    Products::Tile::template multiply_long<M, N>(
        g.depth, g.tokens + token * g.token_row, g.token_row, g.token_step, g.queries, kWidth<T>,
        [&](int i, int j, const P& s)
            MHA_INLINE_LAMBDA { highest[j] = larger(i == 0 ? pload<P>(g.maxima + j * L) : highest[j], s); });
    MHA_UNROLL
    for (int j = 0; j < N; ++j) pstore(g.maxima + j * L, highest[j]);
  }
};

template <int M, int N>
struct MaxSimTokens<IntegerProducts, M, N> {
  static void run(const MaxSimArguments<IntegerProducts, float>& g, Index token) {
    using P = Packet<float>;
    constexpr Index L = kLanes<float>;
    P highest[N];  // loaded after the products, which need all registers
    IntegerProducts::Tile::multiply<M, N>(
        g.depth, g.tokens + token * g.token_row, g.token_row, g.token_step, g.queries, kWidth<float>,
        [&](int, int j) MHA_INLINE_LAMBDA { return load_vector<Ints>(g.query_sums + j * L); },
        [&](int i, int j, const Ints& sums) MHA_INLINE_LAMBDA {
          const P scale =
              pmul(pset1<P>(g.token_scale[(token + i) * g.token_scale_step]), pload<P>(g.query_scale + j * L));
          const P before = i == 0 ? pload<P>(g.maxima + j * L) : highest[j];
          highest[j] = larger(before, pmul(P(__builtin_convertvector(sums, Floats)), scale));
        });
    MHA_UNROLL
    for (int j = 0; j < N; ++j) pstore(g.maxima + j * L, highest[j]);
  }
};

/// Tokens of a block of a document that become operands together, and how far ahead tokens are prefetched: 8 KiB with 128
/// features of f32. 64 tokens ahead they would be half of level 1, and gone again when they are read.
constexpr Index kMaxSimBlock = 64, kMaxSimAhead = 16;

constexpr Index vectors_of(Index lanes, Index lanes_of_vector) {
  return (lanes + lanes_of_vector - 1) / lanes_of_vector;
}

/// Rows of numbers. A panel is [operands of a row][kWidth].
template <class S>
struct MaxSimNumbers {
  using Operands = OperandsOf<S>;
  using Products = typename Operands::Products;
  using Operand = typename Operands::Operand;
  using T = Compute<S>;

  static std::size_t panel_bytes(Index columns) {
    return std::size_t(Operands::count(columns) * kWidth<T>) * sizeof(Operand);
  }
  static std::size_t token_bytes(Index columns) {  // of a block
    return std::size_t(kMaxSimBlock * operand_row<S>(columns)) * sizeof(Operand);
  }

  static void pack_panel(const TokenRows& rows, Index first, int count, Index columns, void* panel) {
    const void* tokens[kMaxTileRows];
    for (int r = 0; r < count; ++r) tokens[r] = static_cast<const S*>(rows.tokens) + (first + r) * rows.row;
    pack_rows<S, Operands, S>(tokens, count, columns, rows.step, static_cast<Operand*>(panel));
  }

  /// Operands of `count` tokens, and the distance between two: as they lie, or converted to `scratch`.
  static Rows<Operand> operands(const MaxSimTile& tile, Index first, Index count, void* scratch) {
    const auto* const from = static_cast<const S*>(tile.document.tokens) + first * tile.document.row;
    if (Operands::lie_ready(tile.document.row, tile.document.step, tile.columns))
      return {reinterpret_cast<const Operand*>(from), tile.document.row / Operands::kElements, tile.document.step};
    auto* const to = static_cast<Operand*>(scratch);
    const Index row = operand_row<S>(tile.columns);
    for (Index r = 0; r < count; ++r)
      convert_row<S>(from + r * tile.document.row, tile.document.step, tile.columns, to + r * row);
    return {to, row, 1};
  }

  static MaxSimArguments<Products, T> arguments(const MaxSimTile& tile, const Rows<Operand>& tokens, Index,
                                                const void* panel) {
    return {Operands::count(tile.columns),
            tokens.data,
            tokens.row,
            tokens.step,
            static_cast<const Operand*>(panel),
            nullptr,
            nullptr,
            0,
            nullptr,
            nullptr};
  }
};

/// Rows of int8. A panel is [operands of a row][kWidth], then the sums of the features times the offset, and the scales.
struct MaxSimBytes {
  using Products = IntegerProducts;
  using Operand = Products::Operand;
  using T = float;
  static constexpr Index W = kWidth<float>, kElements = Products::kElements;
  using Element = std::conditional_t<kElements == 4, std::int8_t, std::int16_t>;
  /// What operands() adds to a feature of a token, so that the products take it.
  static constexpr std::int32_t kOffset = ByteProducts::kHasOffset ? ByteProducts::kLeastByte + 128 : 0;
  static_assert(kOffset == 0 || kElements == 4);

  static constexpr Index operands_of_row(Index columns) { return (columns + kElements - 1) / kElements; }
  static constexpr Index row_bytes(Index columns) {  // of the operands of a token: whole vectors
    constexpr Index L = Index{kPacketBytes};
    return (operands_of_row(columns) * 4 + L - 1) / L * L;
  }
  static std::size_t panel_bytes(Index columns) { return std::size_t((operands_of_row(columns) + 2) * W) * 4; }
  static std::size_t token_bytes(Index columns) { return std::size_t(kMaxSimBlock * row_bytes(columns)); }

  static void pack_panel(const TokenRows& rows, Index first, int count, Index columns, void* panel) {
    auto* const to = static_cast<std::int32_t*>(panel);
    auto* const sums = to + operands_of_row(columns) * W;
    auto* const scales = reinterpret_cast<float*>(sums + W);
    for (Index lane = 0; lane < W; ++lane) {
      const Index token = first + (lane < count ? lane : count - 1);
      const auto* const from = static_cast<const std::int8_t*>(rows.tokens) + token * rows.row;
      std::int32_t sum = 0;
      for (Index u = 0; u < operands_of_row(columns); ++u) {
        Element operand[kElements] = {};
        for (Index c = 0; c < kElements && kElements * u + c < columns; ++c) {
          operand[c] = static_cast<Element>(+from[(kElements * u + c) * rows.step]);
          sum += operand[c];
        }
        __builtin_memcpy(to + u * W + lane, operand, sizeof operand);
      }
      sums[lane] = -kOffset * sum;
      scales[lane] = rows.scale[token * rows.scale_step];
    }
  }

  static Rows<Operand> operands(const MaxSimTile& tile, Index first, Index count, void* scratch) {
    const Index row = row_bytes(tile.columns);
    const TokenRows& document = tile.document;
    auto* to = static_cast<unsigned char*>(scratch);
    const auto* from = static_cast<const std::int8_t*>(document.tokens) + first * document.row;
    for (Index r = 0; r < count; ++r, from += document.row, to += row) convert(from, document.step, tile.columns, to);
    return {static_cast<const unsigned char*>(scratch), row, 4};
  }

  static MaxSimArguments<Products, float> arguments(const MaxSimTile& tile, const Rows<Operand>& tokens, Index first,
                                                    const void* panel) {
    const auto* const queries = static_cast<const std::int32_t*>(panel);
    const std::int32_t* const sums = queries + operands_of_row(tile.columns) * W;
    const TokenRows& document = tile.document;
    return {operands_of_row(tile.columns),
            tokens.data,
            tokens.row,
            tokens.step,
            queries,
            nullptr,
            document.scale + first * document.scale_step,
            document.scale_step,
            reinterpret_cast<const float*>(sums + W),
            sums};
  }

 private:
  static void convert(const std::int8_t* from, Index step, Index columns, unsigned char* to) {
    Index c = 0;
    if constexpr (kElements == 4) {
      constexpr Index L = Index{kPacketBytes};
      constexpr std::uint32_t kFlip = kOffset == 0 ? 0 : 0x80808080u;  // adding 128 to a byte inverts its highest bit
      if (step == 1)
        for (; c + L <= columns; c += L) {
          const Bits bytes = load_vector<Bits>(from + c) ^ kFlip;
          __builtin_memcpy(to + c, &bytes, sizeof bytes);
        }
      if (c == columns) return;
      for (; step == 1 && c + 8 <= columns; c += 8) {
        std::uint64_t bytes;
        __builtin_memcpy(&bytes, from + c, sizeof bytes);
        bytes ^= kFlip * std::uint64_t{0x100000001};
        __builtin_memcpy(to + c, &bytes, sizeof bytes);
      }
      for (; c < columns; ++c) to[c] = static_cast<unsigned char>(from[c * step] + kOffset);
      for (; c % 4 != 0; ++c) to[c] = static_cast<unsigned char>(kOffset);
    } else {
      using Bytes = std::int8_t __attribute__((vector_size(kPacketBytes / 2)));
      constexpr Index L = Index{kPacketBytes} / 2;
      if (step == 1)
        for (; c + L <= columns; c += L) {
          const Shorts shorts = __builtin_convertvector(load_vector<Bytes>(from + c), Shorts);
          __builtin_memcpy(to + 2 * c, &shorts, sizeof shorts);
        }
      for (; c < columns; ++c) {
        const auto one = static_cast<std::int16_t>(+from[c * step]);
        __builtin_memcpy(to + 2 * c, &one, sizeof one);
      }
      if (c % 2 != 0) __builtin_memset(to + 2 * c, 0, sizeof(std::int16_t));
    }
  }
};

#ifdef MHA_TILES
/// Tokens against lanes that fill tiles: products in `scratch`, then the largest of each lane.
inline void maxsim_by_tiles(const MaxSimArguments<TileProducts, float>& g, Index lanes, Index tokens, float* products) {
  using P = Packet<float>;
  constexpr Index L = kLanes<float>, W = kWidth<float>;
  const TileState state;
  const FewTileRows height(tokens);
  const ScoreArguments<TileProducts> scores{g.depth, g.tokens, g.token_row, 1, g.queries, products, nullptr};
  for (Index lane = 0; lane < lanes; lane += kBlockColumns)
    multiply_tiles<PairInstruction>(score_block(scores, tokens, lane, lanes - lane), Upcoming{});
  for (Index lane = 0; lane < lanes; lane += L) {
    P highest = pload<P>(g.maxima + lane);
    for (Index r = 0; r < tokens; ++r) highest = larger(highest, pload<P>(products + r * W + lane));
    pstore(g.maxima + lane, highest);
  }
}
#endif

/// The operands of a block of tokens and, for tiles, its products.
template <class Form>
std::size_t maxsim_scratch(Index columns) {
  constexpr bool kHasProducts = kHasTiles<typename Form::Products>;
  return Form::token_bytes(columns) + (kHasProducts ? std::size_t(kMaxSimBlock * kWidth<float>) * sizeof(float) : 0);
}

/// The kernel: raises tile.maxima.
template <class Form>
void maxsim_tile(const MaxSimTile& tile, void* scratch) {
  using Products = typename Form::Products;
  using T = typename Form::T;
  constexpr Index L = kLanes<T>, W = kWidth<T>;
  static constexpr StripTable<MaxSimTokens, Products, MaxSimArguments<Products, T>> strips;
  const std::size_t panel_bytes = Form::panel_bytes(tile.columns);
  for (Index first = 0; first < tile.tokens; first += kMaxSimBlock) {
    const Index count = tile.tokens - first < kMaxSimBlock ? tile.tokens - first : kMaxSimBlock;
    const auto tokens = Form::operands(tile, first, count, scratch);
    // Tokens to prefetch: the next ones in memory, of this document or of the next document.
    const Upcoming upcoming{static_cast<const char*>(tile.document.tokens) +
                                (first + kMaxSimAhead) * tile.document.row * tile.document.element_bytes,
                            tile.document.row * tile.document.element_bytes, count,
                            tile.document.step == 1 ? tile.columns * tile.document.element_bytes : 0};
    for (Index lane = 0; lane < tile.lanes; lane += W) {
      auto arguments = Form::arguments(tile, tokens, first,
                                       static_cast<const char*>(tile.panels) + std::size_t(lane / W) * panel_bytes);
      arguments.maxima = static_cast<T*>(tile.maxima) + lane;
      const Index lanes = tile.lanes - lane < W ? tile.lanes - lane : W;
      const int vectors = int(vectors_of(lanes, L));
#ifdef MHA_TILES
      if constexpr (kHasTiles<Products>)
        if (const Index filled = vectors * L; kVectorsFillTiles || fill_tiles(0, filled)) {
          maxsim_by_tiles(arguments, filled, count,
                          reinterpret_cast<float*>(static_cast<char*>(scratch) + Form::token_bytes(tile.columns)));
          continue;
        }
#endif
      if constexpr (!kHasTiles<Products> || !kVectorsFillTiles)
        strips(vectors, count, arguments, lane == 0 ? upcoming : Upcoming{});
    }
  }
}

template <class Form>
void pack_maxsim(const TokenRows& queries, Index first, Index count, Index columns, void* panels) {
  constexpr Index W = kWidth<typename Form::T>;
  for (Index lane = 0; lane < count; lane += W)
    Form::pack_panel(queries, first + lane, int(count - lane < W ? count - lane : W), columns,
                     static_cast<char*>(panels) + std::size_t(lane / W) * Form::panel_bytes(columns));
}

template <class Form>
constexpr MaxSimKernel maxsim_kernel() {
  return {int(kWidth<typename Form::T>), &Form::panel_bytes, &pack_maxsim<Form>, &maxsim_scratch<Form>,
          &maxsim_tile<Form>};
}

}  // namespace
}  // namespace mha::MHA_ISA
