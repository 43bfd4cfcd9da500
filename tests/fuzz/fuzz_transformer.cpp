#include "calls.hpp"

namespace mha::fuzz {

void fuzz_transformer(Choices& c, Tally& tally) {
  const mha_dtype dtype = any_dtype(c);
  mha_layer_config config{};
  config.num_heads = c.between(1, 3);
  config.embed_dim = std::max<std::ptrdiff_t>(2, config.num_heads * c.between(1, 12));
  config.embed_dim += (config.num_heads - config.embed_dim % config.num_heads) % config.num_heads;
  const std::ptrdiff_t width = config.embed_dim, count = c.between(1, 2), memory_width = c.between(1, 20);
  const bool reads_memory = c.once_in(3);
  mha_layer_config cross_config = config;
  cross_config.kdim = cross_config.vdim = memory_width;

  struct Parts {
    Layer self, cross;
    FeedForwardLayer feed_forward;
    Norm norms[3], output_norms[3];
  };
  std::vector<Parts> parts(static_cast<std::size_t>(count));
  std::vector<mha_transformer_layer> layers;
  for (Parts& p : parts) {
    p.self = some_layer(c, tally, dtype, config);
    if (reads_memory) p.cross = some_layer(c, tally, dtype, cross_config);
    p.feed_forward = some_feed_forward(c, tally, dtype, width);
    for (int n = 0; n < (reads_memory ? 3 : 2); ++n) {
      if (!c.once_in(4)) p.norms[n] = some_norm(c, tally, dtype, width);
      if (c.once_in(4)) p.output_norms[n] = some_norm(c, tally, dtype, width);
    }
    layers.push_back({p.self.handle, p.cross.handle, p.feed_forward.handle, p.norms[0].handle, p.norms[1].handle,
                      p.norms[2].handle, int(c.below(2)), p.output_norms[0].handle, p.output_norms[1].handle,
                      p.output_norms[2].handle, nullptr});
  }
  const Norm last = c.once_in(2) ? some_norm(c, tally, dtype, width) : Norm();
  const Norm third = some_norm(c, tally, dtype, width);
  Transformer stack;
  {
    Call call("mha_transformer_create", c, tally);
    std::int64_t given = count;
    call.small(layers[0].norm_placement);
    if (c.once_in(8)) {
      call.expect_refusal("a part that is missing or of another stack");
      switch (c.below(4)) {
        case 0:
          layers[0].self_attention = nullptr;
          break;
        case 1:
          layers[0].feed_forward = nullptr;
          break;
        case 2:
          layers[0].cross_attention = nullptr;
          layers[0].norm3 = third.handle;
          break;
        default:
          given = -c.below(2);
      }
    }
    call.mutate();
    if (!call.run([&](int) { return mha_transformer_create(layers.data(), given, last.handle, stack.fresh()); }))
      return;
  }

  std::vector<Cache> memory_caches;
  std::vector<const mha_cache*> memory_handles;
  const auto keep_memories = [&](Call& call, std::ptrdiff_t num_memories) {
    for (const mha_transformer_layer& layer : layers) {
      const mha_layer_config s = mha_layer_config_of(layer.cross_attention);
      memory_caches.push_back(
          filled_cache(c, tally, {num_memories, s.num_kv_heads, 7, s.head_dim, s.value_head_dim, dtype}));
      memory_handles.push_back(memory_caches.back().handle);
      call.cache(memory_caches.back().handle);
    }
  };

  const std::ptrdiff_t batch = c.between(1, 3), rows = c.once_in(8) ? c.between(60, 140) : c.between(0, 9);
  if (c.once_in(3)) {
    Call call("mha_transformer_forward_varlen", c, tally);
    const std::vector<std::int64_t> starts = any_offsets(c, batch, rows);
    std::vector<std::int64_t> counts;
    for (std::size_t b = 0; b + 1 < starts.size(); ++b) counts.push_back(starts[b + 1] - starts[b]);
    const bool in_place = c.once_in(3);
    Argument& x = in_place ? call.dense(dtype, {starts.back(), width}) : call.tensor(dtype, {starts.back(), width});
    Argument& out = in_place ? call.in_place_of(x) : call.tensor(dtype, {starts.back(), width}, Role::output);
    const auto& texts_at = call.pointer(call.integers(starts));
    const ScoreOptions options(call, dtype, {1, config.num_heads, starts.back(), starts.back(), &counts});
    mha_transformer_extras extras{};
    if (reads_memory) {
      const std::ptrdiff_t num_memories = c.between(1, 4);
      keep_memories(call, num_memories);
      extras.memory_caches = memory_handles.data();
      std::vector<std::int64_t> memories;  // those that read one memory are neighbours
      for (std::ptrdiff_t b = 0, memory = c.below(2); b < batch; ++b, memory += c.below(2)) memories.push_back(memory);
      if (memories.back() >= num_memories) call.expect_refusal("a memory that is not there");
      if (c.once_in(16) && batch > 2 && memories[0] != memories[1]) {
        memories[2] = memories[0];
        call.expect_refusal("rows of one memory that are not neighbours");
      }
      if (num_memories != batch || !c.once_in(4)) extras.memory_sequences = call.integers(memories);
    }
    call.mutate();
    call.run([&](int threads) {
      const mha_attention_options with = options.at(threads);
      return mha_transformer_forward_varlen(stack.handle, x.get(), texts_at, batch, out.get(), &with, &extras);
    });
    return;
  }

  Call call("mha_transformer_forward", c, tally);
  const bool over_caches = c.once_in(2);
  std::vector<Cache> caches;
  std::vector<mha_cache*> handles;
  std::vector<std::int64_t> lengths;
  const std::vector<std::int64_t> more = any_counts(c, batch, rows);
  const bool is_padded = over_caches && c.once_in(2);
  std::int64_t longest = rows;
  for (std::ptrdiff_t i = 0; over_caches && i < count; ++i) {
    const mha_layer_config s = mha_layer_config_of(layers[std::size_t(i)].self_attention);
    caches.push_back(
        filled_cache(c, tally, {batch, s.num_kv_heads, 2 * rows + 5, s.head_dim, s.value_head_dim, dtype}));
    // All caches of a stack hold as many tokens as the first one.
    mha_cache* const cache = caches.back().handle;
    if (i == 0) {
      lengths.assign(mha_cache_lengths(cache), mha_cache_lengths(cache) + batch);
    } else {
      mha_cache_clear(cache);
      mha_cache_advance(cache, 2 * rows + 5, lengths.data());
    }
    handles.push_back(cache);
    call.cache(cache);
  }
  for (std::size_t b = 0; over_caches && b < lengths.size(); ++b) {
    const std::int64_t after = lengths[b] + (is_padded ? more[b] : rows);
    longest = b == 0 ? after : std::max(longest, after);
    if (after > 2 * rows + 5) call.expect_refusal("more tokens than there is room for");
  }
  const bool keeps_memory = reads_memory && c.once_in(2);
  if (keeps_memory) keep_memories(call, batch);
  const bool in_place = c.once_in(3);
  const Call::Extents extents{batch, rows, width};
  Argument& x = in_place ? call.dense(dtype, extents) : call.tensor(dtype, extents);
  Argument& out = in_place ? call.in_place_of(x) : call.tensor(dtype, extents, Role::output);
  Argument* const memory =
      reads_memory && !keeps_memory ? &call.tensor(dtype, {batch, c.between(0, 9), memory_width}) : nullptr;
  std::vector<Argument*> weights;
  for (std::ptrdiff_t i = c.once_in(3) ? 0 : count; i < count; ++i)
    weights.push_back(&call.tensor(dtype, {batch, config.num_heads, rows, longest}, Role::output));
  const std::int64_t* const new_lengths = is_padded ? call.integers(more) : nullptr;
  const ScoreOptions options(call, dtype, {batch, config.num_heads, rows, longest, nullptr, over_caches});
  call.mutate();
  call.run([&](int threads) {
    const mha_attention_options with = options.at(threads);
    std::vector<mha_tensor> weight_tensors;
    for (const Argument* argument : weights)
      weight_tensors.push_back(argument->is_null ? mha_tensor{} : argument->tensor);
    mha_transformer_extras extras{};
    extras.memory = memory ? memory->get() : nullptr;
    if (keeps_memory) extras.memory_caches = memory_handles.data();
    if (over_caches) extras.caches = handles.data();
    extras.new_lengths = new_lengths;
    if (!weights.empty()) extras.weights = weight_tensors.data();
    return mha_transformer_forward(stack.handle, x.get(), out.get(), &with, &extras);
  });
}

}  // namespace mha::fuzz
