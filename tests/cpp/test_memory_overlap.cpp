// Which views share memory, to one element.
#include "views/memory_overlap.hpp"

#include <gtest/gtest.h>

namespace mha {
namespace {

TEST(MemoryOverlap, RowsThatShareAnElement) {
  const float elements[12] = {};
  EXPECT_FALSE(may_overlap_itself(TensorView(elements, {2, 3}, {3, 1})));
  EXPECT_TRUE(may_overlap_itself(TensorView(elements, {2, 3}, {2, 1})));
  EXPECT_FALSE(may_overlap_itself(TensorView(elements, {3, 2}, {1, 3})));
  EXPECT_TRUE(may_overlap_itself(TensorView(elements, {3, 2}, {1, 2})));
  EXPECT_FALSE(may_overlap_itself(TensorView(elements + 5, {2, 3}, {-3, 1})));
  EXPECT_TRUE(may_overlap_itself(TensorView(elements + 5, {2, 3}, {-2, 1})));
}

TEST(MemoryOverlap, NeighboursAndBlocksThatShareAnElement) {
  const float elements[12] = {};
  const TensorView first(elements, {2, 3});
  EXPECT_FALSE(may_overlap(first, TensorView(elements + 6, {2, 3})));
  EXPECT_TRUE(may_overlap(first, TensorView(elements + 5, {2, 3})));
  // Columns of one array, between each other.
  const TensorView left(elements, {3, 2}, {4, 1});
  EXPECT_FALSE(may_overlap(left, TensorView(elements + 2, {3, 2}, {4, 1})));
  EXPECT_TRUE(may_overlap(left, TensorView(elements + 1, {3, 2}, {4, 1})));
}

}  // namespace
}  // namespace mha
