// Weights in bfloat16, int8 and int4: panels, kernels, and weights that are given as they are stored.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>
#include <vector>

#include "arrays.hpp"
#include "checks/weights.hpp"
#include "mha/half_precision.hpp"
#include "mha/mha.hpp"
#include "row_kernels.hpp"
#include "weights/packed_linear.hpp"

namespace mha {
namespace {

using testing::expect_words;
using testing::kNaN;
using testing::message_of;
using testing::random;
using testing::same_bits;

using WeightKernels = testing::RowKernelsOf<float>;

struct AlignedBytes {
  explicit AlignedBytes(std::size_t count) : lines((count + kVectorBytes - 1) / kVectorBytes + 1) {}
  struct alignas(kVectorBytes) Line {
    std::byte bytes[kVectorBytes];
  };
  std::byte* data() { return lines.data()->bytes; }
  std::vector<Line> lines;
};

/// Projects rows to all columns. The results of each segment lie where `out` says: [rows][segments * columns], with
/// `step` elements from one column to the next.
std::vector<float> project(const DTypeKernels& kernels, const PackedLinear& linear, const std::vector<float>& x,
                           Index step, Activation activation, bool fetches_ahead = false) {
  const Index in = linear.in_features(), rows = static_cast<Index>(x.size()) / in;
  const Index width = linear.segments() * linear.segment_columns();
  std::vector<float> out(static_cast<std::size_t>(rows * width * step), kNaN<float>);
  AlignedBytes scratch(kernels.projection_scratch(rows));
  ProjectionTile tile{};
  tile.rows = rows;
  tile.fetches_ahead = fetches_ahead;
  tile.in_features = in;
  tile.x = x.data();
  tile.x_row = in;
  tile.x_step = 1;
  tile.activation = activation;
  const ProjectionKernel& kernel = kernels.project[static_cast<int>(linear.format())];
  AlignedBytes memory(kernel.read_bytes(rows, in));
  kernel.read(tile, memory.data());
  tile.out_row = width * step;
  tile.out_step = step;
  for (Index p = 0; p < linear.panels(); ++p) {
    tile.panel = linear.panel(p);
    tile.bias = linear.bias(p);
    for (Index g = 0; g < 4; ++g) {
      const Index column = p * 64 + g * 16, padded = linear.padded_segment_columns();
      const Index segment = column / padded, within = column % padded;
      tile.group_columns[g] = 0;
      if (segment >= linear.segments()) continue;
      tile.group_columns[g] = std::min<Index>(16, std::max<Index>(0, linear.segment_columns() - within));
      tile.out[g] = out.data() + (segment * linear.segment_columns() + within) * step;
    }
    kernel.run(tile, scratch.data());
  }
  std::vector<float> dense;
  for (std::size_t i = 0; i < out.size(); ++i)
    if (static_cast<Index>(i) % step == 0)
      dense.push_back(out[i]);
    else
      EXPECT_TRUE(std::isnan(out[i])) << "written between results";
  return dense;
}

struct Matrix {
  Index out, in;
  std::vector<float> weight = random<float>(out * in, 1), bias = random<float>(out, 2);
  TensorView weights() const { return {weight.data(), {out, in}}; }
  TensorView biases() const { return {bias.data(), {out}}; }
};

constexpr WeightFormat kFormats[] = {WeightFormat::plain, WeightFormat::bf16, WeightFormat::int8, WeightFormat::int4};
constexpr Activation kActivations[] = {Activation::none, Activation::relu, Activation::gelu};

/// Segments of 5, 16, 40 and 64 columns: the last column is at every place of a panel's groups, and some panels are
/// padding.
struct Shape {
  Index segments, columns, in;
};
constexpr Shape kShapes[] = {{1, 64, 64}, {3, 5, 7}, {5, 40, 130}, {1, 70, 1}, {2, 16, 900}};

TEST_F(WeightKernels, Bf16HasTheBitsOfRoundedWeights) {
  for (const auto& [segments, columns, in] : kShapes) {
    SCOPED_TRACE(in);
    const Matrix matrix{segments * columns, in};
    Matrix rounded = matrix;
    for (float& weight : rounded.weight) weight = to_float(to_bfloat16(weight));
    const PackedLinear packed({matrix.weights(), matrix.biases()}, columns, WeightFormat::bf16);
    const PackedLinear plain({rounded.weights(), matrix.biases()}, columns);
    on_every_isa([&](const DTypeKernels& kernels) {
      for (const Index rows : {1, 2, 5, 6, 7, 13})
        for (const Index step : {1, 3})
          for (const Activation activation : kActivations) {
            const std::vector<float> x = random<float>(rows * in, 3);
            EXPECT_TRUE(
                same_bits(project(kernels, packed, x, step, activation), project(kernels, plain, x, step, activation)));
          }
    });
  }
}

/// A row alone is multiplied by as many columns at a time as there are accumulators, and many rows fetch the columns
/// that come next.
TEST_F(WeightKernels, ARowAloneHasTheBitsThatItHasAmongOthers) {
  constexpr Index kRows = 25;
  for (const auto& [segments, columns, in] : kShapes)
    for (const WeightFormat format : kFormats) {
      SCOPED_TRACE(in);
      const Matrix matrix{segments * columns, in};
      const PackedLinear packed({matrix.weights(), matrix.biases()}, columns, format);
      const std::vector<float> x = random<float>(kRows * in, 3);
      on_every_isa([&](const DTypeKernels& kernels) {
        for (const Index step : {1, 3})
          for (const Activation activation : kActivations) {
            std::vector<float> alone;
            for (auto row = x.begin(); row != x.end(); row += in)
              for (const float result : project(kernels, packed, {row, row + in}, step, activation))
                alone.push_back(result);
            EXPECT_TRUE(same_bits(alone, project(kernels, packed, x, step, activation)));
          }
      });
    }
}

TEST_F(WeightKernels, FewRowsThatFetchAheadHaveTheSameBits) {
  for (const auto& [segments, columns, in] : kShapes)
    for (const WeightFormat format : kFormats) {
      SCOPED_TRACE(in);
      const Matrix matrix{segments * columns, in};
      const PackedLinear packed({matrix.weights(), matrix.biases()}, columns, format);
      on_every_isa([&](const DTypeKernels& kernels) {
        for (const Index rows : {1, 2, 3}) {
          const std::vector<float> x = random<float>(rows * in, 3);
          EXPECT_TRUE(same_bits(project(kernels, packed, x, 1, Activation::relu, true),
                                project(kernels, packed, x, 1, Activation::relu, false)));
        }
      });
    }
}

/// The rule of docs/numerics.md, in integers.
std::vector<float> int8_oracle(const Matrix& matrix, const std::vector<float>& x) {
  const auto quantize = [](const float* numbers, Index count, bool is_symmetric, float* scale) {
    float high = 0, low = 0;
    for (Index i = 0; i < count; ++i) high = std::max(high, numbers[i]), low = std::min(low, numbers[i]);
    float limit = std::max(high, -low);
    const auto is_outlier = [&](float number) { return std::abs(number) > limit / 2; };
    for (int i = 0; !is_symmetric && i < kMostHalvings; ++i, limit /= 2)
      if (std::count_if(numbers, numbers + count, is_outlier) > most_outliers(count)) break;
    high = std::min(high, limit), low = std::max(low, -limit);
    const float range = is_symmetric ? std::max(high, -low) : 0.5f * high - 0.5f * low;
    const float most = std::max(range, kLeastQuantizedMax);
    *scale = most / 127;
    const float factor = 127 / most;
    std::vector<std::int64_t> integers;
    for (Index i = 0; i < count; ++i) {
      const volatile float product = numbers[i] * factor;  // rounded
      integers.push_back(std::llrint(product));
    }
    return integers;
  };
  std::vector<float> out;
  for (Index r = 0; r < static_cast<Index>(x.size()) / matrix.in; ++r)
    for (Index c = 0; c < matrix.out; ++c) {
      float x_scale, w_scale;
      const auto row = quantize(&x[static_cast<std::size_t>(r * matrix.in)], matrix.in, false, &x_scale);
      const auto weights = quantize(&matrix.weight[static_cast<std::size_t>(c * matrix.in)], matrix.in, true, &w_scale);
      const std::int64_t sum = std::inner_product(row.begin(), row.end(), weights.begin(), std::int64_t{0});
      const volatile float scale = x_scale * w_scale, scaled = static_cast<float>(sum) * scale;
      out.push_back(scaled + matrix.bias[static_cast<std::size_t>(c)]);
    }
  return out;
}

TEST_F(WeightKernels, Int8IsExact) {
  for (const auto& [segments, columns, in] : kShapes) {
    SCOPED_TRACE(in);
    const Matrix matrix{segments * columns, in};
    const PackedLinear packed({matrix.weights(), matrix.biases()}, columns, WeightFormat::int8);
    for (const Index rows : {1, 6, 7, 13}) {
      const std::vector<float> x = random<float>(rows * in, 3), expected = int8_oracle(matrix, x);
      std::vector<float> positive = expected;
      for (float& element : positive) element = element < 0 ? 0 : element;
      on_every_isa([&](const DTypeKernels& kernels) {
        for (const Index step : {1, 3}) {
          EXPECT_TRUE(same_bits(project(kernels, packed, x, step, Activation::none), expected));
          EXPECT_TRUE(same_bits(project(kernels, packed, x, step, Activation::relu), positive));
        }
      });
    }
  }
}

/// Rows with as many outliers as there may be, and one more, each as large as 16 bits hold, and more.
TEST_F(WeightKernels, Int8IsExactWithOutliers) {
  constexpr Index kIn = 300, kOut = 70, kMost = most_outliers(kIn);
  Matrix matrix{kOut, kIn};
  for (std::size_t i = 0; i < matrix.weight.size(); i += 3) matrix.weight[i] = i % 2 ? 1.0f : -1.0f;
  const PackedLinear packed({matrix.weights(), matrix.biases()}, kOut, WeightFormat::int8);
  for (const float size : {100.0f, 128.0f, 1000.0f})
    for (const Index count : {Index{1}, kMost, kMost + 1}) {
      SCOPED_TRACE(::testing::Message() << count << " outliers of " << size);
      std::vector<float> x = random<float>(7 * kIn, 3);
      for (Index r = 0; r < 7; ++r)
        for (Index i = 0; i < count; ++i)
          x[static_cast<std::size_t>(r * kIn + (r * 41 + i * 97) % kIn)] = (r + i) % 3 ? size : -size;
      const std::vector<float> expected = int8_oracle(matrix, x);
      on_every_isa([&](const DTypeKernels& kernels) {
        for (const Index step : {1, 3})
          EXPECT_TRUE(same_bits(project(kernels, packed, x, step, Activation::none), expected));
      });
    }
}

/// The largest products of bytes, where instructions that saturate, or that take signs for digits, would go wrong.
TEST_F(WeightKernels, Int8IsExactAtTheEndsOfTheRange) {
  constexpr Index kIn = 1026, kOut = 70, kRows = 7;
  for (const float sign : {1.0f, -1.0f})
    for (const float other_input : {-1.0f, 0.0f, 1.0f})
      for (const float other_weight : {-1.0f, 0.0f, 1.0f}) {
        SCOPED_TRACE(::testing::Message() << sign << " and " << other_input << " times 1 and " << other_weight);
        Matrix matrix{kOut, kIn};
        std::vector<float> x(kRows * kIn);
        for (std::size_t i = 0; i < x.size(); ++i) x[i] = sign * (i % 3 == 0 ? other_input : 1);
        for (std::size_t i = 0; i < matrix.weight.size(); ++i) matrix.weight[i] = i / 2 % 3 == 0 ? other_weight : 1;
        const PackedLinear packed({matrix.weights(), matrix.biases()}, kOut, WeightFormat::int8);
        const std::vector<float> expected = int8_oracle(matrix, x);
        on_every_isa([&](const DTypeKernels& kernels) {
          EXPECT_TRUE(same_bits(project(kernels, packed, x, 1, Activation::none), expected));
        });
      }
}

/// A matrix in int4, as the integers and scales that it stands for.
struct Int4Integers {
  explicit Int4Integers(const Matrix& matrix)
      : out(matrix.out), in(matrix.in), integers(matrix.weight.size()), scale(static_cast<std::size_t>(matrix.out)) {
    const LinearWeights weights{matrix.weights(), matrix.biases(), {}};
    PackedLinear(weights, out, WeightFormat::int4).unpack({{integers.data(), {out, in}}, {}, {scale.data(), {out}}});
  }
  LinearWeights with(const Matrix& matrix) const {
    return {{integers.data(), {out, in}}, matrix.biases(), {scale.data(), {out}}};
  }
  Index out, in;
  std::vector<std::int8_t> integers;
  std::vector<float> scale;
};

/// Blocks of 512 features that become int8 weights, and groups of 16 that the features do not fill.
TEST_F(WeightKernels, Int4HasTheBitsOfInt8) {
  for (const auto& [segments, columns, in] :
       {Shape{1, 64, 64}, Shape{3, 5, 7}, Shape{5, 40, 130}, Shape{1, 70, 1}, Shape{2, 16, 900}, Shape{1, 33, 1041}}) {
    SCOPED_TRACE(in);
    const Matrix matrix{segments * columns, in};
    const Int4Integers stored(matrix);
    const PackedLinear int4({matrix.weights(), matrix.biases(), {}}, columns, WeightFormat::int4);
    const PackedLinear again(stored.with(matrix), columns, WeightFormat::int4);
    const PackedLinear int8(stored.with(matrix), columns, WeightFormat::int8);
    EXPECT_EQ(std::memcmp(again.panel(0), int4.panel(0), static_cast<std::size_t>(int4.bias(0) - int4.panel(0))), 0);
    for (const Index rows : {1, 2, 3, 4, 5, 8, 30, 70}) {
      std::vector<float> x = random<float>(rows * in, 3);
      for (Index i = 0; i < rows * in; i += 97) x[static_cast<std::size_t>(i)] *= i % 2 ? 100.0f : -3000.0f;
      on_every_isa([&](const DTypeKernels& kernels) {
        for (const Index step : {1, 3})
          for (const Activation activation : kActivations)
            EXPECT_TRUE(
                same_bits(project(kernels, int4, x, step, activation), project(kernels, int8, x, step, activation)));
      });
    }
  }
}

/// Integers that four bits cannot hold are numbers to quantize.
TEST(WeightFormats, IntegersOfEightBitsBecomeFour) {
  const Index in = 40;
  Matrix matrix{3, in};
  std::vector<std::int8_t> integers(3 * in);
  const std::vector<float> scale = {1, 0.5f, 2};
  for (Index i = 0; i < in; ++i) {
    integers[static_cast<std::size_t>(i)] = static_cast<std::int8_t>(i % 16 * 15 - 120);  // -8 to 7, times 15
    integers[static_cast<std::size_t>(in + i)] = static_cast<std::int8_t>(i * 3 - 60);    // of no multiplier
    integers[static_cast<std::size_t>(2 * in + i)] = static_cast<std::int8_t>(-128 * (i == 7));
  }
  for (std::size_t i = 0; i < matrix.weight.size(); ++i)
    matrix.weight[i] = float(integers[i]) * scale[i / static_cast<std::size_t>(in)];
  std::vector<std::int8_t> found(3 * in), expected(3 * in);
  std::vector<float> found_scale(3), expected_scale(3);
  PackedLinear({{integers.data(), {3, in}}, {}, {scale.data(), {3}}}, 3, WeightFormat::int4)
      .unpack({{found.data(), {3, in}}, {}, {found_scale.data(), {3}}});
  PackedLinear({matrix.weights(), {}, {}}, 3, WeightFormat::int4)
      .unpack({{expected.data(), {3, in}}, {}, {expected_scale.data(), {3}}});
  EXPECT_TRUE(std::equal(found.begin(), found.begin() + in, integers.begin()));
  EXPECT_EQ(found_scale[0], 1);
  EXPECT_TRUE(std::equal(found.begin() + in, found.end(), expected.begin() + in));
  EXPECT_NE(found[static_cast<std::size_t>(in)], integers[static_cast<std::size_t>(in)]);
  EXPECT_EQ(found_scale[1], expected_scale[1]);
  EXPECT_EQ(float(found[2 * in + 7]) * found_scale[2], -256);
}

TEST_F(WeightKernels, QuantizedRowsDoNotDependOnHowTheyLie) {
  const Index in = 137;
  std::vector<float> x = random<float>(2 * in, 4);
  for (const std::size_t at : {5u, 102u, 137u, 272u}) x[at] = at % 2 ? float(at) : -float(at);  // two in each row
  std::vector<float> spread(x.size() * 3, kNaN<float>);
  for (std::size_t i = 0; i < x.size(); ++i) spread[3 * i] = x[i];
  on_every_isa([&](const DTypeKernels& kernels) {
    const ProjectionKernel& kernel = kernels.project[static_cast<int>(WeightFormat::int8)];
    const std::size_t bytes = kernel.read_bytes(2, in);
    AlignedBytes dense(bytes), strided(bytes);
    ProjectionTile tile{};
    tile.rows = 2;
    tile.in_features = in;
    tile.x = x.data();
    tile.x_row = in;
    tile.x_step = 1;
    ProjectionTile other = tile;
    other.x = spread.data();
    other.x_row = 3 * in;
    other.x_step = 3;
    kernel.read(tile, dense.data());
    kernel.read(other, strided.data());
    EXPECT_EQ(std::memcmp(dense.data(), strided.data(), bytes), 0);
    EXPECT_EQ(tile.x_row, other.x_row);
    EXPECT_NE(tile.x_scales[0].scale, tile.x_scales[1].scale);
  });
}

TEST(WeightFormats, WeightsComeOutAsTheyAreStored) {
  const Matrix matrix{12, 7};
  std::vector<float> rounded(matrix.weight.size(), kNaN<float>), bias(12, kNaN<float>), scale(12, kNaN<float>);
  std::vector<std::int8_t> integers(matrix.weight.size(), 99);
  PackedLinear({matrix.weights(), matrix.biases()}, 6, WeightFormat::bf16).unpack({{rounded.data(), {12, 7}}});
  for (std::size_t i = 0; i < rounded.size(); ++i) EXPECT_EQ(rounded[i], to_float(to_bfloat16(matrix.weight[i])));

  const PackedLinear packed({matrix.weights(), matrix.biases()}, 6, WeightFormat::int8);
  packed.unpack({{integers.data(), {12, 7}}, {bias.data(), {12}}, {scale.data(), {12}}});
  EXPECT_EQ(bias, matrix.bias);
  const TensorView stored(integers.data(), {12, 7});
  const PackedLinear again({stored, matrix.biases(), {scale.data(), {12}}}, 6, WeightFormat::int8);
  EXPECT_EQ(again.dtype(), DType::f32);
  EXPECT_EQ(std::memcmp(again.panel(0), packed.panel(0), static_cast<std::size_t>(again.bias(1) - again.panel(0))), 0);
}

TEST(WeightFormats, ALayerTakesWhatItGives) {
  const Index E = 12;
  const Matrix matrix{E, E};
  MultiHeadAttentionConfig config = {E, 3};
  config.weight_format = WeightFormat::int8;
  MultiHeadAttentionWeights weights = {{matrix.weights(), matrix.biases()},
                                       {matrix.weights(), matrix.biases()},
                                       {matrix.weights(), matrix.biases()},
                                       {matrix.weights(), matrix.biases()}};
  const MultiHeadAttention layer(config, weights);
  EXPECT_EQ(layer.dtype(), DType::f32);
  EXPECT_EQ(layer.config().weight_format, WeightFormat::int8);
  std::vector<std::int8_t> integers(E * E);
  std::vector<float> scale(E);
  MultiHeadAttention::WeightOutputs outputs{};
  outputs.key.weight = {integers.data(), {E, E}};
  outputs.key.scale = {scale.data(), {E}};
  layer.copy_weights(outputs);
  const TensorView stored(integers.data(), {E, E}), scales(scale.data(), {E});
  weights.query = weights.key = weights.value = weights.out = {stored, matrix.biases(), scales};
  const MultiHeadAttention other(config, weights);

  const std::vector<float> x = random<float>(4 * E, 9);
  std::vector<float> out(4 * E, kNaN<float>), expected(4 * E, kNaN<float>);
  const TensorView rows(x.data(), {4, E});
  layer.forward(rows, rows, rows, {expected.data(), {4, E}});
  other.forward(rows, rows, rows, {out.data(), {4, E}});
  EXPECT_TRUE(same_bits(out, expected));
}

TEST(WeightFormats, CopiesFitWhatIsStored) {
  const Index E = 12;
  const Matrix matrix{E, E};
  const MultiHeadAttentionConfig config = {E, 3};
  const MultiHeadAttention layer(config, {{matrix.weights(), matrix.biases()},
                                          {matrix.weights(), matrix.biases()},
                                          {matrix.weights(), matrix.biases()},
                                          {matrix.weights(), matrix.biases()}});
  const FeedForward network({{matrix.weights(), matrix.biases()}, {matrix.weights(), matrix.biases()}},
                            Activation::relu);
  std::vector<float> good(E * E, kNaN<float>);
  std::vector<std::int8_t> integers(E * E);
  MultiHeadAttention::WeightOutputs copies{};
  copies.query.weight = {good.data(), {E, E}};
  copies.out.weight = {integers.data(), {E, E}};
  EXPECT_THROW(layer.copy_weights(copies), DTypeError);
  copies.out.weight = {good.data(), {E, E - 1}};
  EXPECT_THROW(layer.copy_weights(copies), std::invalid_argument);
  copies.out.weight = {};
  copies.key.bias = {good.data(), {E + 1}};
  EXPECT_THROW(layer.copy_weights(copies), std::invalid_argument);
  EXPECT_THROW(network.copy_weights({{{good.data(), {E, E}, {0, 1}}}, {}}), std::invalid_argument);
  EXPECT_THROW(network.copy_weights({{{}, {integers.data(), {E}}}, {}}), DTypeError);
  EXPECT_THROW(LayerNorm(matrix.biases()).copy_weights({good.data(), {E - 1}}, {}), std::invalid_argument);
  EXPECT_TRUE(std::all_of(good.begin(), good.end(), [](float x) { return std::isnan(x); })) << "nothing is written";
}

TEST(WeightFormats, WrongWeights) {
  const Index E = 8;
  const std::vector<float> f32(64), scale(8);
  const std::vector<double> f64(64);
  const std::vector<std::int8_t> int8(64);
  const TensorView single(f32.data(), {E, E}), wide(f64.data(), {E, E}), bytes(int8.data(), {E, E});
  const TensorView scales(scale.data(), {E}), few(scale.data(), {E - 1}), wide_scales(f64.data(), {E});
  const auto dtype_message = [](const FeedForwardWeights& weights, WeightFormat format) {
    return message_of<DTypeError>([&] { FeedForward(weights, Activation::relu, format); });
  };
  const auto message = [](const FeedForwardWeights& weights, WeightFormat format) {
    return message_of<std::invalid_argument>([&] { FeedForward(weights, Activation::relu, format); });
  };
  for (const WeightFormat format : {WeightFormat::bf16, WeightFormat::int8, WeightFormat::int4})
    expect_words(dtype_message({wide, wide}, format), {"FeedForward", "float32", "up_weight float64"});
  for (const WeightFormat format : {WeightFormat::plain, WeightFormat::bf16}) {
    expect_words(dtype_message({{bytes, {}, scales}, {bytes, {}, scales}}, format), {"FeedForward", "int8"});
    expect_words(message({{single, {}, scales}, single}, format), {"up_scale", "int8", "[8]"});
  }
  constexpr WeightFormat kInt8 = WeightFormat::int8;
  expect_words(message({single, {single, {}, scales}}, kInt8), {"down_scale", "int8"});
  expect_words(message({{bytes, {}, scales}, {bytes, {}, few}}, kInt8),
               {"down_scale", "row of down_weight", "[7]", "[8, 8]"});
  expect_words(message({{bytes, {}, scales}, bytes}, kInt8), {"down_scale", "row of down_weight"});
  expect_words(message({{bytes, {}, scales}, {{}, {}, scales}}, kInt8), {"down_weight must have 2 axes"});
  expect_words(dtype_message({{bytes, {}, scales}, {single, {}, scales}}, kInt8), {"int8", "down_weight float32"});
  expect_words(dtype_message({single, bytes}, kInt8), {"up_weight float32", "down_weight int8"});
  expect_words(dtype_message({{bytes, {}, scales}, {bytes, {}, wide_scales}}, kInt8), {"down_scale", "float64"});
  expect_words(dtype_message({{bytes, wide_scales, scales}, {bytes, {}, scales}}, kInt8), {"up_bias float64"});
  const TensorView endless(f32.data(), {1, kMostInt8Features + 1}, {0, 0}),
      turned(f32.data(), {kMostInt8Features + 1, 1}, {0, 0});
  expect_words(message({endless, turned}, kInt8), {"up_weight in int8", "at most 66052", "[1, 66053]"});
  expect_words(message({endless, turned}, WeightFormat::int4), {"up_weight in int4", "at most 66052", "[1, 66053]"});
}

}  // namespace
}  // namespace mha
