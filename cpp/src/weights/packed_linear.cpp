#include "weights/packed_linear.hpp"

#include <algorithm>
#include <cstring>
#include <type_traits>
#include <vector>

#include "mha/half_precision.hpp"
#include "platform/cancellation.hpp"
#include "platform/floating_point_state.hpp"
#include "platform/parallel.hpp"
#include "views/sizes.hpp"
#include "weights/blocks.hpp"
#include "weights/int8_scale.hpp"

namespace mha {
namespace {

Index round_up(Index n, Index multiple) { return (n + multiple - 1) / multiple * multiple; }

template <class T>
T read(const void* at) {
  T value;
  std::memcpy(&value, at, sizeof value);
  return value;
}

template <class T>
void write(std::byte* at, T value) {
  std::memcpy(at, &value, sizeof value);
}

template <class View>
auto element(const View& view, Index i, Index j = 0) {
  using Byte =
      std::conditional_t<std::is_const_v<std::remove_pointer_t<decltype(view.data)>>, const std::byte, std::byte>;
  return static_cast<Byte*>(view.data) + (i * view.strides[0] + j * view.strides[1]) * size_of(view.dtype);
}

/// Copies one number, rounded once if the types differ. The same type keeps its bits, even of NaN.
void convert(std::byte* to, DType to_dtype, const std::byte* from, DType from_dtype) {
  if (to_dtype == from_dtype) {
    std::memcpy(to, from, static_cast<std::size_t>(size_of(to_dtype)));
    return;
  }
  double value = 0;
  switch (from_dtype) {
#define MHA_DTYPE(name, scalar, accumulator) \
  case DType::name:                          \
    value = to_double(read<scalar>(from));   \
    break;
#include "mha/dtypes.def"
#undef MHA_DTYPE
    case DType::boolean:
    case DType::int8:
      break;
  }
  switch (to_dtype) {
#define MHA_DTYPE(name, scalar, accumulator) \
  case DType::name:                          \
    return write(to, from_double<scalar>(value));
#include "mha/dtypes.def"
#undef MHA_DTYPE
    case DType::boolean:
    case DType::int8:
      break;
  }
}

/// A number in another type, rounded once. In the same type it keeps its bits, even of NaN.
template <class To, class From>
To converted(From from) {
  if constexpr (std::is_same_v<To, From>)
    return from;
  else
    return from_double<To>(to_double(from));
}

/// The largest magnitude in one row of an f32 matrix; NaN if the row has a NaN.
float largest_magnitude(const TensorView& weight, Index row) {
  float most = 0;
  for (Index input = 0; input < weight.extents[1] && !std::isnan(most); ++input) {
    const float size = std::abs(read<float>(element(weight, row, input)));
    if (!(size <= most)) most = size;
  }
  return most;
}

/// Multiply-adds that the time of packing a number is worth, in the formats that take least.
constexpr double kPackingWork = 8;

}  // namespace

/// The tasks of packing, one for each panel.
struct PackedLinear::Packing {
  PackedLinear& packed;
  const LinearWeights& weights;
  std::vector<Int4Row> int4;  // one for each worker

  static void pack_panel(const void* context, Index panel, int worker) {
    const FloatingPointState state(Subnormals::kept);
    Packing& all = *static_cast<Packing*>(const_cast<void*>(context));
    all.packed.pack(all.weights, panel, all.int4[static_cast<std::size_t>(worker)]);
  }
};

PackedLinear::PackedLinear(const LinearWeights& weights, Index segment_columns, WeightFormat format, int num_threads)
    : dtype_(weights.weight.dtype == DType::int8 ? DType::f32 : weights.weight.dtype),
      format_(has_blocks(weights.block_format) ? weights.block_format : format),
      has_bias_(bool(weights.bias)),
      in_features_(weights.in_features()),
      segments_(weights.out_features() / segment_columns),
      segment_columns_(segment_columns),
      padded_segment_columns_(round_up(segment_columns, kVectorBytes / column_bytes(dtype_))) {
  const double columns = double(segments_) * double(padded_segment_columns_) + double(kPanelBytes);
  const double rows = double(in_features_) + double(kInt4RowsOfGroup) + double(bias_rows());  // no less than below
  allocatable(columns * column_bytes(dtype_) * rows);
  panels_ = round_up(segments_ * padded_segment_columns_ * column_bytes(dtype_), kPanelBytes) / kPanelBytes;
  const std::size_t bytes = static_cast<std::size_t>(bias_at(panels_));
  data_ = allocate_weights(bytes);
  const double work = kPackingWork * double(weights.out_features()) * double(in_features_);
  const int threads = threads_for(num_threads, panels_, work);
  const Int4Row row(format_ == WeightFormat::int4 ? in_features_ : 0);
  const Packing packing{*this, weights, std::vector<Int4Row>(static_cast<std::size_t>(threads), row)};
  const Phase phase{panels_, &Packing::pack_panel, &packing};
  run_phases(&phase, 1, threads);
}

void PackedLinear::pack(const LinearWeights& weights, Index panel, Int4Row& int4) {
  // Zeros, where there are no columns or features. They are still in level 2 when weights take their place.
  std::memset(data_.get() + panel * panel_bytes(), 0, static_cast<std::size_t>(panel_bytes()));
  std::memset(data_.get() + bias_at(panel), 0, static_cast<std::size_t>(bias_at(panel + 1) - bias_at(panel)));
  if (format_ == WeightFormat::plain || format_ == WeightFormat::bf16)
    with_types([&](auto packed, auto number) {
      using Packed = decltype(packed);
      for_each_number<Packed, const decltype(number)>(
          panel, weights.weight, [](Packed& to, const auto& from) { to = converted<Packed>(from); });
    });
  if (has_blocks(format_)) pack_blocks(weights.weight, panel);
  for_each_feature(panel, [&](Index feature, std::byte* column, std::byte* bias_row) {
    if (Cancellation::of_this_thread().is_set()) return;
    if (has_bias_) convert(bias_row, accumulator_of(dtype_), element(weights.bias, feature), dtype_);
    if (format_ == WeightFormat::int4) return pack_int4(weights, feature, int4, column, bias_row);
    if (format_ == WeightFormat::int8) return pack_int8(weights, feature, column, bias_row);
  });
}

/// Packs a panel of blocks, one block of all columns after another: the bytes that they share in the panel are written
/// while they are in level 1.
void PackedLinear::pack_blocks(const TensorView& weight, Index panel) {
  const std::byte* next[kPanelColumns] = {};
  for_each_feature(panel, [&](Index feature, const std::byte* column, const std::byte*) {
    next[(column - data_.get()) % panel_bytes() / Index{sizeof(float)}] = element(weight, feature);
  });
  std::byte* unit = data_.get() + panel * panel_bytes();
  const BlockPanel block = block_panel(format_);
  for (Index first = 0; first < in_features_; first += block.features, unit += block.size())
    for (Index column = 0; column < kPanelColumns; ++column)
      if (next[column]) {
        pack_block(format_, next[column], unit, column);
        next[column] += block_bytes(format_);
      }
}

/// Calls visit(packed, number) with a weight as panels have it, and as a matrix has it that is given or copied.
template <class Visitor>
void PackedLinear::with_types(Visitor visit) const {
  if (format_ == WeightFormat::bf16) return visit(BFloat16(), float());
  if (format_ == WeightFormat::int8) return visit(std::int8_t(), std::int8_t());
  if (dtype_ == DType::f64) return visit(double(), double());
  if (dtype_ == DType::bf16) return visit(BFloat16(), BFloat16());
  if (dtype_ == DType::f16) return visit(float(), Float16());
  visit(float(), float());
}

/// Calls move(packed, number) for each weight of a panel and its number in a matrix. A block of inputs at a time, so that
/// the lines of memory that a block reads and writes are in level 1 until all of their numbers are moved, whether
/// neighbours of the matrix are inputs or features.
template <class Packed, class Number, class View, class Move>
void PackedLinear::for_each_number(Index panel, const View& matrix, Move move) const {
  constexpr Index kBlock = 16;                                                           // inputs: a line of f32
  constexpr Index n = std::max<Index>(Index{sizeof(float)} / Index(sizeof(Packed)), 1);  // inputs of a word
  constexpr Index row = kPanelBytes / Index(sizeof(Packed));
  Packed* const packed = reinterpret_cast<Packed*>(data_.get() + panel * panel_bytes());
  Number* const numbers = static_cast<Number*>(matrix.data);
  const Index between_features = matrix.strides[0], between_inputs = matrix.strides[1];
  const Index width = kPanelBytes / column_bytes(dtype_);
  for (Index first = 0; first < in_features_; first += kBlock) {
    const Index last = std::min(first + kBlock, in_features_);
    // Runs of columns that are features next to each other.
    for (Index column = panel * width, run; column < (panel + 1) * width; column += run) {
      const Index segment = column / padded_segment_columns_, within = column % padded_segment_columns_;
      if (segment >= segments_) break;
      run = std::min((panel + 1) * width - column, padded_segment_columns_ - within);
      const Index count = std::min(run, segment_columns_ - within);
      Number* const features = numbers + (segment * segment_columns_ + within) * between_features;
      Packed* const columns = packed + column % width * n;
      if (between_features == 1 && n == 1)
        for (Index input = first; input < last; ++input)
          for (Index c = 0; c < count; ++c) move(columns[input * row + c], features[input * between_inputs + c]);
      else
        for (Index c = 0; c < count; ++c)
          for (Index input = first; input < last; ++input)
            move(columns[input / n * row + c * n + input % n], features[c * between_features + input * between_inputs]);
    }
  }
}

void PackedLinear::pack_int8(const LinearWeights& weights, Index feature, std::byte* panel, std::byte* bias_row) {
  const TensorView& weight = weights.weight;
  const bool is_quantized = weight.dtype == DType::int8;
  const Int8Scale own(is_quantized ? 0 : largest_magnitude(weight, feature));
  std::int32_t sum = 0;
  for (Index input = 0; input < in_features_; ++input) {
    const std::byte* const from = element(weight, feature, input);
    const std::int8_t integer = is_quantized ? read<std::int8_t>(from) : own.integer(read<float>(from));
    write(panel + input / 4 * kPanelBytes + input % 4, integer);
    sum += integer;
  }
  write(bias_row + kPanelBytes, is_quantized ? read<float>(element(weights.scale, feature)) : own.value());
  write(bias_row + Index{2} * kPanelBytes, sum);
}

/// Weights that are given in int8 stay as they are, if four bits can hold the row; else they are numbers to quantize.
void PackedLinear::pack_int4(const LinearWeights& weights, Index feature, Int4Row& row, std::byte* panel,
                             std::byte* bias_row) {
  const TensorView& weight = weights.weight;
  const bool is_quantized = weight.dtype == DType::int8;
  float scale = is_quantized ? read<float>(element(weights.scale, feature)) : 0;
  for (Index input = 0; input < in_features_; ++input) {
    const std::byte* const from = element(weight, feature, input);
    if (is_quantized)
      row.integers()[input] = read<std::int8_t>(from);
    else
      row.numbers()[input] = read<float>(from);
  }
  if (!is_quantized || !row.pack()) {
    for (Index input = 0; is_quantized && input < in_features_; ++input)
      row.numbers()[input] = scale * float(row.integers()[input]);
    scale = row.quantize();
    row.pack();
  }
  std::int32_t sum = 0;
  for (Index input = 0; input < in_features_; ++input) sum += row.integers()[input];
  for (Index i = 0; i < panel_rows(); ++i) write(panel + i * kPanelBytes, row.words()[i]);
  write(bias_row + kPanelBytes, scale);
  write(bias_row + Index{2} * kPanelBytes, sum);
}

void PackedLinear::unpack(const LinearWeightOutputs& outputs) const {
  Int4Row int4(format_ == WeightFormat::int4 ? in_features_ : 0);
  const bool are_rows = format_ == WeightFormat::int4 || has_blocks(format_);
  for (Index p = 0; p < panels_; ++p) {
    if (outputs.weight && !are_rows)
      with_types([&](auto packed, auto number) {
        using Number = decltype(number);
        for_each_number<const decltype(packed), Number>(
            p, outputs.weight, [](const auto& from, Number& to) { to = converted<Number>(from); });
      });
    for_each_feature(p, [&](Index feature, const std::byte* panel, const std::byte* bias_row) {
      if (outputs.bias && has_bias_) convert(element(outputs.bias, feature), dtype_, bias_row, accumulator_of(dtype_));
      if (outputs.scale && has_scales(format_))
        convert(element(outputs.scale, feature), DType::f32, bias_row + kPanelBytes, DType::f32);
      if (!outputs.weight || !are_rows) return;
      if (has_blocks(format_))
        return for_each_block(panel, outputs.weight, feature, [&](const std::byte* unit, Index at, std::byte* block) {
          unpack_block(format_, unit, at, block);
        });
      for (Index i = 0; i < panel_rows(); ++i) int4.words()[i] = read<std::uint32_t>(panel + i * kPanelBytes);
      int4.unpack();
      for (Index input = 0; input < in_features_; ++input)
        write(element(outputs.weight, feature, input), int4.integers()[input]);
    });
  }
}

void PackedLinear::dequantize_row(Index feature, float* weights) const {
  const Index column = feature / segment_columns_ * padded_segment_columns_ + feature % segment_columns_;
  const Index features = block_features(format_);
  const std::byte* unit = panel(column / kPanelColumns);
  for (Index first = 0; first < in_features_; first += features, unit += block_panel(format_).size()) {
    std::byte block[kMostBlockBytes];
    unpack_block(format_, unit, column % kPanelColumns, block);
    dequantize_blocks(format_, block, 1, weights + first);
  }
}

/// Calls visit(feature, panel, bias) for each output feature of panel p: `panel` is its column in the first row of the
/// panel, `bias` its column in the bias row.
template <class Visitor>
void PackedLinear::for_each_feature(Index p, Visitor visit) const {
  const Index size = column_bytes(dtype_), width = kPanelBytes / size;
  for (Index column = p * width; column < (p + 1) * width; ++column) {
    const Index segment = column / padded_segment_columns_, within = column % padded_segment_columns_;
    if (segment >= segments_ || within >= segment_columns_) continue;
    const Index offset = column % width * size;
    visit(segment * segment_columns_ + within, data_.get() + p * panel_bytes() + offset,
          data_.get() + bias_at(p) + offset);
  }
}

/// Calls visit(unit, column, block) for each block of an output feature: `panel` is the column of the feature in the
/// first row of a panel, `matrix` has the blocks as they lie in a file. A row of `matrix` may lie anywhere, but its bytes
/// are next to each other.
template <class Byte, class View, class Visitor>
void PackedLinear::for_each_block(Byte* panel, const View& matrix, Index feature, Visitor visit) const {
  const Index size = block_panel(format_).size(), bytes = block_bytes(format_), features = block_features(format_);
  if (features == 0) return;  // a format without blocks
  const Index column = (panel - data_.get()) % panel_bytes() / Index{sizeof(float)};
  Byte* unit = panel - column * Index{sizeof(float)};
  auto* block = element(matrix, feature);
  for (Index b = 0; b < in_features_ / features; ++b, unit += size, block += bytes) visit(unit, column, block);
}

}  // namespace mha
