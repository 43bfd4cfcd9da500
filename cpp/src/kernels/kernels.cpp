// The one translation unit of this folder: instantiates the kernels for every row of dtypes.def and hands out one
// table. Compiled once for each line of cpp/cmake/isa.cmake, with that instruction set's flags and MHA_ISA.
#include "attend_tile.hpp"
#include "decode_tile.hpp"
#include "kernel_table.hpp"
#include "normalize_rows.hpp"
#include "project_bf16_weights.hpp"
#include "project_int8_weights.hpp"
#include "project_tile.hpp"
#include "quantize_rows.hpp"
#include "read_words.hpp"
#include "saturate_fma.hpp"
#include "statistics_tile.hpp"
#include "weigh_tile.hpp"
#include "write_scores.hpp"

#define MHA_QUOTE_EXPANDED(x) #x
#define MHA_QUOTE(x) MHA_QUOTE_EXPANDED(x)

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

template <class T>
std::size_t attention_scratch(Index head_dim, Index value_dim) {
  const std::size_t many = AttendTile<T>::scratch_bytes(head_dim, value_dim);
  const std::size_t few = DecodeTile<T>::scratch_bytes(head_dim, value_dim);
  return many > few ? many : few;
}

template <class T>
constexpr DTypeKernels dtype_kernels() {
  if constexpr (sizeof(T) == 2) return {}; else {
  static_assert(kWidth<T> <= kMaxTileRows);
  static_assert(kLanes<T> * sizeof(T) <= kVectorBytes && kPanelWidth<T> % kWidth<T> == 0);
  DTypeKernels kernels{int(kWidth<T>),
          &attention_scratch<T>,
          attention_kernel<AttendTile, T>(),
          attention_kernel<DecodeTile, T>(),
          kLanes<T>,
          &weigh_tile<T>,
          &write_scores<T>,
          &observe_tile<T>,
          &projection_scratch<T>,
          {&project_tile<T>},
          nullptr,
          nullptr,
          &normalize_rows<T>,
          &saturate_fma<T>};
  if constexpr (sizeof(T) == sizeof(float)) {
    kernels.project[int(WeightFormat::bf16)] = &project_bf16_weights;
    kernels.project[int(WeightFormat::int8)] = &project_int8_weights;
    kernels.quantized_row_bytes = &quantized_row_bytes;
    kernels.quantize = &quantize_rows;
  }
  return kernels;
  }
}

constexpr KernelTable kTable = {MHA_QUOTE(MHA_ISA),
                                &compiled_isa,
                                &read_words,
                                {
#define MHA_DTYPE(name, scalar, accumulator) dtype_kernels<scalar>(),
#include "mha/dtypes.def"
#undef MHA_DTYPE
                                }};

}  // namespace

const KernelTable& table() { return kTable; }

}  // namespace mha::MHA_ISA
