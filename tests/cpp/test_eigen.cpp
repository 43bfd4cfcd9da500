// Views of Eigen matrices: their shapes and strides, which of them are writable, and attention over them.
#include "mha/eigen.hpp"

#include <gtest/gtest.h>

#include <type_traits>
#include <vector>

#include "arrays.hpp"
#include "mha/attention.hpp"

namespace mha {
namespace {

using testing::Array;
using testing::nans;
using RowMajor = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
using RowMajorMap = Eigen::Map<RowMajor>;

template <class View>
void expect_layout(const View& view, const void* data, std::vector<Index> extents, std::vector<Index> strides) {
  EXPECT_EQ(view.data, data);
  EXPECT_EQ(std::vector<Index>(view.extents, view.extents + view.rank), extents);
  EXPECT_EQ(std::vector<Index>(view.strides, view.strides + view.rank), strides);
}

TEST(Eigen, EveryLayout) {
  Eigen::MatrixXf columns(3, 5);
  RowMajor rows(3, 5);
  Eigen::VectorXd vector(7);
  expect_layout(view(columns), columns.data(), {3, 5}, {1, 3});
  expect_layout(view(rows), rows.data(), {3, 5}, {5, 1});
  expect_layout(view(vector), vector.data(), {7}, {1});
  expect_layout(view(rows.transpose()), rows.data(), {5, 3}, {1, 5});
  expect_layout(view(rows.row(1)), rows.data() + 5, {5}, {1});
  expect_layout(view(rows.col(2)), rows.data() + 2, {3}, {5});
  expect_layout(view(rows.block(1, 2, 2, 3)), rows.data() + 7, {2, 3}, {5, 1});
  float memory[40];
  expect_layout(view(Eigen::Map<RowMajor, 0, Eigen::Stride<Eigen::Dynamic, 2>>(memory, 3, 4, {10, 2})), memory, {3, 4},
                {10, 2});
  EXPECT_EQ(view(rows).dtype, DType::f32);
  EXPECT_EQ(view(vector).dtype, DType::f64);
}

TEST(Eigen, OnlyWhatMayBeWrittenToIsWritable) {
  using Matrix = Eigen::MatrixXf;
  EXPECT_TRUE((std::is_same_v<ViewOf<Matrix&>, MutableTensorView>));
  EXPECT_TRUE((std::is_same_v<ViewOf<const Matrix&>, TensorView>));
  EXPECT_TRUE((std::is_same_v<ViewOf<Eigen::Map<Matrix>>, MutableTensorView>));
  EXPECT_TRUE((std::is_same_v<ViewOf<Eigen::Map<const Matrix>>, TensorView>));
  EXPECT_TRUE((std::is_same_v<ViewOf<const Eigen::Ref<const Matrix>&>, TensorView>));
  EXPECT_TRUE((std::is_same_v<ViewOf<Eigen::Ref<Matrix>&>, MutableTensorView>));
  const Matrix constant(2, 3);
  EXPECT_TRUE((std::is_same_v<decltype(view(constant.leftCols(2))), TensorView>));
}

TEST(Eigen, HeadsAreColumns) {
  constexpr Index T = 37, H = 3, D = 8;
  const auto x = Array<float>::random({T, H * D}, 1);
  const TensorView heads(x.data().data(), {H, T, D}, {D, H * D, 1});
  auto expected = nans<float>({H, T, D});
  scaled_dot_product_attention(heads, heads, heads, expected.view());

  const Eigen::Map<const RowMajor> rows(x.data().data(), T, H * D);
  const Eigen::MatrixXf columns = rows;
  expect_layout(view_heads(rows, H), x.data().data(), {H, T, D}, {D, H * D, 1});
  RowMajor out = RowMajor::Constant(T, H * D, std::numeric_limits<float>::quiet_NaN());
  scaled_dot_product_attention(view_heads(rows, H), view_heads(columns, H), view_heads(columns, H), view_heads(out, H));
  for (Index h = 0; h < H; ++h)
    for (Index t = 0; t < T; ++t)
      for (Index d = 0; d < D; ++d)
        ASSERT_EQ(out(t, h * D + d), expected.data()[static_cast<std::size_t>((h * T + t) * D + d)]);
}

}  // namespace
}  // namespace mha
