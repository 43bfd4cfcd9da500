// The contract between common code and the kernels: the functions in the object of an instruction set, and their
// arguments. Arguments are structs of plain pointers and integers, so that the two sides share no code: no Eigen, no
// templates of the standard library, no exceptions, no allocation, no threads.
#pragma once

#include <cstdint>

#include "mha/activation.hpp"
#include "mha/dtype.hpp"
#include "mha/norm_kind.hpp"
#include "mha/tensor_view.hpp"
#include "mha/weight_format.hpp"

namespace mha {

/// Most query rows of a tile: the lanes of four AVX-512 vectors of f32.
constexpr int kMaxTileRows = 64;

/// Bytes of one row of a weight panel, four AVX-512 vectors, and of one such vector. Narrower instruction sets read a
/// panel in strips of columns, so all sets share the packed weights. The columns of a head are padded to
/// whole vectors of the widest set, so that no vector of columns belongs to two heads.
constexpr int kPanelBytes = 256;
constexpr int kVectorBytes = 64;

/// Keys in a block: kernels process this many keys at a time, and blocks begin at multiples of it. S^T takes 16 KB
/// (f32, AVX-512), as do a block of K or V at D = 64 and Q^T: level 1 (32 KB on Zen 4, 48 KB on Zen 5) holds the
/// operands of a product. A block has as many keys as a tile has queries, so that under a causal mask one block in a
/// tile is cut, not two. 96 and 128 keys are no faster without a mask and 2 to 3 % slower with one at T = 512:
/// docs/decisions/0003.
constexpr Index kKeyBlock = 64;

/// Keys in a span, which begins at a multiple of it. Where there are fewer heads than threads, the keys of a head are
/// shared out among threads span by span. Every kernel sums the keys of a span, and then the spans in order, whether
/// they are shared out or not, so that the result has the same bits. 512 keys are 8 blocks: the extra sum costs a tile
/// of 64 queries 0.3 % of its time, and 256 KB of keys and values (f32, D = 64) take 10 us to read, a few times as long
/// as waking a thread.
constexpr Index kSpanKeys = 512;
static_assert(kSpanKeys % kKeyBlock == 0);

/// Most query rows of a tile for the decode kernel.
constexpr int kMaxDecodeRows = 8;
/// The same where tiles multiply for more rows: 6 rows take 0.74 of the time of the decode kernel, 8 rows 0.59, and 4
/// rows 1.17 (4096 keys, D 128, Emerald Rapids: docs/decisions/0021).
constexpr int kMaxDecodeRowsBesideTiles = 4;

/// Where the keys and values of a tile lie: two matrices with rows of D and of Dv elements. Only one file of the
/// kernels reads it, kernels/attention/key_value_source.hpp; the others ask that file block by block, so that another
/// form of keys changes one file.
struct KeyValueSource {
  const void *key, *value;      // element (0, 0)
  Index key_row, key_step;      // elements between rows; between neighbours along D
  Index value_row, value_step;  // elements between rows; between neighbours along Dv
  // Key t lies in row pages[t / page_rows] * page_rows + t % page_rows; null: in row t. Prefetching also reads
  // the entry after the last page; it must be valid memory.
  const std::int32_t* pages;
  Index page_rows;  // a multiple of kKeyBlock
  // Of rows of int8, one for each row; null: elements are of the type of the kernel.
  const float *key_scale, *value_scale;
};

/// One tile of attention: up to kMaxTileRows query rows that read the same keys and values. Kernels do not know which
/// head or batch element a row belongs to. Rows are sorted by position, so that first_key and last_key never fall from
/// a row to the next.
struct AttentionTile {
  int rows;                   // 1 to query_tile_rows
  bool is_wide;               // query, out and attn_mask are of the accumulator's type, wider than keys and values
  Index head_dim, value_dim;  // D, Dv
  const void* query[kMaxTileRows];  // the first element of each row
  Index query_step;                 // elements between neighbours along D
  KeyValueSource source;
  void* out[kMaxTileRows];              // of each row: Dv results; for weights and scores Tk numbers
  Index out_step;                       // elements between neighbours of a row of the result
  void* lse[kMaxTileRows];              // of each row, in the accumulator's type; null: not wanted
  Index first_key[kMaxTileRows];        // row r sees the keys [first_key, last_key) that the masks below leave;
  Index last_key[kMaxTileRows];         //   none, if the two are equal
  bool is_far;                          // keys and values are probably not in this core's caches yet
  Index key_length;                     // Tk: weights and scores fill so many columns
  const void* attn_mask[kMaxTileRows];  // of each row: an entry for each key; attn_mask[0] null: none
  bool attn_mask_is_boolean;            // else the dtype of the tile, added to the scaled scores
  Index attn_mask_step;                 // elements between the entries of neighbouring keys
  const unsigned char* key_mask;        // one for each key, for all rows; null: none
  Index key_mask_step;
  const unsigned char* block_mask[kMaxTileRows];  // of each row: one for each block of keys; block_mask[0] null: none
  Index block_mask_step;
  bool block_masks_differ;  // some rows see other blocks than the others
  double scale;             // multiplies the scores
  double softcap;           // then score = softcap * tanh(score / softcap); 0: no
  bool has_alibi;           // then score -= alibi_slope * |position - key|
  double alibi_slope[kMaxTileRows];
  // Then score += position_bias[clamp(key - position, -farthest_distance, farthest_distance) + farthest_distance], of
  // the accumulator's type, for each row; position_bias[0] null: no.
  const void* position_bias[kMaxTileRows];
  Index position_bias_step;  // elements between the entries of neighbouring distances
  Index farthest_distance;
  Index position[kMaxTileRows];  // of each row among the keys, whatever the options are
  Index heads;                   // row r + heads belongs to the head of row r, and lies one position on
  bool has_sinks;                // each row has one more score, of a key without a value
  double sink[kMaxTileRows];
  bool has_dropout;  // then weights become 0 whose word of dropout.hpp is below dropout_below, the others grow
  std::uint32_t dropout_below;
  double dropout_factor;  // of the others
  std::uint64_t dropout_seed;
  std::uint64_t dropout_stream[kMaxTileRows];  // of each row: its head among the heads of all batch elements
  void* span;  // if not null, sums of one span of keys go there, and nothing to out and lse
};

/// Where the statistics of the rows of a tile go, in the accumulator's type; null: not wanted.
struct StatisticsOutputs {
  void *entropy[kMaxTileRows], *max_weight[kMaxTileRows], *mean_distance[kMaxTileRows];
  std::int64_t* max_key[kMaxTileRows];
  double* received;  // [Tk]: the sum of the weights that each key receives from the rows is added to it
};

/// The rows that the gradient of a tile reads next to its query, keys and values, and the sums that gradients are added
/// to: null (of arrays of rows: entry 0) where they are not wanted. The keys of the tile lie in one span. All sums are
/// of the accumulator's type; rows of dquery, dkey and dvalue are aligned, and padded, to kVectorBytes.
struct GradientTile {
  const void* out[kMaxTileRows];  // of each row: the result of attention, Dv elements of the type of the kernel
  Index out_step;
  const void* dout[kMaxTileRows];  // the gradient of that
  Index dout_step;
  const void* lse[kMaxTileRows];   // of each row, in the accumulator's type
  const void* dlse[kMaxTileRows];  // the gradient of that
  void* dquery[kMaxTileRows];      // of each row [D]; without the factor `scale`, as dkey
  void *dkey, *dvalue;             // of the keys of the span: [kSpanKeys][D] and [kSpanKeys][Dv]
  Index dkey_row, dvalue_row;
  void* dattn_mask[kMaxTileRows];  // of each row: an entry for each key
  Index dattn_mask_step;
  void* dposition_bias[kMaxTileRows];  // of each row: an entry for each distance, next to each other
  double* dalibi_slope[kMaxTileRows];  // of each row: one number
  double* dsink[kMaxTileRows];
};

/// out += A B, or with `starts` out = A B, of numbers of the accumulator's type. Columns of B and `out` are read and
/// written up to the end of the last vector; rows of `out` are aligned, and padded, to kVectorBytes.
struct ProductTile {
  Index rows, columns, depth;
  const void* a;        // [rows, depth]
  Index a_row, a_step;  // elements between rows, and between neighbours along the depth
  const void* b;        // [depth, columns], neighbours in a row next to each other
  Index b_row;
  void* out;  // [rows, columns], likewise
  Index out_row;
  bool starts;
  // Rows of memory that are read soon: they are prefetched strip by strip. Null: none.
  const void* upcoming;
  Index upcoming_row, upcoming_rows, upcoming_bytes;  // bytes between rows; number; bytes of each
};

/// Bytes of one column in a row of a panel: kPanelBytes over it are the columns of a panel.
constexpr int column_bytes(DType dtype) { return size_of(accumulator_of(dtype)); }

/// Input features whose weights lie together in the bytes of one column and one row of a panel.
constexpr Index features_per_word(DType dtype, WeightFormat format) {
  return dtype == DType::bf16 ? 2 : features_of(format);
}

/// Features whose codes lie together in a panel of a block format, and columns of that panel.
constexpr Index kCodeFeatures = 32, kPanelColumns = kPanelBytes / Index(sizeof(float));

/// The part of a panel of a block format that holds one block of each of its columns. The codes of kCodeFeatures features
/// come first, in rows of kPanelBytes with four bytes of each column, and then the codes of the next features:
///
/// - Low four bits, four rows: byte b of row r has the bits of feature 8 r + b, and above them of feature 8 r + 4 + b.
/// - A fifth bit, one row: bit w of byte b belongs to feature 4 w + b.
/// - A fifth and a sixth bit, two rows: bits 2 w and 2 w + 1 of byte b of row r belong to feature 16 r + 4 w + b.
/// - Eight bits, in place of all these, eight rows: byte b of row r is feature 4 r + b, with its highest bit inverted.
///
/// Then come `numbers` rows of binary16 and `bytes` rows of bytes, one for each column: scales and offsets of the block,
/// and of its parts. The offsets of parts of q4_k and q5_k lie in pairs, which are two rows.
struct BlockPanel {
  Index features;  // of a block
  int code_bits, numbers, bytes;

  constexpr Index code_bytes() const { return Index{kPanelBytes} * code_bits; }  // of kCodeFeatures features
  constexpr Index numbers_at() const { return features / kCodeFeatures * code_bytes(); }
  constexpr Index bytes_at() const { return numbers_at() + 2 * kPanelColumns * numbers; }
  constexpr Index size() const { return bytes_at() + kPanelColumns * bytes; }
};

/// In a format without blocks: of no features.
constexpr BlockPanel block_panel(WeightFormat format) {
  const Index features = block_features(format);
  switch (format) {
    case WeightFormat::q4_0:
    case WeightFormat::iq4_nl:
      return {features, 4, 1, 0};
    case WeightFormat::q4_1:
      return {features, 4, 2, 0};
    case WeightFormat::q5_0:
      return {features, 5, 1, 0};
    case WeightFormat::q5_1:
      return {features, 5, 2, 0};
    case WeightFormat::q8_0:
      return {features, 8, 1, 0};
    case WeightFormat::q4_k:
      return {features, 4, 2, 16};
    case WeightFormat::q5_k:
      return {features, 5, 2, 16};
    case WeightFormat::q6_k:
      return {features, 6, 1, 16};
    case WeightFormat::mxfp4:
      return {features, 4, 0, 1};
    default:
      return {};
  }
}

/// Input features of a weight of four bits that share a multiplier, and the rows of a panel with their codes. The
/// multipliers of eight groups are a row of the panel before these.
constexpr Index kInt4GroupFeatures = group_features(WeightFormat::int4), kInt4GroupsOfMultipliers = 8;
constexpr Index kInt4RowsOfGroup = kInt4GroupFeatures / features_of(WeightFormat::int4);
constexpr Index kInt4RowsOfMultipliers = 1 + kInt4GroupsOfMultipliers * kInt4RowsOfGroup;
constexpr Index kInt4FeaturesOfMultipliers = kInt4GroupsOfMultipliers * kInt4GroupFeatures;

/// Groups of so many input features.
constexpr Index int4_groups(Index in_features) { return (in_features + kInt4GroupFeatures - 1) / kInt4GroupFeatures; }

/// Rows of a panel with the weights of so many input features.
constexpr Index panel_rows(DType dtype, WeightFormat format, Index in_features) {
  if (format != WeightFormat::int4)
    return (in_features + features_per_word(dtype, format) - 1) / features_per_word(dtype, format);
  const Index groups = int4_groups(in_features);
  return groups * kInt4RowsOfGroup + (groups + kInt4GroupsOfMultipliers - 1) / kInt4GroupsOfMultipliers;
}

/// Rows, and the weights of an output feature, are quantized by their largest magnitude, or by this number if that is
/// larger: 127 over it is still finite.
constexpr float kLeastQuantizedMax = 0x1p-100f;

/// The most input features of int8 weights. A sum of so many products fits 32 bits: weights are in [-128, 127],
/// quantized rows in [-254, 254].
constexpr Index kMostInt8Features = 0x7fffffff / (128 * 254);

/// The range of the integers of a quantized row is halved so often at most to leave outliers aside, which then fit 16
/// bits: 254 * 2^7.
constexpr int kMostHalvings = 7;

/// Most outliers of a quantized row: one for each 64 features, and no more than sums have room for, since the product
/// of an outlier is as large as 128 others.
constexpr Index most_outliers(Index in_features) {
  const Index wanted = in_features / 64, room = (kMostInt8Features - in_features) >> kMostHalvings;
  return wanted < room ? wanted : room;
}

/// A quantized row is scale * (integer - offset). Where integers are bytes, `below` and `above` count the outliers.
struct QuantizedRow {
  float scale;
  std::int32_t offset;
  std::int32_t below, above;
};

/// The part of an outlier that does not fit in its byte, its magnitude over 256, at the byte of the feature in its
/// 4-byte word. The most_outliers() entries of a row begin with the outliers below the range, and end with those above
/// it.
struct Excess {
  std::int32_t word, bytes;
};

/// Rows of a projection times one weight panel: out = activation(x panel + bias), or with a second panel
/// out = activation(x gate_panel + gate_bias) * (x panel + bias).
///
/// The panel has the format of the kernel: panel_rows() rows, each with features_per_word() input features of each
/// column, the last one filled up with zeros. Weights of binary16 lie there as f32.
struct ProjectionTile {
  Index rows;          // any number
  bool fetches_ahead;  // whether one or two rows prefetch a panel of full width where a vector is a line of the cache
  Index in_features;
  const void* x;                 // [rows, in_features]
  Index x_row, x_step;           // elements between rows; between features. `read` may change them: see there
  const QuantizedRow* x_scales;  // [rows], set by `read` for int8 and int4 weights
  void* expanded;                // room for int8 weights, set by `read` for int4 weights
  const void* panel;             // [in_features][columns], aligned to kVectorBytes
  // [columns]. For int8 and int4 weights two more rows follow: their scales, and their sums in int32.
  const void* bias;
  const void *gate_panel, *gate_bias;  // of the same shapes; null: none
  // Columns are written in groups of one vector of the widest set (kVectorBytes): group g of row r goes to
  // out[g] + r * out_row, group_columns[g] elements, out_step apart. A group without columns is padding.
  void* out[kPanelBytes / kVectorBytes];
  Index group_columns[kPanelBytes / kVectorBytes];
  Index out_row, out_step;
  Activation activation;
};

/// out = norm(z) for each row of z = x + residual:
///
///   layer            (z - mean) / sqrt(variance + eps) * weight + bias, with mean and variance of the row
///   rms              z / sqrt(mean(z^2) + eps) * weight + bias
///   rms_unit_offset  likewise with 1 + weight
///
/// Elements of a row are contiguous, at any address. `sum` and `out` may be x or residual, with the same rows.
struct NormalizeTile {
  NormKind kind;
  Index rows, columns;   // 0 or more; 1 or more
  const void* x;         // [rows, columns]
  Index x_row;           // elements between rows, as all _row
  const void* residual;  // [rows, columns]; null: nothing is added
  Index residual_row;
  void* sum;  // z is written here; null: nowhere
  Index sum_row;
  const void *weight, *bias;  // [columns]; null: 1 and 0
  double eps;
  void* out;  // null: only z is wanted
  Index out_row;
};

/// Gradients of a norm of rows, NormalizeTile without a residual; null where a gradient is not wanted. Elements of a row
/// are contiguous, at any address.
struct NormGradientTile {
  NormKind kind;
  Index rows, columns;  // 0 or more; 1 or more
  const void* x;        // [rows, columns]
  Index x_row;          // elements between rows, as all _row
  const void* dout;     // [rows, columns]
  Index dout_row;
  const void* weight;  // [columns]; null: 1
  double eps;
  void* dx;  // [rows, columns]
  Index dx_row;
  // [columns] of the accumulator's type, aligned and padded to kVectorBytes: sums over the rows are added.
  void *dweight, *dbias;
  void* factors;  // scratch of the same size
};

/// Sums over spans of rows, of the accumulator's type, to add up: out[c] = sums[0][c] + sums[1][c] + ...
struct RowSums {
  Index count, columns;
  const void* sums;  // [count, columns]
  Index row;         // elements between the sums of neighbouring spans
  void* out;         // [columns]
};

/// `count` elements that lie next to each other, at any address: out = activation(x), or activation(x) * up. Of the
/// gradient, from dout, out is the gradient of x; it and dup are null where they are not wanted.
struct ActivationRun {
  Activation activation;
  Index count;
  const void *x, *up, *dout;  // up null: 1
  void *out, *dup;
};

/// Rows to add up: out[c] = factors[0] * rows[chosen[0]][c] + factors[1] * rows[chosen[1]][c] + ..., 0 without rows. With
/// factors products are added by multiply-add.
struct RowSelection {
  Index count, columns;
  const void* rows;
  Index row;                   // elements between rows
  const std::int64_t* chosen;  // [count]
  void* out;                   // [columns]
  const void* factors;         // [count], of the accumulator's type; null: 1
};

/// One step of AdamW over `count` elements that lie next to each other. The gradient has the element type of the kernel,
/// the others its accumulator's: kernels/rows/adamw.hpp has the equations.
struct AdamWRun {
  Index count;
  void* weight;
  const void* gradient;
  void *m, *v;
  double gradient_scale, decay, beta1, beta2, rate, root, eps;
};

/// Cross-entropy of rows of logits, of the accumulator's type: kernels/rows/cross_entropy.hpp has the equations. Their
/// gradients, times `scale`, replace them if `has_gradient`; else they become anything.
struct CrossEntropyTile {
  Index rows, columns;
  void* logits;  // [rows, columns]
  Index logits_row;
  const std::int64_t* targets;  // [rows], in [0, columns)
  double* losses;               // [rows]
  double label_smoothing, scale;
  bool has_gradient;
};

/// Rotates pairs of features of each row in place: (a, b) becomes (a cos - b sin, a sin + b cos). All numbers have the
/// accumulator's type; elements of a row are contiguous, at any address.
struct RotateTile {
  Index rows, pairs;
  void* x;                // [rows, at least 2 pairs]
  Index x_row;            // elements between rows
  const void *cos, *sin;  // [rows, pairs]
  Index table_row;        // elements between rows of both
  bool are_neighbours;    // features 2 i and 2 i + 1 are a pair; else i and pairs + i
  bool is_backwards;      // by minus the angle
};

/// Rows of heads to quantize for caches of int8: kernels/rows/quantize_heads.hpp.
struct QuantizeTile {
  Index rows, columns;
  const float* x;
  Index x_row, x_step;  // elements between rows; between neighbours in a row
  std::int8_t* out;     // neighbours in a row are next to each other
  Index out_row;        // bytes between rows
  float* scales;        // of each row
};

/// Rows of tokens, of the element type of the kernel, or of int8 with a scale for each row.
struct TokenRows {
  const void* tokens;
  Index row, step;      // elements between rows; between neighbours in a row
  Index element_bytes;  // of an element
  const float* scale;   // of int8; else null
  Index scale_step;
};

/// Packed query tokens, a document, and the largest product of each query token with its tokens so far.
struct MaxSimTile {
  Index columns;       // D
  const void* panels;  // of query tokens: MaxSimKernel::pack
  Index lanes;         // query tokens
  TokenRows document;
  Index tokens;  // rows of the document
  void* maxima;  // [lanes, up to whole vectors] of the accumulator's type, f32 for int8; raised
};

struct MaxSimKernel {
  int panel_lanes;  // query tokens of a panel
  std::size_t (*panel_bytes)(Index columns);
  /// The rows [first, first + count) of `queries`, as panels one after another.
  void (*pack)(const TokenRows& queries, Index first, Index count, Index columns, void* panels);
  std::size_t (*scratch_bytes)(Index columns);
  void (*raise)(const MaxSimTile& tile, void* scratch);
};

/// out = softmax(scores) value, and lse.
struct AttentionKernel {
  void (*run)(const AttentionTile& tile, void* scratch);
  /// Bytes that tile.span points to. With a span, first_key and last_key of all rows lie within it.
  std::size_t (*span_bytes)(Index value_dim);
  /// Merges `count` spans, span_bytes() apart: out and lse are as from run() over the keys of all spans.
  void (*merge_spans)(const AttentionTile& tile, void* spans, Index count, void* scratch);
  /// The sums of a span of a tile of the decode kernel, which has the rows [first, first + rows) of a tile of this
  /// kernel, from whose sums they are taken.
  void (*copy_span_rows)(const void* from, Index first, Index rows, void* to, Index value_dim);
};

/// Computes the projection of a ProjectionTile.
struct ProjectionKernel {
  /// Bytes of memory that read() needs, aligned to kVectorBytes.
  std::size_t (*read_bytes)(Index rows, Index in_features);
  /// Converts the rows x, if necessary, to the form that run() reads, in `memory`, and sets x, x_row and x_step. It
  /// reads only these, rows and in_features of `tile`.
  void (*read)(ProjectionTile& tile, void* memory);
  void (*run)(const ProjectionTile& tile, void* scratch);
};

/// Kernels of rows that multiply no matrices.
struct RowKernels {
  void (*norm_gradient)(const NormGradientTile& tile);
  void (*add_spans)(const RowSums& spans);
  void (*activate)(const ActivationRun& run);
  void (*activation_gradient)(const ActivationRun& run);
  void (*sum_rows)(const RowSelection& rows);
  void (*cross_entropy)(const CrossEntropyTile& tile);  // where elements are of the accumulator's type; else null
  void (*adamw)(const AdamWRun& run);
  double (*squares)(const void* elements, Index count);  // their sum; elements lie next to each other
};

/// The kernels of one element type.
struct DTypeKernels {
  int query_tile_rows;  // most rows of an AttentionTile
  std::size_t (*attention_scratch)(Index head_dim, Index value_dim);
  AttentionKernel attend;
  /// The same bits, faster for few rows: at most kMaxDecodeRows. head_dim and value_dim must be multiples of
  /// decode_lanes, and neighbours along them contiguous.
  AttentionKernel decode;
  int decode_lanes;
  int decode_rows;                                            // of more rows `attend` is faster
  void (*weights)(const AttentionTile& tile, void* scratch);  // out = softmax(scores)
  void (*scores)(const AttentionTile& tile, void* scratch);   // out = scores, masked ones minus infinity
  /// Statistics of softmax(scores). Values, out and lse of the tile are not used.
  void (*statistics)(const AttentionTile& tile, const StatisticsOutputs& outputs, void* scratch);
  /// Gradients of attention, where elements are of the accumulator's type; null for other types.
  void (*gradient)(const AttentionTile& tile, const GradientTile& gradients, void* scratch);
  std::size_t (*gradient_scratch)(Index head_dim, Index value_dim);
  void (*add_products)(const ProductTile& tile);  // likewise
  MaxSimKernel maxsim;
  std::size_t (*projection_scratch)(Index rows);
  ProjectionKernel project[kNumWeightFormats];  // only f32 rows have kernels for formats that are not plain; else null
  /// Rounds `count` numbers of the accumulator's type to elements; both are contiguous.
  void (*round)(const void* numbers, void* elements, Index count);
  /// The inverse: elements to numbers.
  void (*widen)(const void* elements, void* numbers, Index count);
  void (*normalize)(const NormalizeTile& tile);
  void (*rotate)(const RotateTile& tile);
  RowKernels rows;
};

/// Functions that test matrix registers: whether products, C += A B, have the bits that the kernels rely on, and, for a
/// model, how often kernels use it.
struct TileInstructions {
  /// A [16 rows][32 elements], B [16 pairs of elements][16 columns][2], C [16][16].
  void (*multiply_bf16)(const BFloat16* a, const BFloat16* b, float* c);
  /// A [16 rows][64 elements], B [16 fours of elements][16 columns][4], C [16][16].
  void (*multiply_bytes)(const std::uint8_t* a, const std::int8_t* b, std::int32_t* c);
  /// How many times the calling thread has configured them; null but for a model.
  std::int64_t (*times_configured)() = nullptr;
};

struct KernelTable {
  const char* isa;                // must equal the name in the registry
  const char* (*compiled_isa)();  // the same from code of the object: proves which object the linker kept
  void (*quantize_heads)(const QuantizeTile& tile);
  MaxSimKernel maxsim_int8;
  DTypeKernels kernels[kNumDTypes];
  TileInstructions tiles;  // null where the instruction set has none
};

}  // namespace mha
