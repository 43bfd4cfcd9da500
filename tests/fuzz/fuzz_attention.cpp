#include "calls.hpp"

namespace mha::fuzz {
namespace {

/// Sizes of a call: mostly small and odd, sometimes long enough for several threads, tiles, blocks and spans.
struct Sizes {
  std::ptrdiff_t batch, heads, kv_heads, queries, keys, head_dim, value_dim;

  explicit Sizes(Choices& c) {
    batch = c.between(1, 3);
    kv_heads = c.between(1, 2);
    heads = kv_heads * c.between(1, 3);
    queries = c.between(0, 9);
    keys = c.between(0, 20);
    head_dim = c.between(0, 20);
    value_dim = c.between(0, 20);
    switch (c.below(8)) {
      case 5:  // few rows and whole vectors: decode
        head_dim = 16 * c.between(1, 2);
        value_dim = 16 * c.between(1, 2);
        queries = c.between(1, 3);
        keys = c.between(1, 300);
        break;
      case 6:  // several spans
        keys = c.between(400, 1100);
        batch = 1;
        break;
      case 7:  // several tiles, and work for two threads
        queries = c.between(40, 90);
        keys = c.between(40, 200);
        head_dim = c.between(8, 70);
        break;
      default:
        break;
    }
  }
};

/// Whether leading axes of length 1 are left out, and how many.
Call::Extents without_axes(const Call::Extents& extents, int axes) { return {extents.begin() + axes, extents.end()}; }

int axes_to_leave_out(Choices& c, const Sizes& s) {
  if (s.batch != 1) return 0;
  return int(c.below(s.heads == 1 && s.kv_heads == 1 ? 3 : 2));
}

}  // namespace

std::vector<std::int64_t> any_counts(Choices& choices, std::ptrdiff_t count, std::ptrdiff_t most) {
  std::vector<std::int64_t> counts;
  for (std::ptrdiff_t i = 0; i < count; ++i) counts.push_back(choices.between(0, most));
  return counts;
}

std::vector<std::int64_t> any_offsets(Choices& choices, std::ptrdiff_t size, std::ptrdiff_t most) {
  std::vector<std::int64_t> offsets{0};
  for (const std::int64_t rows : any_counts(choices, size, most)) offsets.push_back(offsets.back() + rows);
  return offsets;
}

ScoreOptions::ScoreOptions(Call& call, mha_dtype dtype, const Scores& s) {
  Choices& c = call.choices();
  const auto given = [&] { return c.once_in(4); };
  const auto broadcast = [&](std::ptrdiff_t extent) { return c.once_in(3) ? 1 : extent; };
  if (given()) {
    std::ptrdiff_t columns = s.keys;
    if (s.key_counts) {
      columns = 0;
      for (const std::int64_t keys : *s.key_counts) columns = std::max<std::ptrdiff_t>(columns, keys);
    }
    Call::Extents extents{broadcast(s.batch), broadcast(s.heads), broadcast(s.queries), broadcast(columns)};
    if (s.key_counts) extents.erase(extents.begin());
    extents.erase(extents.begin(), extents.begin() + c.below(std::ptrdiff_t(extents.size())));
    attn_mask_ = &call.tensor(c.once_in(2) ? MHA_DTYPE_boolean : dtype, extents);
  }
  if (given()) {
    Call::Extents extents{broadcast(s.batch), broadcast(s.keys)};
    if (s.key_counts || c.once_in(3)) extents.erase(extents.begin());
    key_mask_ = &call.tensor(MHA_DTYPE_boolean, extents);
  }
  if (given() && !s.key_counts) {  // of a ragged batch the longest sequence would count
    const auto blocks = [](std::ptrdiff_t rows) { return (rows + 63) / 64; };
    Call::Extents extents{broadcast(s.batch), broadcast(s.heads), blocks(s.queries), blocks(s.keys)};
    block_mask_ = &call.tensor(MHA_DTYPE_boolean, extents);
  }
  options_.is_causal = given();
  if (given() && !s.over_cache) options_.query_offset = c.between(s.is_turned ? 0 : -4, 8);
  const std::ptrdiff_t sequences = s.key_counts ? std::ptrdiff_t(s.key_counts->size()) : s.batch;
  if (given() && !s.over_cache) query_offsets_ = call.integers(any_counts(c, sequences, 8));
  if (given() && !s.over_cache) {
    std::vector<std::int64_t> lengths;
    for (std::ptrdiff_t b = 0; b < sequences; ++b)
      lengths.push_back(c.between(0, s.key_counts ? (*s.key_counts)[std::size_t(b)] : s.keys));
    key_lengths_ = call.integers(lengths);
  }
  if (given()) options_.window_left = c.between(-1, 5);
  if (given()) options_.window_right = c.between(-1, 5);
  if (given()) options_.scale = c.one_of({0.5, 1.0, 0.0, -0.25, 3.0});
  if (given()) options_.softcap = c.one_of({0.5, 20.0});
  if (given()) {
    const bool is_for_each = c.below(2) == 1;
    const std::vector<std::ptrdiff_t> of_each{sequences, s.heads}, of_all{s.heads};
    alibi_slopes_ = &call.tensor(accumulator_of(dtype), is_for_each ? of_each : of_all);
  }
  if (given()) position_bias_ = &call.tensor(accumulator_of(dtype), {s.heads, 2 * c.between(0, 40) + 1});
  if (given()) sinks_ = &call.tensor(c.below(2) ? dtype : accumulator_of(dtype), {s.heads});
  // Of query and key, which have as many rows if both are of the call.
  if (s.is_turned && (s.over_cache || s.queries == s.keys) && given())
    positions_ = call.integers(any_counts(c, s.batch * s.queries, 8));
  options_.num_threads = int(c.below(4));
  for (std::int64_t* number : {&options_.query_offset, &options_.window_left, &options_.window_right})
    call.number(*number);
  call.real(options_.scale);
  call.real(options_.softcap);
  call.small(options_.num_threads);
}

mha_attention_options ScoreOptions::at(int threads) const {
  const auto get = [](const Argument* argument) { return argument ? argument->get() : nullptr; };
  mha_attention_options options = options_;
  options.attn_mask = get(attn_mask_);
  options.key_mask = get(key_mask_);
  options.block_mask = get(block_mask_);
  options.alibi_slopes = get(alibi_slopes_);
  options.position_bias = get(position_bias_);
  options.sinks = get(sinks_);
  options.key_lengths = key_lengths_;
  options.query_offsets = query_offsets_;
  options.positions = positions_;
  if (threads > 0) options.num_threads = threads;
  return options;
}

void fuzz_attention(Choices& c, Tally& tally) {
  Call call("mha_scaled_dot_product_attention", c, tally);
  const Sizes s(c);
  const mha_dtype dtype = any_dtype(c);
  const int left_out = axes_to_leave_out(c, s);
  const auto shape = [&](const Call::Extents& extents) { return without_axes(extents, left_out); };
  const std::ptrdiff_t query_batch = c.once_in(6) ? 1 : s.batch, key_batch = c.once_in(6) ? 1 : s.batch;
  const std::ptrdiff_t batch = std::max(query_batch, key_batch);
  Argument& query = call.tensor(dtype, shape({query_batch, s.heads, s.queries, s.head_dim}));
  Argument& key = call.tensor(dtype, shape({key_batch, s.kv_heads, s.keys, s.head_dim}));
  Argument& value = call.tensor(dtype, shape({key_batch, s.kv_heads, s.keys, s.value_dim}));
  Argument& out = call.tensor(dtype, shape({batch, s.heads, s.queries, s.value_dim}), Role::output);
  Argument& lse = call.maybe(
      call.tensor(accumulator_of(dtype), shape({batch, s.heads, s.queries}), Role::output_or_minus_infinity), 2);
  const ScoreOptions options(call, dtype, {batch, s.heads, s.queries, s.keys});
  call.mutate();
  call.run([&](int threads) {
    const mha_attention_options with = options.at(threads);
    return mha_scaled_dot_product_attention(query.get(), key.get(), value.get(), out.get(), lse.get(), &with);
  });
}

void fuzz_varlen(Choices& c, Tally& tally) {
  Call call("mha_scaled_dot_product_attention_varlen", c, tally);
  const Sizes s(c);
  const mha_dtype dtype = any_dtype(c);
  const std::ptrdiff_t size = c.between(0, 4);
  const std::vector<std::int64_t> starts_q = any_offsets(c, size, s.queries), starts_k = any_offsets(c, size, s.keys);
  std::vector<std::int64_t> keys;
  for (std::ptrdiff_t b = 0; b < size; ++b) keys.push_back(starts_k[std::size_t(b) + 1] - starts_k[std::size_t(b)]);
  const std::ptrdiff_t nq = starts_q.back(), nk = starts_k.back();
  Argument& query = call.tensor(dtype, {nq, s.heads, s.head_dim});
  Argument& key = call.tensor(dtype, {nk, s.kv_heads, s.head_dim});
  Argument& value = call.tensor(dtype, {nk, s.kv_heads, s.value_dim});
  Argument& out = call.tensor(dtype, {nq, s.heads, s.value_dim}, Role::output);
  Argument& lse = call.maybe(call.tensor(accumulator_of(dtype), {nq, s.heads}, Role::output_or_minus_infinity), 2);
  const auto& queries_at = call.pointer(call.integers(starts_q));
  const auto& keys_at = call.pointer(call.integers(starts_k));
  int fewer = 0;  // a batch of a smaller size than there are offsets
  call.small(fewer);
  const ScoreOptions options(call, dtype, {1, s.heads, nq, nk, &keys});
  call.mutate();
  call.run([&](int threads) {
    const mha_attention_options with = options.at(threads);
    const mha_ragged_batch batch{fewer == 0 ? size : std::min<std::ptrdiff_t>(fewer, size), queries_at, keys_at,
                                 nullptr};
    return mha_scaled_dot_product_attention_varlen(query.get(), key.get(), value.get(), &batch, out.get(), lse.get(),
                                                   &with);
  });
}

void fuzz_weights(Choices& c, Tally& tally) {
  Call call("mha_attention_weights", c, tally);
  const Sizes s(c);
  const mha_dtype dtype = any_dtype(c);
  const int left_out = axes_to_leave_out(c, s);
  const auto shape = [&](const Call::Extents& extents) { return without_axes(extents, left_out); };
  int stage = int(c.between(MHA_SCORES_SCALED, MHA_WEIGHTS));
  call.small(stage);
  Argument& query = call.tensor(dtype, shape({s.batch, s.heads, s.queries, s.head_dim}));
  Argument& key = call.tensor(dtype, shape({s.batch, s.kv_heads, s.keys, s.head_dim}));
  const Role role = stage == MHA_WEIGHTS ? Role::output : Role::output_or_minus_infinity;
  Argument& weights = call.tensor(dtype, shape({s.batch, s.heads, s.queries, s.keys}), role);
  const ScoreOptions options(call, dtype, {s.batch, s.heads, s.queries, s.keys});
  call.mutate();
  call.run([&](int threads) {
    const mha_attention_options with = options.at(threads);
    return mha_attention_weights(query.get(), key.get(), weights.get(), &with, stage);
  });
}

void fuzz_statistics(Choices& c, Tally& tally) {
  Call call("mha_attention_statistics", c, tally);
  const Sizes s(c);
  const mha_dtype dtype = any_dtype(c);
  const int left_out = axes_to_leave_out(c, s);
  const auto shape = [&](const Call::Extents& extents) { return without_axes(extents, left_out); };
  Argument& query = call.tensor(dtype, shape({s.batch, s.heads, s.queries, s.head_dim}));
  Argument& key = call.tensor(dtype, shape({s.batch, s.kv_heads, s.keys, s.head_dim}));
  Argument* results[4];
  for (Argument*& result : results)
    result =
        &call.maybe(call.tensor(accumulator_of(dtype),
                                shape({s.batch, s.heads, &result == &results[3] ? s.keys : s.queries}), Role::output),
                    3);
  std::int64_t* const max_key = c.once_in(2) ? call.output_integers(s.batch * s.heads * s.queries) : nullptr;
  // Integers have no shape: another output must say how many rows there are, or a mutation could add some.
  if (max_key) results[0]->is_null = false;
  const ScoreOptions options(call, dtype, {s.batch, s.heads, s.queries, s.keys});
  call.mutate();
  call.run([&](int threads) {
    const mha_attention_options with = options.at(threads);
    const mha_statistics wanted{results[0]->get(), results[1]->get(), max_key, results[2]->get(), results[3]->get()};
    return mha_attention_statistics(query.get(), key.get(), &wanted, &with);
  });
}

void fuzz_gradient(Choices& c, Tally& tally) {
  Call call("mha_attention_gradient", c, tally);
  const Sizes s(c);
  const mha_dtype dtype = any_dtype(c), sums = accumulator_of(dtype);
  const int left_out = axes_to_leave_out(c, s);
  const auto shape = [&](const Call::Extents& extents) { return without_axes(extents, left_out); };
  const Call::Extents queries = shape({s.batch, s.heads, s.queries, s.head_dim}),
                      keys = shape({s.batch, s.kv_heads, s.keys, s.head_dim}),
                      values = shape({s.batch, s.kv_heads, s.keys, s.value_dim}),
                      results = shape({s.batch, s.heads, s.queries, s.value_dim}),
                      rows = shape({s.batch, s.heads, s.queries});
  Argument &query = call.tensor(dtype, queries), &key = call.tensor(dtype, keys), &value = call.tensor(dtype, values);
  Argument &out = call.tensor(dtype, results), &lse = call.tensor(sums, rows), &dout = call.tensor(dtype, results);
  Argument& dlse = call.maybe(call.tensor(sums, rows), 2);
  Argument &dquery = call.maybe(call.tensor(dtype, queries, Role::output), 3),
           &dkey = call.maybe(call.tensor(dtype, keys, Role::output), 3),
           &dvalue = call.maybe(call.tensor(dtype, values, Role::output), 3);
  call.expect_unwritten();  // `lse` is any number, so a weight may be too large
  const ScoreOptions options(call, dtype, {s.batch, s.heads, s.queries, s.keys});
  call.mutate();
  call.run([&](int threads) {
    const mha_attention_options with = options.at(threads);
    const mha_attention_gradients wanted{dquery.get(), dkey.get(), dvalue.get(), nullptr, nullptr, nullptr, nullptr};
    return mha_attention_gradient(query.get(), key.get(), value.get(), out.get(), lse.get(), dout.get(), &wanted, &with,
                                  dlse.get());
  });
}

void fuzz_merge(Choices& c, Tally& tally) {
  Call call("mha_merge_attention", c, tally);
  const mha_dtype dtype = any_dtype(c);
  const std::ptrdiff_t shards = c.once_in(8) ? c.between(20, 60) : c.between(1, 4);
  Call::Extents rows{c.once_in(8) ? c.between(0, 90) : c.between(1, 4)};
  for (std::ptrdiff_t axes = c.between(0, 2); axes-- > 0;) rows.push_back(c.between(1, 4));
  Call::Extents elements = rows;
  elements.push_back(c.once_in(6) ? c.between(100, 300) : c.between(0, 20));
  std::vector<Argument*> outs, lses;
  for (std::ptrdiff_t i = 0; i < shards; ++i) {
    outs.push_back(&call.tensor(dtype, elements));
    lses.push_back(&call.tensor(accumulator_of(dtype), rows));
  }
  // A running result is one whose memory no index shares.
  const bool in_place = c.once_in(4);
  if (in_place) outs[0] = &call.dense(dtype, elements);
  Argument& out = in_place ? call.in_place_of(*outs[0]) : call.tensor(dtype, elements, Role::output);
  Argument& lse = call.maybe(call.tensor(accumulator_of(dtype), rows, Role::output_or_minus_infinity), 2);
  int given = int(shards), num_threads = int(c.below(3));
  call.small(num_threads);
  if (c.once_in(8)) given = int(c.between(-1, 0));
  const bool too_few = given < 1;
  call.mutate();
  if (too_few) call.expect_refusal("no shards");
  call.run([&](int threads) {
    std::vector<mha_tensor> all_outs, all_lses;
    for (const Argument* argument : outs) all_outs.push_back(argument->tensor);
    for (const Argument* argument : lses) all_lses.push_back(argument->tensor);
    return mha_merge_attention(all_outs.data(), all_lses.data(), given, out.get(), lse.get(),
                               threads > 0 ? threads : num_threads);
  });
}

}  // namespace mha::fuzz
