// The one translation unit of this folder. It instantiates the kernels for every row of dtypes.def and hands out one
// table. It is compiled once for each line of cpp/cmake/isa.cmake, with the flags of that instruction set and its name
// as MHA_ISA.
#include "kernels/attention/attend_tile.hpp"
#include "kernels/attention/decode_tile.hpp"
#include "kernels/attention/gradient_tile.hpp"
#include "kernels/attention/maxsim_tile.hpp"
#include "kernels/attention/statistics_tile.hpp"
#include "kernels/attention/write_scores.hpp"
#include "kernels/attention/write_weights.hpp"
#include "kernels/kernel_table.hpp"
#include "kernels/products/add_products.hpp"
#include "kernels/projection/project_bf16_weights.hpp"
#include "kernels/projection/project_blocks.hpp"
#include "kernels/projection/project_int4_weights.hpp"
#include "kernels/projection/project_int8_weights.hpp"
#include "kernels/projection/project_pairs.hpp"
#include "kernels/projection/project_staged.hpp"
#include "kernels/projection/project_tile.hpp"
#include "kernels/projection/quantize_blocks.hpp"
#include "kernels/projection/quantize_rows.hpp"
#include "kernels/rows/activation_gradient.hpp"
#include "kernels/rows/adamw.hpp"
#include "kernels/rows/cross_entropy.hpp"
#include "kernels/rows/normalize_gradient.hpp"
#include "kernels/rows/normalize_rows.hpp"
#include "kernels/rows/quantize_heads.hpp"
#include "kernels/rows/rotate_rows.hpp"
#include "kernels/rows/sum_rows.hpp"

#define MHA_QUOTE_EXPANDED(x) #x
#define MHA_QUOTE(x) MHA_QUOTE_EXPANDED(x)

#ifdef MHA_BASE_ISA
namespace mha::MHA_BASE_ISA {
const KernelTable& table() noexcept;
}
#endif

namespace mha::MHA_ISA {
namespace {

__attribute__((noinline)) const char* compiled_isa() { return MHA_QUOTE(MHA_ISA); }

template <class S>
std::size_t tile_scratch(Index head_dim, Index value_dim) {
  const std::size_t many = AttendTile<S>::scratch_bytes(head_dim, value_dim);
  const std::size_t few = DecodeTile<S>::scratch_bytes(head_dim, value_dim);
  return many > few ? many : few;
}

/// Of a tile, and the results of the second time that it is computed.
template <class S>
std::size_t attention_scratch(Index head_dim, Index value_dim) {
  return tile_scratch<S>(head_dim, value_dim) + sizeof(Compute<S>) * std::size_t(kWidth<Compute<S>> * value_dim);
}

/// Computes a tile with an overflowed sum a second time, and replaces results that are not finite. A function of its
/// own that is rarely called: inlined, the code of tiles would be there twice, 95 KB with all instruction sets.
template <template <class> class Tile, class S>
__attribute__((noinline, cold)) void mend(const Tile<S>& first, const AttentionTile& tile, void* scratch) {
  using T = Compute<S>;
  AttentionTile again = tile;
  again.out_step = 1;
  char* const results = static_cast<char*>(scratch) + tile_scratch<S>(tile.head_dim, tile.value_dim);
  for (int r = 0; r < tile.rows; ++r) {
    again.out[r] = results + std::size_t(r * tile.value_dim) * sizeof(T);
    again.lse[r] = nullptr;
  }
  const RowStart<T> start = first.second_start();
  Tile<S>(again, scratch, start).run();
  if (tile.is_wide)
    replace_non_finite<T>(tile, again);
  else
    replace_non_finite<S>(tile, again);
}

template <template <class> class Tile, class S>
void run_tile(const AttentionTile& tile, void* scratch) {
  Tile<S> first(tile, scratch);
  first.run();
  if (!tile.span && first.has_overflowed()) mend<Tile, S>(first, tile, scratch);
}

template <template <class> class Tile, class S>
void merge_spans(const AttentionTile& tile, void* spans, Index count, void* scratch) {
  Tile<S> first(tile, scratch);
  first.merge_spans(spans, count);
  if (first.has_overflowed()) mend<Tile, S>(first, tile, scratch);
}

template <template <class> class Tile, class S>
constexpr AttentionKernel attention_kernel() {
  return {&run_tile<Tile, S>, &Tile<S>::span_bytes, &merge_spans<Tile, S>, &Tile<S>::copy_span_rows};
}

template <class T>
void statistics_tile(const AttentionTile& tile, const StatisticsOutputs& outputs, void* scratch) {
  StatisticsTile<T>(tile, outputs, scratch).run();
}

[[maybe_unused]] std::size_t no_bytes(Index, Index) { return 0; }  // unused where a set extends another
[[maybe_unused]] void read_in_place(ProjectionTile&, void*) {}

[[maybe_unused]] constexpr ProjectionKernel kInt8Weights = {&quantized_bytes, &quantize_rows,
                                                            &project_rows<float, &project_int8_weights>};

[[maybe_unused]] constexpr ProjectionKernel kInt4Weights = {&int4_bytes, &read_int4_rows,
                                                            &project_rows<float, &project_int4_weights>};

/// Sets the kernels of weights in blocks, format after format.
template <int kFormat = 0>
constexpr void set_block_kernels([[maybe_unused]] DTypeKernels& kernels) {
  if constexpr (kFormat < kNumWeightFormats) {
    constexpr auto format = static_cast<WeightFormat>(kFormat);
    constexpr int kFeatures = block_features(format);
    if constexpr (kFeatures > 0)
      kernels.project[kFormat] = {&block_rows_bytes<kFeatures>, &quantize_blocks<kFeatures>,
                                  &project_rows<float, &project_blocks<format>>};
    set_block_kernels<kFormat + 1>(kernels);
  }
}

/// With weights in the dtype of the rows.
template <class S>
constexpr ProjectionKernel plain_projection() {
  using Products = ProductsOf<S>;
  if constexpr (sizeof(S) == sizeof(Compute<S>))
    return {&no_bytes, &read_in_place, &project_rows<S, &project_tile<Products>>};
  else if constexpr (OperandsOf<S>::kJoins)
    return {&operand_bytes<S>, &read_operands<S>, &project_rows<S, &project_pairs<Products>>};
  else if constexpr (features_per_word(DTypeOf<S>::value, WeightFormat::plain) == 2)
    return {&operand_bytes<S>, &read_operands<S>, &project_rows<S, &project_bf16_weights>};
  else
    return {&operand_bytes<S>, &read_operands<S>, &project_rows<S, &project_tile<Products>>};
}

/// Of elements of type S, all kernels but those that multiply nothing: an instruction set that extends another
/// takes them from there.
template <class S>
constexpr DTypeKernels dtype_kernels() {
  using T = Compute<S>;
  static_assert(kWidth<T> <= kMaxTileRows);
  static_assert(kLanes<T> * sizeof(T) <= kVectorBytes && kPanelWidth<T> % kWidth<T> == 0);
  DTypeKernels kernels{int(kWidth<T>),
                       &attention_scratch<S>,
                       attention_kernel<AttendTile, S>(),
                       attention_kernel<DecodeTile, S>(),
                       DecodeTile<S>::kColumns,
                       kHasTiles<ProductsOf<S>> ? kMaxDecodeRowsBesideTiles : kMaxDecodeRows,
                       &write_weights<S>,
                       &write_scores<S>,
                       &statistics_tile<S>,
                       nullptr,
                       nullptr,
                       nullptr,
                       maxsim_kernel<MaxSimNumbers<S>>(),
                       &projection_scratch,
                       {},
                       nullptr,
                       nullptr,
                       nullptr,
                       nullptr,
                       {}};
  if constexpr (sizeof(S) == sizeof(T)) {
    kernels.gradient = &gradient_tile<T>;
    kernels.gradient_scratch = &gradient_scratch<T>;
    kernels.add_products = &add_tile<T>;
  }
  kernels.project[int(WeightFormat::plain)] = plain_projection<S>();
  if constexpr (DTypeOf<S>::value == DType::f32) {
    kernels.project[int(WeightFormat::bf16)] = {&no_bytes, &read_in_place, &project_rows<float, &project_bf16_weights>};
    kernels.project[int(WeightFormat::int8)] = kInt8Weights;
    kernels.project[int(WeightFormat::int4)] = kInt4Weights;
    set_block_kernels(kernels);
  }
  return kernels;
}

#ifdef MHA_TILES
template <auto kMultiply, class A, class B, class C>
void multiply_one(const A* a, const B* b, C* c) {
  const TileState state;
  Tiles::load<0>(c, kTileBytes);
  Tiles::load<4>(a, kTileBytes);
  Tiles::load<6>(b, kTileBytes);
  kMultiply();
  Tiles::store<0>(c, kTileBytes);
}
#endif

#ifdef MHA_BASE_ISA
/// The kernels of the instruction set that this one extends, but for the families that it overrides.
KernelTable extended_table() noexcept {
  KernelTable extended = MHA_BASE_ISA::table();
  extended.isa = MHA_QUOTE(MHA_ISA);
  extended.compiled_isa = &compiled_isa;
#ifdef MHA_OVERRIDES_BF16  // everything with rows of bf16
  const DTypeKernels base = extended.kernels[int(DType::bf16)];
  DTypeKernels& own = extended.kernels[int(DType::bf16)] = dtype_kernels<BFloat16>();
  own.round = base.round;
  own.widen = base.widen;
  own.normalize = base.normalize;
  own.rotate = base.rotate;
  own.rows = base.rows;
#endif
#ifdef MHA_OVERRIDES_INT8  // products with int8 and int4 weights, of rows of int8, and with blocks but by tiles
  extended.maxsim_int8 = maxsim_kernel<MaxSimBytes>();
  extended.kernels[int(DType::f32)].project[int(WeightFormat::int8)] = kInt8Weights;
  extended.kernels[int(DType::f32)].project[int(WeightFormat::int4)] = kInt4Weights;
#ifndef MHA_TILES
  set_block_kernels(extended.kernels[int(DType::f32)]);
#endif
#endif
#ifdef MHA_TILES
  extended.tiles = {&multiply_one<&Tiles::multiply_bf16<0, 4, 6>, BFloat16, BFloat16, float>,
                    &multiply_one<&Tiles::multiply_bytes<0, 4, 6>, std::uint8_t, std::int8_t, std::int32_t>,
                    Tiles::kTimesConfigured};
#endif
  return extended;
}
#else
template <class S>
constexpr DTypeKernels all_kernels() {
  DTypeKernels kernels = dtype_kernels<S>();
  kernels.round = &round_numbers<S>;
  kernels.widen = &widen_elements<S>;
  kernels.normalize = &normalize_rows<S>;
  kernels.rotate = &rotate_rows<Compute<S>>;
  kernels.rows = {&norm_gradient<S>, &add_spans<S>, &activate_run<S>, &activation_gradient_run<S>,
                  &sum_rows<S>,      nullptr,       &adamw_run<S>,    &squares_of_run<S>};
  if constexpr (sizeof(S) == sizeof(Compute<S>)) kernels.rows.cross_entropy = &cross_entropy_rows<S>;
  return kernels;
}

constexpr KernelTable kTable = {MHA_QUOTE(MHA_ISA),
                                &compiled_isa,
                                &quantize_heads,
                                maxsim_kernel<MaxSimBytes>(),
                                {
#define MHA_DTYPE(name, scalar, accumulator) all_kernels<scalar>(),
#include "mha/dtypes.def"
#undef MHA_DTYPE
                                },
                                {nullptr, nullptr, nullptr}};
#endif

}  // namespace

const KernelTable& table() noexcept {
#ifdef MHA_BASE_ISA
  static const KernelTable kTable = extended_table();
#endif
  return kTable;
}

}  // namespace mha::MHA_ISA
