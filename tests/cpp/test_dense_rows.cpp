// Rows of any strides: those that are not evenly spaced are brought together, and results go back to their places.
#include <gtest/gtest.h>

#include "arrays.hpp"
#include "mha/transformer.hpp"

namespace mha {
namespace {

using testing::Array;

constexpr Index kBatch = 2, kRows = 3, kWidth = 8;

/// Every other one of the [2 * kBatch, kRows, kWidth] of `array`.
template <class View>
View every_other(const Array<float>& array) {
  return View(array.view().data, DType::f32, {kBatch, kRows, kWidth}, {2 * kRows * kWidth, kWidth, 1});
}

TEST(DenseRows, OfEveryOtherElementOfABatch) {
  const Array<float> given = Array<float>::random({2 * kBatch, kRows, kWidth}, 1);
  const Array<float> weight({kWidth}, 2);
  const LayerNorm norm(weight.view());
  Array<float> all({2 * kBatch, kRows, kWidth}, 0), some({2 * kBatch, kRows, kWidth}, 3);
  norm.forward(given.view(), all.view());
  norm.forward(every_other<TensorView>(given), every_other<MutableTensorView>(some));
  for (Index i = 0; i < 2 * kBatch * kRows * kWidth; ++i) {
    const bool is_asked = i / (kRows * kWidth) % 2 == 0;
    EXPECT_EQ(some.data()[i], is_asked ? all.data()[i] : 3) << "element " << i;
  }
}

}  // namespace
}  // namespace mha
