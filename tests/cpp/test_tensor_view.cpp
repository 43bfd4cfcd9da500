// TensorView: the views that its constructors make of a pointer, a shape and strides.
#include "mha/tensor_view.hpp"

#include <gtest/gtest.h>

#include <type_traits>

namespace mha {
namespace {

TEST(TensorView, IsEmptyByDefault) {
  const TensorView view;
  EXPECT_FALSE(view);
  EXPECT_EQ(view.rank, 0);
  EXPECT_EQ(view.data, nullptr);
}

TEST(TensorView, IsGivenEvenWithoutElements) {
  const float element = 0;
  EXPECT_TRUE(TensorView(&element, {2, 0, 3}));
}

TEST(TensorView, StridesOfADenseArrayCountElements) {
  double element = 0;
  const MutableTensorView view(&element, {2, 3, 5, 7});
  EXPECT_EQ(view.rank, 4);
  EXPECT_EQ(view.dtype, DType::f64);
  const Index extents[] = {2, 3, 5, 7}, strides[] = {105, 35, 7, 1};
  for (int axis = 0; axis < 4; ++axis) {
    EXPECT_EQ(view.extents[axis], extents[axis]);
    EXPECT_EQ(view.strides[axis], strides[axis]);
  }
}

TEST(TensorView, TakesStridesAsTheyAre) {
  const float element = 0;
  const TensorView view(&element, {4, 6}, {-1, 0});
  EXPECT_EQ(view.rank, 2);
  EXPECT_EQ(view.dtype, DType::f32);
  EXPECT_EQ(view.strides[0], -1);
  EXPECT_EQ(view.strides[1], 0);
}

TEST(TensorView, NeverHoldsMoreThanFourAxes) {
  const float element = 0;
  const TensorView view(&element, {1, 2, 3, 4, 5, 6}, {9, 8, 7, 6, 5, 4});
  EXPECT_EQ(view.rank, kMaxRank);
  EXPECT_EQ(view.extents[3], 4);
  EXPECT_EQ(view.strides[3], 6);
}

TEST(TensorView, KnowsTheTypeOfItsElements) {
  const float single = 0;
  const double twice = 0;
  const bool flag = false;
  EXPECT_EQ(TensorView(&single, {1}).dtype, DType::f32);
  EXPECT_EQ(TensorView(&twice, {1}).dtype, DType::f64);
  EXPECT_EQ(TensorView(&flag, {1}).dtype, DType::boolean);
  EXPECT_EQ(size_of(DType::f32), 4);
  EXPECT_EQ(size_of(DType::f64), 8);
  EXPECT_EQ(size_of(DType::boolean), 1);
}

TEST(TensorView, AWritableViewReadsAsAConstantOneAndNotBack) {
  static_assert(std::is_convertible_v<MutableTensorView, TensorView>);
  static_assert(!std::is_convertible_v<TensorView, MutableTensorView>);
  float element = 0;
  const MutableTensorView writable(&element, {2, 3}, {7, 2});
  const TensorView view = writable;
  EXPECT_EQ(view.data, &element);
  EXPECT_EQ(view.rank, 2);
  EXPECT_EQ(view.extents[1], 3);
  EXPECT_EQ(view.strides[0], 7);
}

}  // namespace
}  // namespace mha
