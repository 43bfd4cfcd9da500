// The one translation unit of this folder: instantiates the kernels for every row of dtypes.def and hands out one
// table. Compiled once for each line of cpp/cmake/isa.cmake, with that instruction set's flags and MHA_ISA.
#include "kernels/attention/attend_tile.hpp"
#include "kernels/attention/decode_tile.hpp"
#include "kernels/attention/scores_tile.hpp"
#include "kernels/attention/statistics_tile.hpp"
#include "kernels/attention/weights_tile.hpp"
#include "kernels/kernel_table.hpp"
#include "kernels/projection/project_bf16_weights.hpp"
#include "kernels/projection/project_int8_weights.hpp"
#include "kernels/projection/project_rounded.hpp"
#include "kernels/projection/project_tile.hpp"
#include "kernels/projection/quantize_rows.hpp"
#include "kernels/rows/normalize_rows.hpp"

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

template <template <class> class Tile, class T>
void run_tile(const AttentionTile& tile, void* scratch) {
  Tile<T>(tile, scratch).run();
}

template <template <class> class Tile, class T>
void merge_spans(const AttentionTile& tile, void* spans, Index count, void* scratch) {
  Tile<T>(tile, scratch).merge_spans(spans, count);
}

template <template <class> class Tile, class T>
constexpr AttentionKernel attention_kernel() {
  return {&run_tile<Tile, T>, &Tile<T>::span_bytes, &merge_spans<Tile, T>};
}

template <class T>
void observe_tile(const AttentionTile& tile, const StatisticsOutputs& outputs, void* scratch) {
  StatisticsTile<T>(tile, outputs, scratch).run();
}

template <class S>
std::size_t attention_scratch(Index head_dim, Index value_dim) {
  const std::size_t many = AttendTile<S>::scratch_bytes(head_dim, value_dim);
  const std::size_t few = DecodeTile<S>::scratch_bytes(head_dim, value_dim);
  return many > few ? many : few;
}

[[maybe_unused]] std::size_t no_bytes(Index, Index) { return 0; }  // unused in an extension
[[maybe_unused]] void read_in_place(ProjectionTile&, void*) {}

constexpr ProjectionKernel kInt8Weights = {&quantized_bytes, &quantize_rows, &project_int8_weights};

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
                       &weigh_tile<S>,
                       &write_scores<S>,
                       &observe_tile<S>,
                       &rounded_scratch,
                       {},
                       &round_numbers<S>,
                       &normalize_rows<S>};
  if constexpr (sizeof(S) < sizeof(T)) {
    kernels.project[int(WeightFormat::plain)] = rounded_projection<S>();
  } else {
    kernels.projection_scratch = &projection_scratch<T>;
    kernels.project[int(WeightFormat::plain)] = {&no_bytes, &read_in_place, &project_tile<T>};
  }
  if constexpr (DTypeOf<S>::value == DType::f32) {
    kernels.project[int(WeightFormat::bf16)] = {&no_bytes, &read_in_place, &project_bf16_weights};
    kernels.project[int(WeightFormat::int8)] = kInt8Weights;
  }
  return kernels;
}

#ifdef MHA_BASE_ISA
/// The element types, and int8 weights, that this instruction set has instructions for; the others are those of the set
/// it extends.
KernelTable extended_table() noexcept {
  KernelTable extended = MHA_BASE_ISA::table();
  extended.isa = MHA_QUOTE(MHA_ISA);
  extended.compiled_isa = &compiled_isa;
  extended.kernels[int(DType::bf16)] = dtype_kernels<BFloat16>();
  extended.kernels[int(DType::f32)].project[int(WeightFormat::int8)] = kInt8Weights;
  return extended;
}
#else
constexpr KernelTable kTable = {MHA_QUOTE(MHA_ISA),
                                &compiled_isa,
                                {
#define MHA_DTYPE(name, scalar, accumulator) dtype_kernels<scalar>(),
#include "mha/dtypes.def"
#undef MHA_DTYPE
                                }};
#endif

}  // namespace

const KernelTable& table() noexcept {
#ifdef MHA_BASE_ISA
  static const KernelTable kTable = extended_table();
#endif
  return kTable;
}

}  // namespace mha::MHA_ISA
