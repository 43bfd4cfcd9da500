// Attention over pages has the bits of attention over a dense cache, wherever the pages lie and whoever else has them.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <vector>

#include "arrays.hpp"
#include "every_isa.hpp"
#include "mha/attention.hpp"
#include "mha/kv_cache.hpp"
#include "mha/paged_kv_cache.hpp"

namespace mha {
namespace {

using testing::Array;
using testing::nans;
using testing::on_every_isa;

constexpr Index B = 3, H = 4, Hk = 2, D = 16, Dv = 24;

/// A paged cache and a dense one that get the same tokens.
struct Caches {
  Caches(Index page_size, DType dtype)
      : paged({1600 / page_size, page_size, B, Hk, D, Dv, dtype}), dense({B, Hk, 1000, D, Dv, dtype}) {}

  /// Other tokens in each call.
  void append(std::vector<std::int64_t> counts) {
    const Index most = *std::max_element(counts.begin(), counts.end());
    const auto key = Array<float>::random({B, Hk, most, D}, ++seed);
    const auto value = Array<float>::random({B, Hk, most, Dv}, ++seed);
    for (KVCache* const cache : {static_cast<KVCache*>(&paged), &dense})
      cache->append(key.view(), value.view(), counts.data());
  }
  void release(Index sequence) {
    std::vector<std::int64_t> counts(B, 0);
    counts[std::size_t(sequence)] = dense.lengths()[sequence];
    paged.release(sequence);
    dense.rollback(counts.data());
  }
  /// The dense cache copies the tokens.
  void fork(Index sequence, Index into, Index length) {
    paged.fork(sequence, into, length);
    std::vector<std::int64_t> index{0, 1, 2}, counts(B, 0);
    index[std::size_t(into)] = sequence;
    dense.reorder(index.data());
    counts[std::size_t(into)] = dense.lengths()[into] - length;
    dense.rollback(counts.data());
  }
  void expect_same() const {
    ASSERT_TRUE(paged.check_pages());
    for (Index queries : {1, 3, 70}) {
      const auto query = Array<float>::random({B, H, queries, D}, 7);
      for (int threads : {1, 3}) {
        AttentionOptions options;
        options.num_threads = threads;
        auto of_pages = nans<float>({B, H, queries, Dv}), expected = nans<float>({B, H, queries, Dv});
        scaled_dot_product_attention(query.view(), paged, of_pages.view(), {}, options);
        scaled_dot_product_attention(query.view(), dense, expected.view(), {}, options);
        ASSERT_EQ(of_pages.data(), expected.data()) << queries << " queries, " << threads << " threads";
      }
    }
  }

  PagedKVCache paged;
  KVCache dense;
  unsigned seed = 0;
};

TEST(PagedAttention, PagesNeedNotBeNeighbours) {
  on_every_isa([] {
    for (Index page_size : {64, 128})
      for (DType dtype : {DType::f32, DType::int8}) {
        Caches caches(page_size, dtype);
        caches.append({page_size, page_size, page_size + 1});  // pages 0, 1, and 2 and 3
        caches.release(1);
        caches.append({2 * page_size + 30, 0, 0});
        const std::int32_t* const pages = caches.paged.page_table(0);
        ASSERT_EQ(std::vector<std::int32_t>(pages, pages + 4), (std::vector<std::int32_t>{0, 1, 4, 5}));
        caches.append({100, 90, 80});
        caches.expect_same();
      }
  });
}

TEST(PagedAttention, TheLowestFreePageIsTaken) {
  Caches caches(64, DType::f32);
  caches.append({64, 64, 65});
  caches.release(0);
  caches.append({0, 65, 0});
  const std::int32_t* const pages = caches.paged.page_table(1);
  EXPECT_EQ(std::vector<std::int32_t>(pages, pages + 3), (std::vector<std::int32_t>{1, 0, 4}));
}

TEST(PagedAttention, SpansAreSharedAsFarAsAllTheirPagesAre) {
  on_every_isa([] {
    for (DType dtype : {DType::f32, DType::int8})
      for (Index common : {449, 480, 511, 512, 600}) {
        SCOPED_TRACE(common);
        Caches caches(64, dtype);
        caches.append({600, 0, 5});
        caches.fork(0, 1, common);
        caches.append({130, 200, 0});  // some behind tokens that both have in one page
        caches.expect_same();
      }
  });
}

}  // namespace
}  // namespace mha
