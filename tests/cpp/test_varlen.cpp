// Ragged batches: their schedule; each sequence compared with a dense call; calls that are refused before anything is
// written.
#include "mha/varlen.hpp"

#include <gtest/gtest.h>

#include <cstdint>
#include <set>
#include <stdexcept>
#include <vector>

#include "arrays.hpp"
#include "checks/attention.hpp"
#include "execute/ragged_schedule.hpp"
#include "mha/multi_head_attention.hpp"
#include "plan/make_plan.hpp"
#include "platform/dispatch.hpp"

namespace mha {
namespace {

using testing::Array;
using testing::expect_words;
using testing::message_of;
using testing::nans;

constexpr Index H = 6, Hk = 2, D = 20, Dv = 12;
const std::vector<std::int64_t> kQueries = {0, 3, 3, 70, 71, 71, 200}, kKeys = {0, 90, 95, 96, 230, 230, 230};

RaggedBatch batch_of(const std::vector<std::int64_t>& q, const std::vector<std::int64_t>& k) {
  return {static_cast<Index>(q.size()) - 1, q.data(), k.data()};
}

/// Rows [first, last) of a packed tensor [N, heads, width] as [heads, T, width].
template <class View>
View sequence(View view, Index first, Index last) {
  using Pointer = decltype(view.data);
  using Byte = std::conditional_t<std::is_same_v<Pointer, void*>, std::byte, const std::byte>;
  View part(static_cast<Byte*>(view.data) + first * view.strides[0] * size_of(view.dtype), view.dtype,
            {view.extents[1], last - first, view.extents[2]}, {view.strides[1], view.strides[0], view.strides[2]});
  return part;
}

TEST(RaggedSchedule, EveryTileOnceAndMostKeysFirst) {
  const auto q = Array<float>::random({200, H, D}, 1), k = Array<float>::random({230, Hk, D}, 2);
  auto out = nans<float>({200, H, D});
  const RaggedBatch batch = batch_of(kQueries, kKeys);
  AttentionArguments arguments{"test", q.view(), k.view(), k.view(), out.view(), {}, AttentionOptions{}, &batch};
  validate(arguments, AttentionOutput::attended_values);
  const AttentionPlan plan = make_plan(arguments, AttentionOutput::attended_values, active_kernels());
  std::vector<SequenceTasks> memory(static_cast<std::size_t>(batch.size));
  const SequenceTasks* entries = schedule(plan, reinterpret_cast<std::byte*>(memory.data()));

  std::vector<Index> tasks(static_cast<std::size_t>(batch.size), 0);
  std::set<std::pair<Index, Index>> tiles;
  Index keys_before = 1000;
  for (Index task = 0; task < plan.tiles(); ++task) {
    const SequenceTasks& entry = entry_of(entries, batch.size, task);
    const Index keys = plan.keys_of(entry.sequence);
    EXPECT_LE(keys, keys_before);
    keys_before = keys;
    EXPECT_TRUE(tiles.emplace(entry.sequence, task - entry.first_task).second);
    EXPECT_GE(task, entry.first_task);
    ++tasks[static_cast<std::size_t>(entry.sequence)];
  }
  for (Index b = 0; b < batch.size; ++b) {
    const Index rows = H / Hk * (kQueries[std::size_t(b) + 1] - kQueries[std::size_t(b)]);
    const Index most = plan.kernels->query_tile_rows;
    EXPECT_EQ(tasks[static_cast<std::size_t>(b)], Hk * ((rows + most - 1) / most)) << "sequence " << b;
  }
}

TEST(Varlen, EachSequenceHasTheBitsOfADenseCall) {
  const auto q = Array<float>::random({200, H, D}, 1), k = Array<float>::random({230, Hk, D}, 2);
  const auto v = Array<float>::random({230, Hk, Dv}, 3);
  const std::vector<std::int64_t> offsets = {87, 0, -3, 100, 5, 0}, lengths = {80, 5, 1, 134, 0, 0};
  for (bool masked : {false, true})
    for (int threads : {1, 2, 3}) {
      AttentionOptions options;
      options.num_threads = threads;
      options.is_causal = masked;
      if (masked) {
        options.query_offsets = offsets.data();
        options.key_lengths = lengths.data();
      }
      auto out = nans<float>({200, H, Dv}), lse = nans<float>({200, H});
      scaled_dot_product_attention_varlen(q.view(), k.view(), v.view(), batch_of(kQueries, kKeys), out.view(),
                                          lse.view(), options);
      auto expected = nans<float>({200, H, Dv}), expected_lse = nans<float>({200, H});
      for (std::size_t b = 0; b + 1 < kQueries.size(); ++b) {
        AttentionOptions alone = options;
        alone.query_offsets = masked ? &offsets[b] : nullptr;
        alone.key_lengths = masked ? &lengths[b] : nullptr;
        const Index first = kQueries[b], last = kQueries[b + 1];
        const MutableTensorView rows_of_lse(expected_lse.data().data() + first * H, {H, last - first}, {1, H});
        scaled_dot_product_attention(sequence(TensorView(q.view()), first, last),
                                     sequence(TensorView(k.view()), kKeys[b], kKeys[b + 1]),
                                     sequence(TensorView(v.view()), kKeys[b], kKeys[b + 1]),
                                     sequence(expected.view(), first, last), rows_of_lse, alone);
      }
      EXPECT_EQ(out.data(), expected.data());
      EXPECT_EQ(lse.data(), expected_lse.data());
    }
}

TEST(Varlen, MasksBeginAnewWithEachSequence) {
  constexpr Index longest = 134;
  const auto q = Array<float>::random({200, H, D}, 1), k = Array<float>::random({230, Hk, D}, 2);
  const auto v = Array<float>::random({230, Hk, Dv}, 3);
  // The first is the same for every query and head, as a mask over keys is; but it is one of each sequence.
  bool entries[longest], of_keys[230];
  for (Index i = 0; i < longest; ++i) entries[i] = i % 3 != 1;
  for (Index i = 0; i < 230; ++i) of_keys[i] = i % 5 != 2;
  for (const bool has_key_mask : {false, true}) {
    AttentionOptions options;
    if (has_key_mask)
      options.key_mask = TensorView(of_keys, {230});
    else
      options.attn_mask = TensorView(entries, {longest});
    auto out = nans<float>({200, H, Dv}), expected = out;
    scaled_dot_product_attention_varlen(q.view(), k.view(), v.view(), batch_of(kQueries, kKeys), out.view(), {},
                                        options);
    for (std::size_t b = 0; b + 1 < kQueries.size(); ++b) {
      const Index keys = kKeys[b + 1] - kKeys[b];
      AttentionOptions alone;
      if (keys > 0)
        (has_key_mask ? alone.key_mask : alone.attn_mask) =
            TensorView(has_key_mask ? of_keys + kKeys[b] : entries, {keys});
      scaled_dot_product_attention(sequence(TensorView(q.view()), kQueries[b], kQueries[b + 1]),
                                   sequence(TensorView(k.view()), kKeys[b], kKeys[b + 1]),
                                   sequence(TensorView(v.view()), kKeys[b], kKeys[b + 1]),
                                   sequence(expected.view(), kQueries[b], kQueries[b + 1]), {}, alone);
    }
    EXPECT_EQ(out.data(), expected.data()) << (has_key_mask ? "key_mask" : "attn_mask");
  }
}

TEST(Varlen, TheLayerRunsOverItsRowsOnly) {
  constexpr Index E = 32;
  const auto square = Array<double>::random({E, E}, 1), bias = Array<double>::random({E}, 2);
  MultiHeadAttentionConfig config;
  config.embed_dim = E;
  config.num_heads = 4;
  const MultiHeadAttention layer(config, {{square.view(), bias.view()},
                                          {square.view(), bias.view()},
                                          {square.view(), bias.view()},
                                          {square.view(), bias.view()}});
  const auto x = Array<double>::random({200, E}, 3);
  auto out = nans<double>({200, E}), expected = nans<double>({200, E});
  layer.forward_varlen(x.view(), x.view(), x.view(), batch_of(kQueries, kQueries), out.view());
  for (std::size_t b = 0; b + 1 < kQueries.size(); ++b) {
    const Index first = kQueries[b], rows = kQueries[b + 1] - first;
    const TensorView one(x.data().data() + first * E, {rows, E});
    layer.forward(one, one, one, MutableTensorView(expected.data().data() + first * E, {rows, E}));
  }
  EXPECT_EQ(out.data(), expected.data());
}

TEST(Varlen, RefusesBeforeAnythingIsWritten) {
  Array<float> q({5, 4, 8}, 1), k({7, 2, 8}, 1), out({5, 4, 8}, 3), lse({5, 4}, 3);
  const auto refused = [&](const RaggedBatch& batch, const MutableTensorView& lse_view) {
    const std::string message = message_of<std::invalid_argument>(
        [&] { scaled_dot_product_attention_varlen(q.view(), k.view(), k.view(), batch, out.view(), lse_view); });
    for (const auto* array : {&out, &lse})
      for (float element : array->data()) EXPECT_EQ(element, 3) << "written before the error: " << message;
    expect_words(message, {"scaled_dot_product_attention_varlen: "});
    return message;
  };
  const std::int64_t good_q[] = {0, 2, 5}, good_k[] = {0, 4, 7}, late[] = {1, 2, 5}, falls[] = {0, 6, 5};
  const std::int64_t low[] = {0, std::numeric_limits<std::int64_t>::min(), 5}, beyond[] = {0, 2, 6};
  const auto with = [&](const std::int64_t* of_q, const std::int64_t* of_k) {
    return refused({2, of_q, of_k}, lse.view());
  };
  expect_words(with(nullptr, good_k), {"cu_seqlens_q", "given"});
  expect_words(with(good_q, nullptr), {"cu_seqlens_k", "given"});
  expect_words(with(late, good_k), {"cu_seqlens_q", "begin with 0; got 1"});
  expect_words(with(falls, good_k), {"cu_seqlens_q", "never fall; got 5 after 6"});
  expect_words(with(low, good_k), {"cu_seqlens_q", "never fall; got -9223372036854775808 after 0"});
  expect_words(with(beyond, good_k), {"cu_seqlens_q", "rows of query, 5; got 6"});
  expect_words(with(good_q, good_q), {"cu_seqlens_k", "rows of key, 7; got 5"});
  expect_words(refused({-1, good_q, good_k}, lse.view()), {"cu_seqlens_q", "B = -1"});
  MutableTensorView wrong(lse.data().data(), {4, 5});
  expect_words(refused({2, good_q, good_k}, wrong), {"lse", "[4, 5]", "[5, 4, 8]"});
  wrong = MutableTensorView(lse.data().data(), {1, 4, 5});
  expect_words(refused({2, good_q, good_k}, wrong), {"lse", "[1, 4, 5]"});
  expect_words(refused({2, good_q, good_k}, MutableTensorView(q.data().data(), {5, 4})),
               {"lse must not overlap query"});
  scaled_dot_product_attention_varlen(q.view(), k.view(), k.view(), {2, good_q, good_k}, out.view(), lse.view());
  for (float element : out.data()) EXPECT_EQ(element, 1);
}

}  // namespace
}  // namespace mha
