// Ragged calls over caches: rows of some sequences go on behind their tokens, with the bits of calls of each by itself.
#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

#include "arrays.hpp"
#include "c_calls.hpp"
#include "every_isa.hpp"
#include "mha/mha.hpp"
#include "views/ragged_batch.hpp"

namespace mha {
namespace {

using testing::Array;
using testing::c_tensor;
using testing::expect_words;
using testing::message_of;
using testing::nans;
using testing::on_every_isa;

constexpr Index kEmbed = 24, kHeads = 4, kKvHeads = 2, kHeadDim = 6, kSequences = 5, kRows = 90;
// Steps and chunks of prompts in no order, one of them empty.
constexpr std::int64_t kStarts[] = {0, 1, 66, 66, 67, kRows}, kNames[] = {3, 0, 4, 1, 2};

struct Parts {
  Array<float> query = Array<float>::random({kHeads * kHeadDim, kEmbed}, 1),
               key = Array<float>::random({kKvHeads * kHeadDim, kEmbed}, 2),
               out = Array<float>::random({kEmbed, kHeads * kHeadDim}, 3), row = Array<float>::random({kEmbed}, 4),
               square = Array<float>::random({kEmbed, kEmbed}, 5), table = Array<float>::random({200, 3}, 6),
               x = Array<float>::random({kRows, kEmbed}, 7);

  MultiHeadAttention attention(bool is_turned) const {
    QueryKeySteps steps;
    if (is_turned) steps.rotary = RotaryEmbedding(table.view(), table.view());
    return MultiHeadAttention({kEmbed, kHeads, kKvHeads, kHeadDim},
                              {{query.view()}, {key.view()}, {key.view()}, {out.view()}}, steps);
  }
  TransformerStack stack() const {
    const LayerNorm norm(row.view());
    const FeedForward feed_forward({{square.view()}, {square.view()}}, Activation::gelu);
    const TransformerLayer layer = {attention(true), {}, feed_forward, norm, norm, {}, NormPlacement::before};
    const TransformerLayer layers[] = {layer, layer};
    return TransformerStack(layers, 2, &norm);
  }
  TensorView run(Index i) const {
    return {x.data().data() + kStarts[i] * kEmbed, {1, Index(kStarts[i + 1] - kStarts[i]), kEmbed}};
  }
};

KVCacheConfig sizes_of(Index sequences) { return {sequences, kKvHeads, 150, kHeadDim}; }
PagedKVCacheConfig pages_of(Index sequences, Index pages = 12) { return {pages, 64, sequences, kKvHeads, kHeadDim}; }

AttentionOptions causal(int threads) {
  AttentionOptions options;
  options.is_causal = true;
  options.num_threads = threads;
  return options;
}

RaggedBatch batch(const std::int64_t* sequences = kNames) { return {kSequences, kStarts, kStarts, sequences}; }

/// Rows of a run in the place that they have in a result of all.
MutableTensorView run_of(const MutableTensorView& all, Index i) {
  return {static_cast<float*>(all.data) + kStarts[i] * kEmbed, {1, Index(kStarts[i + 1] - kStarts[i]), kEmbed}};
}

TEST(RaggedCache, RowsAreThoseOfCallsOfTheirSequences) {
  const Parts parts;
  for (const bool is_turned : {false, true}) {
    const MultiHeadAttention layer = parts.attention(is_turned);
    on_every_isa([&] {
      for (int threads : {1, 3}) {
        KVCache dense(sizes_of(kSequences));
        PagedKVCache paged(pages_of(kSequences));
        std::vector<KVCache> alone;
        for (Index b = 0; b < kSequences; ++b) alone.emplace_back(sizes_of(1));
        for (int call = 0; call < 2; ++call) {
          auto expected = nans<float>({kRows, kEmbed});
          for (Index i = 0; i < kSequences; ++i) {
            const TensorView some = parts.run(i);
            layer.forward(some, some, some, alone[static_cast<std::size_t>(kNames[i])], run_of(expected.view(), i), {},
                          causal(1));
          }
          for (KVCache* const cache : {&dense, static_cast<KVCache*>(&paged)}) {
            auto out = nans<float>({kRows, kEmbed});
            layer.forward_varlen(parts.x.view(), parts.x.view(), parts.x.view(), batch(), *cache, out.view(),
                                 causal(threads));
            EXPECT_EQ(out.data(), expected.data());
            for (Index b = 0; b < kSequences; ++b)
              EXPECT_EQ(cache->lengths()[b], alone[static_cast<std::size_t>(b)].lengths()[0]);
          }
          EXPECT_TRUE(paged.check_pages());
        }
      }
    });
  }
}

TEST(RaggedCache, RowsGoOnBehindSharedPages) {
  const Parts parts;
  const MultiHeadAttention layer = parts.attention(true);
  const TensorView prompt = parts.x.view(), chunk(parts.x.data().data(), {40, kEmbed});
  const std::int64_t whole[] = {0, kRows}, twice[] = {0, 20, 40}, first[] = {2}, both[] = {1, 2};
  PagedKVCache cache(pages_of(3));
  auto out = nans<float>({kRows, kEmbed}), some = nans<float>({40, kEmbed});
  layer.forward_varlen(prompt, prompt, prompt, {1, whole, whole, first}, cache, out.view(), causal(1));
  cache.fork(2, 1);
  EXPECT_EQ(cache.free_pages(), 10);
  layer.forward_varlen(chunk, chunk, chunk, {2, twice, twice, both}, cache, some.view(), causal(1));
  EXPECT_EQ(cache.free_pages(), 9) << "one of them writes to a copy of the last page";
  EXPECT_TRUE(cache.check_pages());
  for (Index i = 0; i < 2; ++i) {
    KVCache alone(sizes_of(1));
    const TensorView begin(parts.x.data().data(), {1, kRows, kEmbed});
    const TensorView end(parts.x.data().data() + i * 20 * kEmbed, {1, 20, kEmbed});
    auto expected = nans<float>({1, kRows, kEmbed}), expected_end = nans<float>({1, 20, kEmbed});
    layer.forward(begin, begin, begin, alone, expected.view(), {}, causal(1));
    layer.forward(end, end, end, alone, expected_end.view(), {}, causal(1));
    const float* const of_run = some.data().data() + i * 20 * kEmbed;
    EXPECT_EQ(std::vector<float>(of_run, of_run + 20 * kEmbed), expected_end.data());
  }
}

TEST(RaggedCache, TooFewPagesChangeNothing) {
  const Parts parts;
  const TransformerStack stack = parts.stack();
  PagedKVCache first(pages_of(kSequences)), second(pages_of(kSequences, 4));  // five are needed
  KVCache* const caches[] = {&first, &second};
  TransformerExtras extras;
  extras.caches = caches;
  extras.sequences = kNames;
  auto out = nans<float>({kRows, kEmbed});
  const auto call = [&] { stack.forward_varlen(parts.x.view(), kStarts, kSequences, out.view(), {}, extras); };
  expect_words(message_of<std::invalid_argument>(call), {"TransformerStack: ", "5", "4"});
  EXPECT_EQ(first.free_pages(), 12);
  EXPECT_EQ(second.free_pages(), 4);
  EXPECT_EQ(first.longest() + second.longest(), 0);
  EXPECT_TRUE(first.check_pages() && second.check_pages());
  for (float number : out.data()) EXPECT_TRUE(std::isnan(number));
}

TEST(RaggedCache, AStackHasTheSameInC) {
  const Parts parts;
  const TransformerStack stack = parts.stack();
  KVCache first(sizes_of(kSequences)), second(sizes_of(kSequences));
  KVCache* const caches[] = {&first, &second};
  TransformerExtras extras;
  extras.caches = caches;
  extras.sequences = kNames;
  auto out = nans<float>({kRows, kEmbed}), expected = out, c_out = out;
  stack.forward_varlen(parts.x.view(), kStarts, kSequences, out.view(), causal(2), extras);
  for (Index i = 0; i < kSequences; ++i) stack.forward(parts.run(i), run_of(expected.view(), i), causal(1));
  EXPECT_EQ(out.data(), expected.data());

  const mha_tensor query = c_tensor(parts.query), key = c_tensor(parts.key), of_out = c_tensor(parts.out),
                   row = c_tensor(parts.row), square = c_tensor(parts.square), table = c_tensor(parts.table),
                   x = c_tensor(parts.x), result = c_tensor(c_out);
  const auto linear = [](const mha_tensor& weight) {
    return mha_linear_weights{&weight, nullptr, nullptr, MHA_WEIGHT_FORMAT_PLAIN};
  };
  mha_rotary* rotary = nullptr;
  mha_layer* attention = nullptr;
  mha_norm* norm = nullptr;
  mha_feed_forward* feed_forward = nullptr;
  mha_transformer* transformer = nullptr;
  mha_cache* c_caches[2] = {};
  EXPECT_OK(mha_rotary_create(&table, &table, MHA_ROTARY_HALVES, &rotary));
  const mha_query_key_steps steps = {nullptr, nullptr, rotary};
  mha_layer_config config = {};
  config.embed_dim = kEmbed;
  config.num_heads = kHeads;
  config.num_kv_heads = kKvHeads;
  const mha_layer_weights weights = {linear(query), linear(key), linear(key), linear(of_out), nullptr, nullptr};
  EXPECT_OK(mha_layer_create_with_steps(&config, &weights, &steps, &attention));
  EXPECT_OK(mha_norm_create(&row, nullptr, 1e-5, &norm));
  const mha_feed_forward_weights up_and_down = {linear(square), linear(square), {}};
  EXPECT_OK(mha_feed_forward_create(&up_and_down, MHA_ACTIVATION_GELU, MHA_WEIGHT_FORMAT_PLAIN, &feed_forward));
  mha_transformer_layer layer = {};
  layer.self_attention = attention;
  layer.feed_forward = feed_forward;
  layer.norm1 = layer.norm2 = norm;
  layer.norm_placement = MHA_NORM_BEFORE;
  const mha_transformer_layer layers[] = {layer, layer};
  EXPECT_OK(mha_transformer_create(layers, 2, norm, &transformer));
  const mha_cache_config sizes = {kSequences, kKvHeads, 150, kHeadDim, 0, MHA_DTYPE_f32};
  for (mha_cache*& cache : c_caches) EXPECT_OK(mha_cache_create(&sizes, &cache));
  mha_transformer_extras c_extras = {};
  c_extras.caches = c_caches;
  c_extras.sequences = kNames;
  mha_attention_options options = mha_default_options();
  options.is_causal = true;
  EXPECT_OK(mha_transformer_forward_varlen(transformer, &x, kStarts, kSequences, &result, &options, &c_extras));
  EXPECT_EQ(c_out.data(), out.data());
  for (Index b = 0; b < kSequences; ++b) EXPECT_EQ(mha_cache_lengths(c_caches[1])[b], second.lengths()[b]);

  const mha_ragged_batch c_batch = {kSequences, kStarts, kStarts, kNames};
  parts.attention(true).forward_varlen(parts.x.view(), parts.x.view(), parts.x.view(), batch(), first, out.view(),
                                       causal(1));
  EXPECT_OK(mha_layer_forward_varlen_cached(attention, &x, &x, &x, &c_batch, c_caches[0], &result, &options));
  EXPECT_EQ(c_out.data(), out.data());
  for (Index b = 0; b < kSequences; ++b) EXPECT_EQ(mha_cache_lengths(c_caches[0])[b], first.lengths()[b]);

  for (mha_cache* cache : c_caches) mha_cache_destroy(cache);
  mha_transformer_destroy(transformer);
  mha_feed_forward_destroy(feed_forward);
  mha_norm_destroy(norm);
  mha_layer_destroy(attention);
  mha_rotary_destroy(rotary);
}

TEST(RaggedCache, RefusesWhatDoesNotFitTheCache) {
  const Parts parts;
  const MultiHeadAttention layer = parts.attention(false);
  KVCache cache(sizes_of(kSequences)), small(sizes_of(2));
  auto out = nans<float>({kRows, kEmbed});
  const auto message = [&](KVCache& of, const RaggedBatch& given) {
    return message_of<std::invalid_argument>([&] {
      layer.forward_varlen(parts.x.view(), parts.x.view(), parts.x.view(), given, of, out.view(), causal(1));
    });
  };
  const std::int64_t twice[] = {3, 0, 4, 0, 2}, behind[] = {3, 0, 5, 1, 2}, negative[] = {3, 0, -1, 1, 2};
  expect_words(message(cache, batch(twice)), {"MultiHeadAttention: sequences", "got 0 twice"});
  expect_words(message(cache, batch(behind)), {"MultiHeadAttention: sequences", "0 to 4", "got 5"});
  expect_words(message(cache, batch(negative)), {"MultiHeadAttention: sequences", "0 to 4", "got -1"});
  expect_words(message(small, batch(nullptr)), {"MultiHeadAttention: sequences", "2; got 5"});
  const std::int64_t falling[] = {0, 9, 8, 10, 10, kRows};
  expect_words(message(cache, {kSequences, kStarts, falling, kNames}), {"cu_seqlens_k", "never fall"});
  expect_words(message(cache, {kSequences, kStarts, nullptr, kNames}), {"cu_seqlens_k", "given"});
  cache.advance(100);
  expect_words(message(cache, batch()), {"capacity of 150", "sequence 0", "100 + 65"});
  for (Index b = 0; b < kSequences; ++b) EXPECT_EQ(cache.lengths()[b], 100);
  EXPECT_EQ(message_of<std::invalid_argument>(
                [&] { layer.forward_varlen(parts.x.view(), parts.x.view(), parts.x.view(), batch(), out.view()); }),
            "MultiHeadAttention: sequences needs a cache");
  for (float number : out.data()) EXPECT_TRUE(std::isnan(number));
}

TEST(RaggedCache, StacksTakeSequencesWithOffsetsAndCachesOnly) {
  const Parts parts;
  const TransformerStack stack = parts.stack();
  KVCache first(sizes_of(kSequences)), second(sizes_of(kSequences));
  KVCache* const caches[] = {&first, &second};
  auto out = nans<float>({kRows, kEmbed});
  TransformerExtras extras;
  extras.sequences = kNames;
  const auto ragged = [&] { stack.forward_varlen(parts.x.view(), kStarts, kSequences, out.view(), {}, extras); };
  expect_words(message_of<std::invalid_argument>(ragged), {"TransformerStack: sequences", "caches"});
  extras.caches = caches;
  expect_words(message_of<std::invalid_argument>([&] { stack.forward(parts.x.view(), out.view(), {}, extras); }),
               {"TransformerStack: sequences", "cu_seqlens"});
  extras.new_lengths = kNames;
  expect_words(message_of<std::invalid_argument>(ragged), {"TransformerStack: new_lengths", "cu_seqlens"});
  extras.new_lengths = nullptr;
  const MutableTensorView weights[2] = {};
  extras.weights = weights;
  expect_words(message_of<std::invalid_argument>(ragged), {"TransformerStack: weights", "cu_seqlens"});
  EXPECT_EQ(first.longest(), 0);
}

TEST(RaggedCache, CountsTokensOfManySequences) {
  std::vector<std::int64_t> starts, names;
  for (std::int64_t i = 0; i <= 300; ++i) starts.push_back(i * (i + 1) / 2);
  for (std::int64_t i = 0; i < 300; ++i) names.push_back(399 - i);
  const RaggedBatch many = {300, starts.data(), starts.data(), names.data()};
  check_sequences("f", many, 400);
  const NewTokens tokens(&many, nullptr, 400);
  for (std::int64_t b = 0; b < 400; ++b) EXPECT_EQ(tokens.counts()[b], b < 100 ? 0 : 400 - b);
  const NewTokens of_dense(nullptr, kNames, kSequences), of_all(nullptr, nullptr, kSequences);
  EXPECT_EQ(of_dense.counts(), kNames);
  EXPECT_EQ(of_all.counts(), nullptr);
}

}  // namespace
}  // namespace mha
