// Projections of f32 rows with f32 weights by tiles of bf16: WeightFormat::bf16x3.
//
// An f32 is exactly the sum of three bf16, x = x0 + x1 + x2, each the nearest to the remainder of the ones before, and
//
//   x w  =  x0 w0  +  (x0 w1 + x1 w0)  +  (x0 w2 + x1 w1 + x2 w0)  +  2^-24 |x w| at most.
//
// Panels have f32 weights. This kernel splits them, 128 features at a time, for all rows of a call. So weights take
// four bytes in memory, not six, and parts lie densely in the nearest caches.
//
// Numerics: the six products of kPartsDepth features are summed in tiles, the smallest ones first; their sums are added
// up in f32 over kDepth features, and the totals to the bias. A row that holds a number which is neither 0 nor in
// [2^-64, 2^64) is multiplied in f32, and so are all rows by a panel with a weight that is neither 0 nor in
// [2^-36, 2^36). Within, parts are 0 or normal, products of first parts have 26 bits to spare, and no sum overflows:
// nothing is flushed that would count. Infinities, NaN and subnormal numbers are outside.
#pragma once

#include "kernels/products/tile_blocks.hpp"
#include "kernels/projection/project_staged.hpp"
#include "kernels/projection/project_tile.hpp"
#include "kernels/projection/weight_strips.hpp"

#ifdef MHA_TILES

namespace mha::MHA_ISA {
namespace {

constexpr int kParts = 3;
/// Features that are summed together. Parts of 32 rows and 32 columns take 24 KB each.
constexpr Index kPartsDepth = 128;
static_assert(kDepth % kPartsDepth == 0);

/// Whether all numbers so far are 0 or have a magnitude in [2^kLow, 2^kHigh).
template <int kLow, int kHigh>
class NumbersInRange {
 public:
  MHA_INLINE void add(const Floats& numbers) {
    constexpr std::uint32_t kFirst = std::uint32_t(127 + kLow) << 23, kCount = std::uint32_t(kHigh - kLow) << 23;
    const Bits size = Bits(numbers) & 0x7fffffff;
    outside_ |= Ints(size - kFirst >= kCount) & Ints(size != 0);
  }
  bool holds() const {
    std::int32_t any = 0;
    for (int i = 0; i < kLanes<float>; ++i) any |= outside_[i];
    return any == 0;
  }

 private:
  Ints outside_ = {};
};
using RowNumbers = NumbersInRange<-64, 64>;
using WeightNumbers = NumbersInRange<-36, 36>;

/// Calls visit(part, numbers of bf16 in the upper halves of words) for the parts of a vector. The last one is the
/// remainder, 8 bits. Ties are rounded up in magnitude, which is a sum and a mask.
template <class Visit>
MHA_INLINE void for_each_part(Floats left, Visit visit) {
  MHA_UNROLL
  for (int i = 0; i < kParts; ++i) {
    const Bits part = i < kParts - 1 ? (Bits(left) + 0x8000u) & 0xffff0000u : Bits(left);
    visit(i, part);
    left -= Floats(part);
  }
}

/// Rows as they are read.
struct SplitRows {
  const float* x;  // as they were given
  Index x_row, x_step;
  float* sums;      // [rows][columns of a strip]: of the blocks so far
  BFloat16* parts;  // [rows][kParts][part]
  Index part;       // features, filled up with zeros to rows of tiles
  bool* are_split;  // [rows]: others are multiplied in f32, and have no parts that mean anything
  bool any;
};

inline Index features_of_part(Index in_features) {
  return (in_features + kTileElements - 1) / kTileElements * kTileElements;
}

/// Bytes of SplitRows and of the memory that it points to.
inline std::size_t split_bytes(Index rows, Index in_features) {
  const Index row = kParts * features_of_part(in_features) * Index(sizeof(BFloat16));
  return std::size_t(kVectorBytes + rows * (kPanelBytes + row + Index(sizeof(bool))));
}

inline void split_rows(ProjectionTile& tile, void* memory) {
  static_assert(sizeof(SplitRows) <= kVectorBytes);
  constexpr Index L = kLanes<float>;
  auto* const rows = static_cast<SplitRows*>(memory);
  auto* const sums = reinterpret_cast<float*>(static_cast<std::byte*>(memory) + kVectorBytes);
  auto* const parts = reinterpret_cast<BFloat16*>(sums + tile.rows * (kPanelBytes / 4));
  const Index part = features_of_part(tile.in_features), written = (tile.in_features + L - 1) / L * L;
  auto* const are_split = reinterpret_cast<bool*>(parts + tile.rows * kParts * part);
  *rows = {static_cast<const float*>(tile.x), tile.x_row, tile.x_step, sums, parts, part, are_split, false};
  for (Index r = 0; r < tile.rows; ++r) {
    BFloat16* const to = parts + r * kParts * part;
    RowNumbers numbers;
    for_each_vector_of_row(
        rows->x + r * rows->x_row, rows->x_step, tile.in_features, [&](Index k, const Floats& left) MHA_INLINE_LAMBDA {
          numbers.add(left);
          for_each_part(left,
                        [&](int i, const Bits& bits) MHA_INLINE_LAMBDA { store_words(to + i * part + k, bits >> 16); });
        });
    for (int i = 0; i < kParts; ++i)
      __builtin_memset(to + i * part + written, 0, std::size_t(part - written) * sizeof(BFloat16));
    are_split[r] = numbers.holds();
    rows->any |= are_split[r];
  }
  tile.x = rows;
}

/// The parts of a block of a panel, as second factors of tiles: pairs of features, 32 columns side by side.
struct PanelParts {
  static constexpr Index kColumns = 2 * kTileColumns, kPairs = kPartsDepth / 2;
  alignas(kVectorBytes) std::uint32_t words[kParts][kPanelBytes / 4 / kColumns][kPairs][kColumns];

  /// Splits `depth` rows of `columns` numbers, kPanelBytes apart; zeros follow, up to whole tiles. False if a number
  /// cannot be split: then they are undefined.
  bool split(const float* panel, Index depth, Index columns) {
    constexpr Index L = kLanes<float>;
    const auto row = [&](Index k, Index column) MHA_INLINE_LAMBDA {
      return k < depth ? load_vector<Floats>(panel + k * (kPanelBytes / 4) + column) : Floats{};
    };
    WeightNumbers numbers;
    for (Index k = 0; k < features_of_part(depth); k += 2)
      for (Index column = 0; column < columns; column += L) {
        const Floats first = row(k, column), second = row(k + 1, column);
        numbers.add(first);
        numbers.add(second);
        Bits lower[kParts];
        for_each_part(first, [&](int i, const Bits& part) MHA_INLINE_LAMBDA { lower[i] = part >> 16; });
        for_each_part(second, [&](int i, const Bits& part) MHA_INLINE_LAMBDA {
          const Bits pairs = lower[i] | part;
          __builtin_memcpy(&words[i][column / kColumns][k / 2][column % kColumns], &pairs, sizeof pairs);
        });
      }
    return numbers.holds();
  }
};

/// The sums of `columns` columns of `tiles` over a block, the products of the smallest parts first.
inline void multiply_parts(const SplitRows& rows, const TileRows& tiles, Index block, Index depth,
                           const PanelParts& panel, Index columns, float* sums) {
  constexpr struct {
    int x, w;
  } kProducts[] = {{2, 0}, {1, 1}, {0, 2}, {1, 0}, {0, 1}, {0, 0}};
  const Index row = kParts * rows.part;
  for (Index column = 0; column < columns; column += PanelParts::kColumns)
    for (const auto& product : kProducts) {
      const BFloat16* const x = rows.parts + tiles.begin() * row + product.x * rows.part + block;
      multiply_tiles<PairInstruction>({x, row * Index(sizeof(BFloat16)), tiles.end() - tiles.begin(),
                                       panel.words[product.w][column / PanelParts::kColumns],
                                       sizeof panel.words[0][0][0], sums + column, kPanelBytes,
                                       features_of_part(depth) / kTileElements, column + kTileColumns < columns,
                                       &product != kProducts});
    }
}

/// Adds the sums of row r over the block at feature `block`, n vectors, to the sums of the blocks before it: in
/// rows.sums, and at the end of kDepth features or of all of them, to the row in g.out, which begins with the bias.
MHA_INLINE void add_block(int n, const WeightStrip& g, const SplitRows& rows, Index r, Index block, const float* sums) {
  using P = Packet<float>;
  constexpr Index L = kLanes<float>, kColumns = kPanelBytes / 4;
  const Index end = block + kPartsDepth;
  const bool goes_on = end < g.tile->in_features && end % kDepth > 0;
  for (Index j = 0; j < n; ++j) {
    float* const out = g.out[j] + r * g.out_row;
    float* const part = rows.sums + r * kColumns + j * L;
    P sum = pload<P>(sums + j * L);
    if (block % kDepth > 0) sum = padd(pload<P>(part), sum);
    if (goes_on) {
      pstore(part, sum);
      continue;
    }
    const P before = block < kDepth ? pload<P>(g.row_of_columns(g.tile->bias, 0) + j * L) : ploadu<P>(out);
    pstoreu(out, padd(before, sum));
  }
}

/// All rows times a strip of n vectors of columns; false if its weights cannot be split.
__attribute__((noinline)) bool multiply_split(int n, const WeightStrip& g, const SplitRows& rows) {
  constexpr Index L = kLanes<float>, kColumns = kPanelBytes / 4;
  PanelParts panel;
  alignas(kVectorBytes) float sums[kBlockRows * kColumns];
  for (Index block = 0; block < g.tile->in_features; block += kPartsDepth) {
    const Index left = g.tile->in_features - block, depth = left < kPartsDepth ? left : kPartsDepth;
    if (!panel.split(g.row_of_columns(g.tile->panel, block), depth, n * L)) return false;
    for (Index done = 0; done < g.tile->rows;) {  // the next tiles may begin before it: sums are added once
      const TileRows tiles(done, g.tile->rows);
      multiply_parts(rows, tiles, block, depth, panel, n * L, sums);
      for (; done < tiles.end(); ++done) add_block(n, g, rows, done, block, sums + (done - tiles.begin()) * kColumns);
    }
  }
  return true;
}

/// `kPlain` projects in f32: rows that are not split, or all of them if the panel is not.
template <ProjectPanel kPlain>
void project_parts(const ProjectionTile& tile, void* scratch) {
  const SplitRows& rows = *static_cast<const SplitRows*>(tile.x);
  bool by_tiles = rows.any;
  if (by_tiles) {
    const TileState state(tile.rows);
    project_narrow(tile, scratch, [&](int vectors, const WeightStrip& strip, auto after) {
      by_tiles = by_tiles && multiply_split(vectors, strip, rows);
      if (by_tiles) after(Index{0}, tile.rows);
    });
  }
  const auto is_done = [&](Index r) { return by_tiles && rows.are_split[r]; };
  for (Index first = 0, end; first < tile.rows; first = end) {
    for (end = first + 1; end < tile.rows && is_done(end) == is_done(first);) ++end;
    if (is_done(first)) continue;
    ProjectionTile rest = tile;
    rest.rows = end - first;
    rest.x = rows.x + first * rows.x_row;
    rest.x_row = rows.x_row;
    rest.x_step = rows.x_step;
    rest.gate_panel = nullptr;  // project_staged() multiplies
    for (Index g = 0; g < kPanelBytes / kVectorBytes; ++g)
      if (tile.group_columns[g] > 0) rest.out[g] = static_cast<float*>(tile.out[g]) + first * tile.out_row;
    kPlain(rest, scratch);
  }
}

}  // namespace
}  // namespace mha::MHA_ISA

#endif
