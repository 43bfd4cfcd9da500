// The contract between the scheduler and the kernels: everything that common code may call in an instruction set's
// object. Plain pointers and integers; no Eigen, no STL, no exceptions, no allocation, no threads on either side of it.
#pragma once

#include <cstdint>

#include "mha/activation.hpp"
#include "mha/dtype.hpp"
#include "mha/tensor_view.hpp"
#include "mha/weight_format.hpp"

namespace mha {

/// Most query rows that one tile holds: four AVX-512 vectors of f32.
constexpr int kMaxTileRows = 64;

/// Bytes of one row of a weight panel: four AVX-512 vectors. Narrower instruction sets walk a panel in column strips,
/// so packed weights look the same for all of them. A head's columns are padded to whole vectors of the widest set, so
/// that a vector of columns never belongs to two heads.
constexpr int kPanelBytes = 256;
constexpr int kVectorBytes = 64;

/// Keys in a span, from a multiple of it: the unit in which keys are shared out among threads when there are fewer
/// heads than those. Every kernel sums span by span and then over the spans in order, so that the bits do not tell who
/// computed what. At 512 that is 8 blocks: the extra sum costs a tile of 64 queries 0.3 %, and 256 KB of keys and
/// values (f32, D = 64) are 10 us of reading, a few times what it takes to wake a thread.
constexpr Index kSpanKeys = 512;

/// Most query rows of a tile for decode.
constexpr int kMaxDecodeRows = 8;

/// One tile of attention: up to kMaxTileRows query rows that read the same keys and values. Which head or batch element
/// a row belongs to ends here. Rows are sorted by position: first_key and last_key never fall.
struct AttentionTile {
  int rows;                   // 1 ... query_tile_rows
  bool is_wide;               // query, out and attn_mask are of the accumulator's type, wider than keys and values
  Index head_dim, value_dim;  // D, Dv
  const void* query[kMaxTileRows];      // each row's first element
  Index query_step;                     // elements between neighbours along D
  const void *key, *value;              // element (0, 0)
  Index key_row, key_step;              // elements between keys; between neighbours along D
  Index value_row, value_step;          // elements between keys; between neighbours along Dv
  void* out[kMaxTileRows];              // attend: each row's Dv results; weigh, score: its Tk weights, scores
  Index out_step;                       //
  void* lse[kMaxTileRows];              // accumulator type; null: not wanted
  Index first_key[kMaxTileRows];        // row r sees the keys [first_key, last_key) that the masks admit;
  Index last_key[kMaxTileRows];         //   equal: the row sees none
  bool is_far;                          // keys and values are probably not in this core's caches yet
  Index key_length;                     // Tk: weigh and score fill this many columns
  const void* attn_mask[kMaxTileRows];  // each row's mask entries, one for each key; attn_mask[0] null: none
  bool attn_mask_is_boolean;            // else the dtype of the tile, added to the scaled scores
  Index attn_mask_step;                 // elements between the entries of neighbouring keys
  const unsigned char* key_mask;        // one for each key, for all rows; null: none
  Index key_mask_step;
  double scale;    // multiplies the scores
  double softcap;  // then score = softcap * tanh(score / softcap); 0: no
  bool has_alibi;  // then score -= alibi_slope * |position - key|
  double alibi_slope[kMaxTileRows];
  // Where each row stands among the keys; with or without has_alibi.
  Index position[kMaxTileRows];
  bool has_sinks;  // one more score for each row, without a value
  double sink[kMaxTileRows];
  void* span;  // where the sums of one span of keys go, instead of out and lse; null: the result
};

/// Where the statistics of a tile's rows go: of the accumulator's type; null: not wanted.
struct StatisticsOutputs {
  void *entropy[kMaxTileRows], *max_weight[kMaxTileRows], *mean_distance[kMaxTileRows];
  std::int64_t* max_key[kMaxTileRows];
  double* received;  // [Tk]: what each key receives from the rows is added
};

/// Bytes of the numbers that panels are as wide as: a column for each of these in a row of kPanelBytes.
constexpr int column_bytes(DType dtype) { return size_of(accumulator_of(dtype)); }

/// Input features whose weights share the bytes of a column in one row of a panel.
constexpr Index features_per_word(DType dtype, WeightFormat format) {
  return format == WeightFormat::int8 ? 4 : format == WeightFormat::bf16 || dtype == DType::bf16 ? 2 : 1;
}

/// What rows, and the weights of an output feature, are quantized by is so much at least: 127 times its inverse is finite.
constexpr float kLeastQuantizedMax = 0x1p-100f;

/// A quantized row is scale * (integer - offset).
struct QuantizedRow {
  float scale;
  std::int32_t offset;
};

/// Rows of a projection times one weight panel: out = activation(x panel + bias).
///
/// The panel's format is that of the kernel: a row of it holds features_per_word() features, the last one filled up with
/// zeros, of f32 for binary16.
struct ProjectionTile {
  Index rows;  // any number
  Index in_features;
  const void* x;                 // [rows, in_features]
  Index x_row, x_step;           // elements between rows; between features. After `read` in units of its own
  const QuantizedRow* x_scales;  // [rows], set by `read` for int8 weights
  const void* panel;             // [in_features][panel width], kVectorBytes aligned
  const void* bias;  // [panel width], as all columns; int8: then the scales of the weights, and their sums in int32
  // Where the columns go, in groups of one vector of the widest set (kVectorBytes): group g of row r is written to
  // out[g] + r * out_row, group_columns[g] elements, out_step apart. No columns: the group is padding.
  void* out[kPanelBytes / kVectorBytes];
  Index group_columns[kPanelBytes / kVectorBytes];
  Index out_row, out_step;
  Activation activation;
};

/// out = (z - mean) / sqrt(variance + eps) * weight + bias, for each row of z = x + residual, with mean and variance of
/// the row. Neighbours along the columns lie next to each other, at any address. Any of sum and out may be x or residual
/// (the same rows).
struct NormalizeTile {
  Index rows, columns;   // any number; 1 or more
  const void* x;         // [rows, columns]
  Index x_row;           // elements between rows, as all _row
  const void* residual;  // [rows, columns]; null: nothing is added
  Index residual_row;
  void* sum;  // where z goes; null: nowhere
  Index sum_row;
  const void *weight, *bias;  // [columns]; null: 1, 0
  double eps;
  void* out;  // null: z is all that is wanted
  Index out_row;
};

/// out = softmax(...) value; and lse.
struct AttentionKernel {
  void (*run)(const AttentionTile& tile, void* scratch);
  /// Of tile.span. With that, first_key and last_key lie within one span.
  std::size_t (*span_bytes)(Index value_dim);
  /// Brings `count` spans, `span_bytes` apart, together: out and lse of run() over all of their keys.
  void (*merge_spans)(const AttentionTile& tile, void* spans, Index count, void* scratch);
};

/// out = activation(x panel + bias).
struct ProjectionKernel {
  /// Bytes of memory for read(), kVectorBytes aligned.
  std::size_t (*read_bytes)(Index rows, Index in_features);
  /// Turns x into what run() reads, in `memory` if it must: of `tile` only rows, in_features and x are looked at.
  void (*read)(ProjectionTile& tile, void* memory);
  void (*run)(const ProjectionTile& tile, void* scratch);
};

/// The kernels of one element type.
struct DTypeKernels {
  int query_tile_rows;  // most rows of an AttentionTile
  std::size_t (*attention_scratch)(Index head_dim, Index value_dim);
  AttentionKernel attend;
  /// For up to kMaxDecodeRows rows, with the same bits. head_dim and value_dim are multiples of decode_lanes, and
  /// neighbours along them lie next to each other.
  AttentionKernel decode;
  int decode_lanes;
  void (*weigh)(const AttentionTile& tile, void* scratch);  // out = softmax(...)
  void (*score)(const AttentionTile& tile, void* scratch);  // out = what the softmax is of
  /// Statistics of softmax(...); value, out and lse of the tile are not looked at.
  void (*observe)(const AttentionTile& tile, const StatisticsOutputs& outputs, void* scratch);
  std::size_t (*projection_scratch)(Index rows);
  ProjectionKernel project[kNumWeightFormats];  // those of narrow weights are null where rows are not f32
  /// `count` accumulators to elements, which lie next to each other.
  void (*round)(const void* numbers, void* elements, Index count);
  void (*normalize)(const NormalizeTile& tile);
};

struct KernelTable {
  const char* isa;                // must equal the name in the registry
  const char* (*compiled_isa)();  // asks the object itself: proves which code the linker kept
  DTypeKernels kernels[kNumDTypes];
};

}  // namespace mha
