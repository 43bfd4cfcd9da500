// A block mask, of which the heads of a group see different blocks, against the reference.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "arrays.hpp"
#include "attention_reference.hpp"
#include "every_isa.hpp"
#include "mha/attention.hpp"

namespace mha {
namespace {

using testing::Array;
using testing::expect_close;
using testing::nans;
using testing::on_every_isa;
using testing::tolerance;

constexpr Index B = 2, H = 4, Hk = 2, Tk = 300, D = 16, kBlocks = 5;  // of keys

TEST(BlockMask, EachRowSeesItsOwnBlocks) {
  on_every_isa([] {
    for (Index queries : {1, 70, 130}) {
      SCOPED_TRACE(queries);
      const auto query = Array<float>::random({B, H, queries, D}, 1);
      const auto key = Array<float>::random({B, Hk, Tk, D}, 2), value = Array<float>::random({B, Hk, Tk, D}, 3);
      const Index rows = (queries + 63) / 64;
      std::vector<std::uint8_t> mask(std::size_t(B * H * rows * kBlocks));
      for (std::size_t i = 0; i < mask.size(); ++i) {  // one or two blocks of five, others in each row
        const std::size_t row = i / kBlocks, block = i % kBlocks;
        mask[i] = block == row % kBlocks || block == (3 * row + 1) % kBlocks;
      }
      AttentionOptions options;
      options.block_mask = {mask.data(), DType::boolean, {B, H, rows, kBlocks}};
      options.num_threads = 1;
      auto out = nans<float>({B, H, queries, D});
      scaled_dot_product_attention(query.view(), key.view(), value.view(), out.view(), {}, options);
      const auto expected = reference::scaled_dot_product_attention(query.view(), key.view(), value.view(), options);
      expect_close(out.data(), expected.out, tolerance<float>(D, Tk, 5) * 5);
    }
  });
}

TEST(BlockMask, BlocksThatNobodySeesAreNotRead) {
  constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
  for (Index queries : {1, 64}) {
    const auto query = Array<float>::random({B, H, queries, D}, 1);
    auto key = Array<float>::random({B, Hk, Tk, D}, 2), value = Array<float>::random({B, Hk, Tk, D}, 3);
    for (Index row = 0; row < B * Hk; ++row)
      for (Index i = (row * Tk + 128) * D; i < (row * Tk + 192) * D; ++i)
        key.data()[std::size_t(i)] = value.data()[std::size_t(i)] = kNaN;
    const std::uint8_t mask[kBlocks] = {1, 1, 0, 0, 1};
    AttentionOptions options;
    options.block_mask = {mask, DType::boolean, {1, 1, 1, kBlocks}};
    auto out = nans<float>({B, H, queries, D});
    scaled_dot_product_attention(query.view(), key.view(), value.view(), out.view(), {}, options);
    for (float element : out.data()) ASSERT_TRUE(std::isfinite(element));
  }
}

}  // namespace
}  // namespace mha
