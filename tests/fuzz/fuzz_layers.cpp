#include <optional>

#include "calls.hpp"

namespace mha::fuzz {
namespace {

/// The weights of one linear map, [out, in], in the form that `stored` asks for.
struct Linear {
  Linear(Call& call, mha_dtype dtype, bool stored_in_int8, std::ptrdiff_t out, std::ptrdiff_t in)
      : weight(call.tensor(stored_in_int8 ? MHA_DTYPE_int8 : dtype, {out, in})),
        bias(call.maybe(call.tensor(dtype, {out}), 2)),
        scale(stored_in_int8 ? &call.tensor(MHA_DTYPE_f32, {out}) : nullptr) {}
  mha_linear_weights get() const {
    return {weight.get(), bias.get(), scale ? scale->get() : nullptr, MHA_WEIGHT_FORMAT_PLAIN};
  }

  Argument &weight, &bias, *scale;
};

/// Outputs of the same shapes.
struct LinearCopy {
  LinearCopy(Call& call, mha_dtype matrix, mha_dtype dtype, std::ptrdiff_t out, std::ptrdiff_t in)
      : weight(call.maybe(call.tensor(matrix, {out, in}, Role::output), 3)),
        scale(call.maybe(call.tensor(MHA_DTYPE_f32, {out}, Role::output), 3)),
        bias(call.maybe(call.tensor(dtype, {out}, Role::output), 3)) {
    if (matrix != MHA_DTYPE_int8) scale.is_null = true;
  }
  mha_linear_weights get() const { return {weight.get(), bias.get(), scale.get(), MHA_WEIGHT_FORMAT_PLAIN}; }
  Argument &weight, &scale, &bias;
};

mha_weight_format any_format(Choices& c, mha_dtype dtype) {
  if (dtype != MHA_DTYPE_f32) return MHA_WEIGHT_FORMAT_PLAIN;
  return c.one_of<mha_weight_format>(
      {MHA_WEIGHT_FORMAT_PLAIN, MHA_WEIGHT_FORMAT_BF16, MHA_WEIGHT_FORMAT_INT8, MHA_WEIGHT_FORMAT_INT4});
}

/// Whether a layer stores matrices as integers with scales.
bool has_scales(mha_weight_format format) {
  return format == MHA_WEIGHT_FORMAT_INT8 || format == MHA_WEIGHT_FORMAT_INT4;
}

mha_layer_config any_layer_config(Choices& c) {
  mha_layer_config config{};
  config.num_heads = c.between(1, 3);
  config.embed_dim = config.num_heads * c.between(1, c.once_in(6) ? 30 : 9);
  if (c.once_in(3)) config.num_kv_heads = 1;
  if (c.once_in(3)) config.head_dim = c.once_in(2) ? 16 : c.between(1, 20);
  if (c.once_in(3)) config.value_head_dim = c.once_in(2) ? 16 : c.between(1, 20);
  if (c.once_in(3)) config.kdim = c.between(1, 40);
  if (c.once_in(3)) config.vdim = c.between(1, 40);
  if (c.once_in(3)) config.out_dim = c.between(1, 70);
  config.add_bias_kv = c.once_in(5);
  config.add_zero_attn = c.once_in(5);
  return config;
}

mha_layer_config resolved(mha_layer_config s) {
  if (s.num_kv_heads == 0) s.num_kv_heads = s.num_heads;
  if (s.head_dim == 0) s.head_dim = s.embed_dim / s.num_heads;
  if (s.value_head_dim == 0) s.value_head_dim = s.head_dim;
  if (s.kdim == 0) s.kdim = s.embed_dim;
  if (s.vdim == 0) s.vdim = s.embed_dim;
  if (s.out_dim == 0) s.out_dim = s.embed_dim;
  return s;
}

/// Of a cache for a layer of `dtype`, with room for a few tokens more than `tokens`; it may keep them in fewer bits.
mha_cache_config any_config_over(Choices& c, const mha_layer_config& s, mha_dtype dtype, std::ptrdiff_t batch,
                                 std::ptrdiff_t tokens) {
  if (dtype == MHA_DTYPE_f32) dtype = c.one_of({MHA_DTYPE_f32, MHA_DTYPE_f16, MHA_DTYPE_bf16, MHA_DTYPE_int8});
  return {batch, s.num_kv_heads, tokens + 3, s.head_dim, s.value_head_dim, dtype};
}

/// Rows of some sequences of a cache, one sequence after another, which are appended to them.
void forward_over_sequences(Choices& c, Call& call, const mha_layer* layer, const Cache& cache, std::ptrdiff_t most) {
  const mha_layer_config s = mha_layer_config_of(layer);
  const mha_cache_config of_cache = mha_cache_config_of(cache.handle);
  const mha_dtype dtype = mha_layer_dtype(layer);
  std::vector<std::int64_t> names;
  const std::ptrdiff_t first = c.below(of_cache.batch_size), count = c.between(1, of_cache.batch_size);
  for (std::ptrdiff_t i = 0; i < count; ++i) names.push_back((first + i) % of_cache.batch_size);
  const std::vector<std::int64_t> starts = any_offsets(c, count, most);
  call.cache(cache.handle);
  Argument& query = call.tensor(dtype, {starts.back(), s.embed_dim});
  Argument& key = call.tensor(dtype, {starts.back(), s.kdim});
  Argument& value = call.tensor(dtype, {starts.back(), s.vdim});
  Argument& out = call.tensor(dtype, {starts.back(), s.out_dim}, Role::output);
  const auto& starts_at = call.pointer(call.integers(starts));
  const auto& names_at = call.pointer(call.integers(names));
  mha_attention_options options = mha_default_options();
  options.is_causal = c.once_in(2);
  options.num_threads = int(c.below(3));
  call.small(options.num_threads);
  call.expect_refusal("perhaps more tokens than there is room for");
  call.mutate();
  call.run([&](int threads) {
    mha_attention_options with = options;
    if (threads > 0) with.num_threads = threads;
    const mha_ragged_batch ragged{count, starts_at, starts_at, names_at};
    return mha_layer_forward_varlen_cached(layer, query.get(), key.get(), value.get(), &ragged, cache.handle, out.get(),
                                           &with);
  });
}

void copy_layer_weights(Choices& c, Tally& tally, const mha_layer* layer, const mha_layer_config& s) {
  Call call("mha_layer_copy_weights", c, tally);
  const mha_dtype dtype = mha_layer_dtype(layer);
  const mha_dtype matrix = has_scales(s.weight_format) ? int(MHA_DTYPE_int8) : dtype;
  const LinearCopy query(call, matrix, dtype, s.num_heads * s.head_dim, s.embed_dim);
  const LinearCopy key(call, matrix, dtype, s.num_kv_heads * s.head_dim, s.kdim);
  const LinearCopy value(call, matrix, dtype, s.num_kv_heads * s.value_head_dim, s.vdim);
  const LinearCopy out(call, matrix, dtype, s.out_dim, s.num_heads * s.value_head_dim);
  call.expect_unwritten();
  call.mutate();
  call.run([&](int) {
    const mha_layer_weights outputs{query.get(), key.get(), value.get(), out.get(), nullptr, nullptr};
    return mha_layer_copy_weights(layer, &outputs);
  });
}

}  // namespace

Rotary some_rotary(Choices& c, Tally& tally, mha_dtype dtype, std::ptrdiff_t head_dim) {
  Rotary rotary;
  Call call("mha_rotary_create", c, tally);
  const std::ptrdiff_t pairs = c.between(1, head_dim / 2);
  Argument& cos = call.tensor(accumulator_of(dtype), {1024, pairs});
  Argument& sin = call.tensor(accumulator_of(dtype), {1024, pairs});
  int which = int(c.below(2));
  call.small(which);
  call.mutate();
  if (!call.run([&](int) { return mha_rotary_create(cos.get(), sin.get(), which, rotary.fresh()); })) rotary.fresh();
  return rotary;
}

Layer some_layer(Choices& c, Tally& tally, mha_dtype dtype, const mha_layer_config& given, bool stands_alone) {
  Layer layer;
  const std::ptrdiff_t head_dim = resolved(given).head_dim;
  const bool has_norms = stands_alone && c.once_in(3), is_turned = stands_alone && head_dim > 1 && c.once_in(3);
  const Norm query_norm = has_norms ? some_norm(c, tally, dtype, head_dim) : Norm();
  const Norm key_norm = has_norms ? some_norm(c, tally, dtype, head_dim) : Norm();
  const Rotary rotary = is_turned ? some_rotary(c, tally, dtype, head_dim) : Rotary();
  const mha_query_key_steps steps{query_norm.handle, key_norm.handle, rotary.handle};
  Call call("mha_layer_create", c, tally);
  mha_layer_config config = given;
  config.weight_format = any_format(c, dtype);
  const mha_layer_config s = resolved(config);
  const bool stored = has_scales(config.weight_format) && c.once_in(2);
  const Linear query(call, dtype, stored, s.num_heads * s.head_dim, s.embed_dim);
  const Linear key(call, dtype, stored, s.num_kv_heads * s.head_dim, s.kdim);
  const Linear value(call, dtype, stored, s.num_kv_heads * s.value_head_dim, s.vdim);
  const Linear out(call, dtype, stored, s.out_dim, s.num_heads * s.value_head_dim);
  const Argument& added_key = call.dense(dtype, {s.num_kv_heads * s.head_dim});
  const Argument& added_value = call.dense(dtype, {s.num_kv_heads * s.value_head_dim});
  std::int64_t sizes[] = {config.embed_dim,      config.num_heads, config.num_kv_heads, config.head_dim,
                          config.value_head_dim, config.kdim,      config.vdim,         config.out_dim};
  for (std::int64_t& size : sizes) call.number(size);
  call.small(config.weight_format);
  if (stands_alone) call.mutate();
  const bool made = call.run([&](int) {
    const mha_layer_config with{sizes[0],
                                sizes[1],
                                sizes[2],
                                sizes[3],
                                sizes[4],
                                sizes[5],
                                sizes[6],
                                sizes[7],
                                config.add_bias_kv,
                                config.add_zero_attn,
                                config.weight_format};
    const mha_layer_weights weights{query.get(),
                                    key.get(),
                                    value.get(),
                                    out.get(),
                                    config.add_bias_kv ? added_key.get() : nullptr,
                                    config.add_bias_kv ? added_value.get() : nullptr};
    return stands_alone ? mha_layer_create_with_steps(&with, &weights, &steps, layer.fresh())
                        : mha_layer_create(&with, &weights, layer.fresh());
  });
  if (!made) layer.fresh();
  return layer;
}

void fuzz_layer(Choices& c, Tally& tally) {
  const mha_dtype dtype = any_dtype(c);
  const Layer layer = some_layer(c, tally, dtype, any_layer_config(c), true);
  if (layer.handle == nullptr) return;
  const mha_layer_config s = mha_layer_config_of(layer.handle);
  if (c.once_in(6)) copy_layer_weights(c, tally, layer.handle, s);
  const bool is_long = c.once_in(8);
  const std::ptrdiff_t batch = c.between(1, 3), rows = is_long ? c.between(60, 140) : c.between(0, 9);
  const std::ptrdiff_t keys = is_long ? rows : c.between(0, 12);
  const std::ptrdiff_t added = std::ptrdiff_t(s.add_bias_kv) + std::ptrdiff_t(s.add_zero_attn);
  const bool is_turned = mha_layer_steps(layer.handle).rotary != nullptr;
  Call call("mha_layer", c, tally);
  switch (const std::ptrdiff_t operation = c.below(6)) {
    case 0: {
      Argument& query = call.tensor(dtype, {batch, rows, s.embed_dim});
      Argument& key = call.tensor(dtype, {batch, keys, s.kdim});
      Argument& value = call.tensor(dtype, {batch, keys, s.vdim});
      Argument& out = call.tensor(dtype, {batch, rows, s.out_dim}, Role::output);
      Argument& weights = call.maybe(call.tensor(dtype, {batch, s.num_heads, rows, keys + added}, Role::output), 2);
      const ScoreOptions options(call, dtype, {batch, s.num_heads, rows, keys, nullptr, false, is_turned});
      call.mutate();
      call.run([&](int threads) {
        const mha_attention_options with = options.at(threads);
        return mha_layer_forward(layer.handle, query.get(), key.get(), value.get(), out.get(), weights.get(), &with);
      });
      return;
    }
    case 1: {
      const std::vector<std::int64_t> starts_q = any_offsets(c, batch, rows), starts_k = any_offsets(c, batch, keys);
      std::vector<std::int64_t> counts;
      for (std::size_t b = 0; b + 1 < starts_k.size(); ++b) counts.push_back(starts_k[b + 1] - starts_k[b]);
      Argument& query = call.tensor(dtype, {starts_q.back(), s.embed_dim});
      Argument& key = call.tensor(dtype, {starts_k.back(), s.kdim});
      Argument& value = call.tensor(dtype, {starts_k.back(), s.vdim});
      Argument& out = call.tensor(dtype, {starts_q.back(), s.out_dim}, Role::output);
      const auto& queries_at = call.pointer(call.integers(starts_q));
      const auto& keys_at = call.pointer(call.integers(starts_k));
      const ScoreOptions options(call, dtype,
                                 {1, s.num_heads, starts_q.back(), starts_k.back(), &counts, false, is_turned});
      call.mutate();
      call.run([&](int threads) {
        const mha_attention_options with = options.at(threads);
        const mha_ragged_batch ragged{batch, queries_at, keys_at, nullptr};
        return mha_layer_forward_varlen(layer.handle, query.get(), key.get(), value.get(), &ragged, out.get(), &with);
      });
      return;
    }
    default:
      forward_over_sequences(c, call, layer.handle, filled_cache(c, tally, any_config_over(c, s, dtype, batch, rows)),
                             rows);
      return;
    case 2:
    case 3:
    case 4: {
      // Over a cache, whose dtype may be narrower than that of the layer: forward, attend, or append only.
      const mha_cache_config config = any_config_over(c, s, dtype, batch, keys + rows);
      const Cache cache = filled_cache(c, tally, config);
      const bool attends = operation == 3, appends = operation == 4;
      std::int64_t longest = 0, total = 0;
      std::vector<std::int64_t> more = any_counts(c, batch, rows);
      const bool is_padded = !attends && c.once_in(2);
      for (std::ptrdiff_t b = 0; b < batch; ++b) {
        std::int64_t length = mha_cache_lengths(cache.handle)[b];
        if (!attends) length += is_padded ? more[std::size_t(b)] : rows;
        longest = std::max(longest, length);
        total = std::max(total, length);
      }
      if (total > config.capacity) call.expect_refusal("more tokens than there is room for");
      call.cache(cache.handle);
      Argument& query = call.tensor(dtype, {batch, rows, s.embed_dim});
      Argument& key = call.tensor(dtype, {batch, rows, s.kdim});
      Argument& value = call.tensor(dtype, {batch, rows, s.vdim});
      Argument& out = call.tensor(dtype, {batch, rows, s.out_dim}, Role::output);
      Argument& weights = call.maybe(call.tensor(dtype, {batch, s.num_heads, rows, longest + added}, Role::output), 2);
      const std::int64_t* const new_lengths = is_padded ? call.integers(more) : nullptr;
      const ScoreOptions options(call, dtype, {batch, s.num_heads, rows, longest, nullptr, !attends, is_turned});
      int num_threads = int(c.below(3));
      call.small(num_threads);
      if (appends) out.is_null = weights.is_null = true;
      if (attends) call.expect_refusal("perhaps key_lengths, which are those of the cache");
      call.mutate();
      call.run([&](int threads) {
        const mha_attention_options with = options.at(threads);
        if (appends)
          return mha_layer_append_to(layer.handle, cache.handle, key.get(), value.get(), new_lengths,
                                     threads > 0 ? threads : num_threads);
        if (attends) return mha_layer_attend(layer.handle, query.get(), cache.handle, out.get(), weights.get(), &with);
        return mha_layer_forward_cached(layer.handle, query.get(), key.get(), value.get(), cache.handle, out.get(),
                                        weights.get(), &with, new_lengths);
      });
    }
  }
}

Norm some_norm(Choices& c, Tally& tally, mha_dtype dtype, std::ptrdiff_t width, bool may_fail) {
  Norm norm;
  const bool is_rms = c.once_in(3), unit_offset = c.once_in(2);
  Call call(is_rms ? "mha_rms_norm_create" : "mha_norm_create", c, tally);
  Argument& weight = call.tensor(dtype, {width});
  double eps = 1e-5;
  call.real(eps);
  if (is_rms) {
    if (may_fail) call.mutate();
    if (!call.run([&](int) { return mha_rms_norm_create(weight.get(), eps, unit_offset, norm.fresh()); })) norm.fresh();
    return norm;
  }
  Argument& bias = call.maybe(call.tensor(dtype, {width}), 2);
  if (may_fail) call.mutate();
  if (!call.run([&](int) { return mha_norm_create(weight.get(), bias.get(), eps, norm.fresh()); })) norm.fresh();
  return norm;
}

LinearLayer some_linear(Choices& c, Tally& tally, mha_dtype dtype, std::ptrdiff_t out, std::ptrdiff_t in) {
  LinearLayer layer;
  Call call("mha_linear_create", c, tally);
  int format = any_format(c, dtype);
  const Linear weights(call, dtype, has_scales(format) && c.once_in(2), out, in);
  call.small(format);
  call.mutate();
  const bool made = call.run([&](int) {
    const mha_linear_weights given = weights.get();
    return mha_linear_create(&given, format, layer.fresh());
  });
  if (!made) layer.fresh();
  return layer;
}

void copy_linear_weights(Choices& c, Tally& tally, const mha_linear* layer) {
  Call call("mha_linear_copy_weights", c, tally);
  const mha_dtype dtype = mha_linear_dtype(layer);
  const bool is_quantized = has_scales(mha_linear_weight_format(layer));
  const LinearCopy copies(call, is_quantized ? int(MHA_DTYPE_int8) : dtype, dtype, mha_linear_out_features(layer),
                          mha_linear_in_features(layer));
  call.expect_unwritten();  // a bias that the layer may lack
  call.mutate();
  call.run([&](int) {
    const mha_linear_weights outputs = copies.get();
    return mha_linear_copy_weights(layer, &outputs);
  });
}

FeedForwardLayer some_feed_forward(Choices& c, Tally& tally, mha_dtype dtype, std::ptrdiff_t width, bool may_fail) {
  FeedForwardLayer layer;
  Call call("mha_feed_forward_create", c, tally);
  int format = any_format(c, dtype), activation = int(c.below(5));
  const std::ptrdiff_t hidden = c.once_in(6) ? c.between(60, 140) : c.between(1, 30);
  const bool stored = has_scales(format) && c.once_in(2);
  const Linear up(call, dtype, stored, hidden, width), down(call, dtype, stored, width, hidden);
  std::optional<Linear> gate;
  if (c.once_in(2)) gate.emplace(call, dtype, stored, hidden, width);
  call.small(format);
  call.small(activation);
  if (may_fail) call.mutate();
  const bool made = call.run([&](int) {
    const mha_feed_forward_weights weights{up.get(), down.get(), gate ? gate->get() : mha_linear_weights{}};
    return mha_feed_forward_create(&weights, activation, format, layer.fresh());
  });
  if (!made) layer.fresh();
  return layer;
}

void copy_feed_forward_weights(Choices& c, Tally& tally, const mha_feed_forward* layer) {
  Call call("mha_feed_forward_copy_weights", c, tally);
  const mha_dtype dtype = mha_feed_forward_dtype(layer);
  const bool is_quantized = has_scales(mha_feed_forward_weight_format(layer));
  const mha_dtype matrix = is_quantized ? int(MHA_DTYPE_int8) : dtype;
  const std::ptrdiff_t width = mha_feed_forward_embed_dim(layer), hidden = mha_feed_forward_feedforward_dim(layer);
  const LinearCopy up(call, matrix, dtype, hidden, width), down(call, matrix, dtype, width, hidden);
  const LinearCopy gate(call, matrix, dtype, hidden, width);
  call.expect_unwritten();  // biases that the layer may lack, and its gate
  call.mutate();
  call.run([&](int) {
    const mha_feed_forward_weights outputs{up.get(), down.get(), gate.get()};
    return mha_feed_forward_copy_weights(layer, &outputs);
  });
}

}  // namespace mha::fuzz
