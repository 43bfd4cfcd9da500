// PagedKVCache from C++ and C: pages that a call has taken are given back when it ends early; handles and their rules.
#include "mha/paged_kv_cache.hpp"

#include <gtest/gtest.h>

#include <stdexcept>
#include <utility>
#include <vector>

#include "arrays.hpp"
#include "mha/attention.hpp"
#include "mha/cancellation.hpp"
#include "mha/errors.hpp"
#include "mha/mha.h"
#include "mha/multi_head_attention.hpp"

namespace mha {
namespace {

using testing::Array;
using testing::expect_words;
using testing::message_of;
using testing::nans;

constexpr Index B = 3, Hk = 2, D = 8, Dv = 16;

PagedKVCache make_cache(Index pages, Index page_size = 64) { return PagedKVCache({pages, page_size, B, Hk, D, Dv}); }

void append(KVCache& cache, Index length, const std::int64_t* counts = nullptr) {
  const auto key = Array<float>::random({B, Hk, length, D}, 1), value = Array<float>::random({B, Hk, length, Dv}, 2);
  cache.append(key.view(), value.view(), counts);
}

/// Asked for the n-th time, it ends the call.
struct EndsAt {
  int left;
  static bool ask(void* state) { return --static_cast<EndsAt*>(state)->left == 0; }
};

TEST(PagedKVCache, ACallThatIsEndedGivesItsPagesBack) {
  // A call is asked every 50 ms: on one thread this is work for three questions or more on processors of 2024.
  constexpr Index E = 64, T = 6000;
  const auto square = Array<float>::random({E, E}, 1), x = Array<float>::random({2, T, E}, 2);
  const MultiHeadAttention layer({E, 4}, {{square.view()}, {square.view()}, {square.view()}, {square.view()}});
  PagedKVCache cache({200, 64, 2, 4, E / 4});
  auto out = nans<float>({2, T, E});
  const TensorView first(x.data().data(), DType::f32, {1, 10, E});
  const std::int64_t ten_and_none[] = {10, 0};
  const TensorView prompt(x.data().data(), DType::f32, {2, 10, E});
  layer.append_to(cache, prompt, prompt, ten_and_none);
  cache.fork(0, 1);
  const Index free = cache.free_pages();
  AttentionOptions options;
  options.is_causal = true;
  options.num_threads = 1;
  int ended = 0;
  for (int n = 1; n < 40; n *= 2) {
    EndsAt end{n};
    try {
      const CancellationScope scope(&EndsAt::ask, &end);
      layer.forward(x.view(), x.view(), x.view(), cache, out.view(), {}, options);
    } catch (const Cancelled&) {
      ++ended;
      ASSERT_EQ(cache.free_pages(), free) << "asked " << n << " times";
      ASSERT_EQ(cache.lengths()[0], 10);
      ASSERT_EQ(cache.page_table(0)[0], cache.page_table(1)[0]) << "the page is shared again";
      ASSERT_TRUE(cache.check_pages());
      continue;
    }
    break;
  }
  EXPECT_GT(ended, 0);
  EXPECT_EQ(cache.lengths()[1], cache.longest()) << "both sequences have grown, or none";
  EXPECT_TRUE(cache.check_pages());
}

TEST(PagedKVCache, AFailedForkOrReleaseChangesNothing) {
  PagedKVCache cache = make_cache(4);
  const std::int64_t counts[] = {70, 1, 0};
  append(cache, 70, counts);
  const auto refused = [&](const char* words, const auto& call) {
    expect_words(message_of<std::invalid_argument>(call), {words});
    EXPECT_EQ(cache.free_pages(), 1);
    EXPECT_EQ(cache.lengths()[0], 70);
    EXPECT_EQ(cache.lengths()[2], 0);
    EXPECT_TRUE(cache.check_pages());
  };
  refused("sequence must name one of 3 sequences; got 3", [&] { cache.fork(3, 2); });
  refused("into must name one of 3 sequences; got -1", [&] { cache.fork(0, -1); });
  refused("into must be another sequence", [&] { cache.fork(2, 2); });
  refused("sequence 1 has 1", [&] { cache.fork(0, 1); });
  refused("sequence 0 has 70 tokens; got 71", [&] { cache.fork(0, 2, 71); });
  refused("got 3", [&] { cache.release(3); });
  refused("2 needed, 1 free", [&] {
    const std::int64_t two[] = {0, 128, 0};
    append(cache, 128, two);
  });
  refused("4 needed, 1 free", [&] { append(cache, 65); });
}

TEST(PagedKVCache, AMovedCacheKeepsItsPages) {
  PagedKVCache first = make_cache(5);
  expect_words(message_of<std::invalid_argument>([&] { append(first, 65); }), {"6 needed, 5 free"});
  EXPECT_EQ(first.free_pages(), 5);
  append(first, 1);
  PagedKVCache second = std::move(first);
  EXPECT_EQ(second.free_pages(), 2);
  EXPECT_EQ(second.pages_of(1), 1);
  EXPECT_TRUE(second.check_pages());
}

TEST(PagedKVCache, PagesAreCopiedOnceAndAssignedWithTheirSequences) {
  PagedKVCache cache = make_cache(6);
  const std::int64_t only_first[] = {130, 0, 0};
  append(cache, 130, only_first);
  cache.fork(0, 1, 100);
  cache.fork(0, 2);
  const Index pages = cache.num_pages() - cache.free_pages();
  ASSERT_EQ(pages, 3);
  auto key = nans<float>({pages, Hk, 64, D}), value = nans<float>({pages, Hk, 64, Dv});
  cache.copy_pages(std::as_const(cache).keys(), key.view());
  cache.copy_pages(std::as_const(cache).values(), value.view());
  const std::int64_t tables[] = {0, 1, 2, 0, 1, -1, 0, 1, 2}, lengths[] = {130, 100, 130};
  PagedKVCache other = make_cache(3);
  other.assign_pages(key.view(), value.view(), {}, {}, tables, 3, lengths);
  EXPECT_EQ(other.free_pages(), 0);
  EXPECT_TRUE(other.check_pages());
  auto ours = nans<float>({B, Hk, 130, D}), theirs = nans<float>({B, Hk, 130, D});
  cache.copy_keys(ours.view());
  other.copy_keys(theirs.view());
  EXPECT_EQ(ours.data(), theirs.data());

  const auto refused = [&](const char* words, const std::vector<std::int64_t>& wrong_tables, std::int64_t length) {
    const std::int64_t wrong[] = {length, 100, wrong_tables[8] < 0 ? 128 : 130};
    const auto call = [&] { other.assign_pages(key.view(), value.view(), {}, {}, wrong_tables.data(), 3, wrong); };
    expect_words(message_of<std::invalid_argument>(call), {"PagedKVCache.assign_pages", words});
    EXPECT_EQ(other.free_pages(), 0);
    EXPECT_EQ(other.lengths()[0], 130);
  };
  refused("lengths must be from 0 to", {0, 1, 2, 0, 1, -1, 0, 1, 2}, 193);
  refused("lengths must be from 0 to", {0, 1, 2, 0, 1, -1, 0, 1, 2}, -1);
  refused("got 3 in column 2", {0, 1, 3, 0, 1, -1, 0, 1, 2}, 130);
  refused("got -1 in column 1", {0, -1, 2, 0, 1, -1, 0, 1, 2}, 130);
  refused("got 2 in column 2", {0, 1, 2, 0, 1, 2, 0, 1, 2}, 130);
  refused("page 0 twice", {0, 1, 0, 0, 1, -1, 0, 1, 2}, 130);
  refused("page 2 is in no sequence", {0, 1, -1, 0, 1, -1, 0, 1, -1}, 100);
  PagedKVCache small = make_cache(2);
  const auto too_many = [&] { small.assign_pages(key.view(), value.view(), {}, {}, tables, 3, lengths); };
  expect_words(message_of<std::invalid_argument>(too_many), {"has 2 pages; got 3"});
  expect_words(message_of<std::invalid_argument>([&] { cache.copy_pages(key.view(), key.view()); }),
               {"rows must be the keys, the values or their scales"});
  const auto no_tables = [&] { other.assign_pages(key.view(), value.view(), {}, {}, nullptr, 3, lengths); };
  expect_words(message_of<std::invalid_argument>(no_tables), {"page_table and lengths must be given"});
  expect_words(message_of<std::invalid_argument>([&] { small.copy_pages(small.keys(), ours.view()); }),
               {"PagedKVCache.copy_pages", "out must be [0, 2, at least 64, 8]"});
}

TEST(PagedKVCache, Sizes) {
  expect_words(message_of<std::invalid_argument>([] { make_cache(3, 100); }), {"page_size", "multiple of 64", "100"});
  expect_words(message_of<std::invalid_argument>([] { make_cache(-1); }), {"num_pages", "-1"});
  EXPECT_THROW(PagedKVCache({Index{1} << 30, Index{1} << 30, B, Hk, Index{1} << 20}), AllocationError);
}

TEST(PagedKVCache, FromC) {
  const mha_paged_cache_config config = {6, 64, B, Hk, D, Dv, MHA_DTYPE_f32};
  mha_cache* cache = nullptr;
  ASSERT_EQ(mha_paged_cache_create(&config, &cache), MHA_OK) << mha_last_error();
  EXPECT_EQ(mha_cache_config_of(cache).capacity, 6 * 64);
  const auto key = Array<float>::random({B, Hk, 70, D}, 1), value = Array<float>::random({B, Hk, 70, Dv}, 2);
  const mha_tensor k = mha_dense(key.data().data(), MHA_DTYPE_f32, 4, key.view().extents),
                   v = mha_dense(value.data().data(), MHA_DTYPE_f32, 4, value.view().extents);
  const std::int64_t counts[] = {70, 0, 3};
  ASSERT_EQ(mha_cache_append(cache, &k, &v, counts), MHA_OK) << mha_last_error();
  EXPECT_EQ(mha_paged_cache_num_pages(cache), 6);
  EXPECT_EQ(mha_paged_cache_page_size(cache), 64);
  EXPECT_EQ(mha_paged_cache_free_pages(cache), 3);
  ASSERT_EQ(mha_paged_cache_pages_of(cache, 0), 2);
  EXPECT_EQ(mha_paged_cache_page_table(cache, 0)[1], 1);
  EXPECT_EQ(mha_paged_cache_pages_of(cache, 9), 0);
  ASSERT_EQ(mha_paged_cache_fork(cache, 0, 1, 66), MHA_OK) << mha_last_error();
  EXPECT_EQ(mha_cache_lengths(cache)[1], 66);
  EXPECT_EQ(mha_paged_cache_fork(cache, 0, 1, -1), MHA_INVALID_ARGUMENT);

  auto dense = nans<float>({B, Hk, 70, D});
  const mha_tensor copy = mha_dense(dense.data().data(), MHA_DTYPE_f32, 4, dense.view().extents);
  ASSERT_EQ(mha_cache_copy_keys(cache, &copy), MHA_OK) << mha_last_error();
  const auto at = [](const Array<float>& x, Index b, Index t) { return x.data()[std::size_t((b * Hk * 70 + t) * D)]; };
  EXPECT_EQ(at(dense, 0, 69), at(key, 0, 69));
  EXPECT_EQ(at(dense, 1, 65), at(key, 0, 65));
  EXPECT_EQ(at(dense, 1, 66), 0);

  const auto query = Array<float>::random({B, 4, 1, D}, 3);
  auto out = nans<float>({B, 4, 1, Dv}), expected = nans<float>({B, 4, 1, Dv});
  const mha_tensor q = mha_dense(query.data().data(), MHA_DTYPE_f32, 4, query.view().extents),
                   o = mha_dense(out.data().data(), MHA_DTYPE_f32, 4, out.view().extents);
  ASSERT_EQ(mha_scaled_dot_product_attention_cached(&q, cache, &o, nullptr, nullptr), MHA_OK) << mha_last_error();
  KVCache plain({B, Hk, 70, D, Dv});
  const std::int64_t index[] = {0, 0, 2}, back[] = {0, 4, 0};
  plain.append(key.view(), value.view(), counts);
  plain.reorder(index);
  plain.rollback(back);
  scaled_dot_product_attention(query.view(), plain, expected.view());
  EXPECT_EQ(out.data(), expected.data());

  const Index used = 6 - mha_paged_cache_free_pages(cache);
  auto key_pages = nans<float>({used, Hk, 64, D}), value_pages = nans<float>({used, Hk, 64, Dv});
  const mha_tensor kp = mha_dense(key_pages.data().data(), MHA_DTYPE_f32, 4, key_pages.view().extents),
                   vp = mha_dense(value_pages.data().data(), MHA_DTYPE_f32, 4, value_pages.view().extents);
  const mha_tensor keys = mha_cache_keys(cache), values = mha_cache_values(cache);
  ASSERT_EQ(mha_paged_cache_copy_pages(cache, &keys, &kp), MHA_OK) << mha_last_error();
  ASSERT_EQ(mha_paged_cache_copy_pages(cache, &values, &vp), MHA_OK) << mha_last_error();
  std::vector<std::int64_t> tables;  // the pages in use are the first ones of the pool
  for (Index b = 0; b < B; ++b)
    for (Index i = 0; i < 2; ++i)
      tables.push_back(i < mha_paged_cache_pages_of(cache, b) ? mha_paged_cache_page_table(cache, b)[i] : -1);
  const std::vector<std::int64_t> lengths(mha_cache_lengths(cache), mha_cache_lengths(cache) + B);
  mha_paged_cache_config exact = config;
  exact.num_pages = used;
  mha_cache* other = nullptr;
  ASSERT_EQ(mha_paged_cache_create(&exact, &other), MHA_OK) << mha_last_error();
  const auto assign = [&](const mha_tensor* scale) {
    return mha_paged_cache_assign_pages(other, &kp, &vp, scale, scale, tables.data(), 2, lengths.data());
  };
  EXPECT_EQ(assign(&vp), MHA_INVALID_ARGUMENT);
  ASSERT_EQ(assign(nullptr), MHA_OK) << mha_last_error();
  EXPECT_EQ(mha_paged_cache_free_pages(other), 0);
  ASSERT_EQ(mha_scaled_dot_product_attention_cached(&q, other, &o, nullptr, nullptr), MHA_OK) << mha_last_error();
  EXPECT_EQ(out.data(), expected.data());
  mha_cache_destroy(other);

  ASSERT_EQ(mha_paged_cache_release(cache, 0), MHA_OK);
  EXPECT_TRUE(mha_paged_cache_check_pages(cache));
  mha_cache_destroy(cache);

  const mha_cache_config without_pages = {B, Hk, 9, D, Dv, MHA_DTYPE_f32};
  ASSERT_EQ(mha_cache_create(&without_pages, &cache), MHA_OK);
  EXPECT_EQ(mha_paged_cache_num_pages(cache), 0);
  EXPECT_EQ(mha_paged_cache_fork(cache, 0, 1, -1), MHA_INVALID_ARGUMENT);
  expect_words(mha_last_error(), {"cache: expected one with pages"});
  mha_cache_destroy(cache);
}

}  // namespace
}  // namespace mha
