#include "calls.hpp"

namespace mha::fuzz {
namespace {

/// Some tokens for each sequence, as many as a cache of `config` holds, which are finite numbers.
void fill(Choices& c, const Cache& cache, const mha_cache_config& config) {
  std::mt19937 contents = c.contents();
  for (const mha_tensor& all : {mha_cache_keys(cache.handle), mha_cache_values(cache.handle),
                                mha_cache_key_scales(cache.handle), mha_cache_value_scales(cache.handle)})
    for_each_element(all, [&](std::ptrdiff_t offset) {
      write_element(static_cast<std::byte*>(all.data) + offset, all.dtype, contents());
    });
  const std::vector<std::int64_t> lengths = any_counts(c, config.batch_size, config.capacity);
  if (mha_cache_advance(cache.handle, config.capacity, lengths.data()) != MHA_OK)
    throw Finding(std::string("mha_cache_advance: ") + mha_last_error());
}

/// A pool in which each sequence may have `capacity` tokens, and perhaps some pages more.
mha_paged_cache_config pages_for(Choices& c, const mha_cache_config& s) {
  const std::ptrdiff_t page_size = c.once_in(4) ? 128 : 64, pages = (s.capacity + page_size - 1) / page_size;
  return {s.batch_size * pages + c.below(3),
          page_size,
          s.batch_size,
          s.num_kv_heads,
          s.head_dim,
          s.value_head_dim,
          s.dtype};
}

/// Lets a sequence begin as another one does, now and then.
void share_pages(Choices& c, const Cache& cache, std::ptrdiff_t batch) {
  if (batch < 2 || c.once_in(2)) return;
  const std::ptrdiff_t from = c.below(batch), into = (from + 1) % batch;
  const std::ptrdiff_t length = c.between(0, mha_cache_lengths(cache.handle)[from]);
  if (mha_paged_cache_release(cache.handle, into) != MHA_OK ||
      mha_paged_cache_fork(cache.handle, from, into, length) != MHA_OK)
    throw Finding(std::string("mha_paged_cache_fork: ") + mha_last_error());
}

/// What keys and values are given in that a cache keeps as `dtype`.
mha_dtype given_to(mha_dtype dtype) { return dtype == MHA_DTYPE_int8 ? int(MHA_DTYPE_f32) : dtype; }

/// Attention to what is in the cache.
void fuzz_attention_over(Choices& c, Tally& tally, const Cache& cache, const mha_cache_config& s) {
  Call call("mha_scaled_dot_product_attention_cached", c, tally);
  const std::ptrdiff_t heads = s.num_kv_heads * c.between(1, 3), queries = c.once_in(8) ? 70 : c.between(0, 5);
  const mha_dtype dtype = given_to(s.dtype);
  call.cache(cache.handle);
  Argument& query = call.tensor(dtype, {s.batch_size, heads, queries, s.head_dim});
  Argument& out = call.tensor(dtype, {s.batch_size, heads, queries, s.value_head_dim}, Role::output);
  Argument& lse =
      call.maybe(call.tensor(accumulator_of(dtype), {s.batch_size, heads, queries}, Role::output_or_minus_infinity), 2);
  const ScoreOptions options(
      call, dtype, {s.batch_size, heads, queries, mha_cache_longest(cache.handle, 0, nullptr), nullptr, true});
  call.mutate();
  call.run([&](int threads) {
    const mha_attention_options with = options.at(threads);
    return mha_scaled_dot_product_attention_cached(query.get(), cache.handle, out.get(), lse.get(), &with);
  });
}

/// Tokens in the form in which a cache of int8 keeps them.
void fuzz_stored(Choices& c, Tally& tally, const Cache& cache, const mha_cache_config& s) {
  Call call("mha_cache_assign_stored", c, tally);
  call.cache(cache.handle);
  const std::ptrdiff_t tokens = c.between(0, std::min<std::ptrdiff_t>(s.capacity, 70));
  const auto some = [&](mha_dtype dtype, std::ptrdiff_t columns) -> Argument& {
    return call.tensor(dtype, {s.batch_size, s.num_kv_heads, tokens, columns});
  };
  Argument &key = some(s.dtype, s.head_dim), &value = some(s.dtype, s.value_head_dim);
  Argument &key_scale = some(MHA_DTYPE_f32, 1), &value_scale = some(MHA_DTYPE_f32, 1);
  call.expect_refusal("perhaps no cache of int8, or too few pages");
  call.mutate();
  call.run([&](int) {
    return mha_cache_assign_stored(cache.handle, key.get(), value.get(), key_scale.get(), value_scale.get(), nullptr);
  });
}

}  // namespace

Cache filled_cache(Choices& c, Tally& tally, const mha_cache_config& config) {
  Cache cache;
  ++tally.calls;
  const bool is_paged = c.once_in(3);
  const mha_paged_cache_config pages = pages_for(c, config);
  const mha_status status =
      is_paged ? mha_paged_cache_create(&pages, cache.fresh()) : mha_cache_create(&config, cache.fresh());
  if (status != MHA_OK) throw Finding(std::string("a cache could not be made: ") + mha_last_error());
  ++tally.accepted;
  fill(c, cache, config);
  if (is_paged) share_pages(c, cache, config.batch_size);
  return cache;
}

void fuzz_cache(Choices& c, Tally& tally) {
  mha_cache_config config{c.between(0, 4), c.between(1, 2), c.between(0, 9),
                          c.between(1, 9), c.between(0, 9), any_dtype(c)};
  if (c.once_in(6)) config.capacity = c.between(200, 700);  // more bytes than one piece of a rotation
  if (c.once_in(4)) config.dtype = MHA_DTYPE_int8;
  Cache cache;
  if (c.once_in(4)) {
    const bool is_paged = c.once_in(3);
    Call call(is_paged ? "mha_paged_cache_create" : "mha_cache_create", c, tally);
    int dtype = config.dtype;
    std::int64_t sizes[] = {config.batch_size, config.num_kv_heads,   config.capacity,
                            config.head_dim,   config.value_head_dim, 64};
    for (std::int64_t& size : sizes) call.number(size);
    call.small(dtype);
    call.mutate();
    config = {sizes[0], sizes[1], sizes[2], sizes[3], sizes[4], dtype};
    const mha_paged_cache_config pages{sizes[2], sizes[5], sizes[0], sizes[1], sizes[3], sizes[4], dtype};
    const bool made = call.run([&](int) {
      return is_paged ? mha_paged_cache_create(&pages, cache.fresh()) : mha_cache_create(&config, cache.fresh());
    });
    if (!made || config.batch_size > 8 || config.capacity > 1000) return;  // of which most may not even be memory
  } else {
    cache = filled_cache(c, tally, config);
  }
  config = mha_cache_config_of(cache.handle);
  const bool is_paged = mha_paged_cache_page_size(cache.handle) > 0;
  for (std::ptrdiff_t operations = c.between(1, 5); operations-- > 0;) {
    if (c.once_in(4)) {
      fuzz_attention_over(c, tally, cache, config);
      continue;
    }
    if (c.once_in(8)) {
      fuzz_stored(c, tally, cache, config);
      continue;
    }
    Call call("mha_cache", c, tally);
    call.cache(cache.handle);
    std::int64_t count = c.between(0, 5);
    switch (const std::ptrdiff_t operation = c.below(10)) {
      case 0:
      case 1: {
        const bool appends = operation == 0;
        std::int64_t room = config.capacity;
        for (std::ptrdiff_t b = 0; b < config.batch_size && appends; ++b)
          room = std::min(room, config.capacity - mha_cache_lengths(cache.handle)[b]);
        const std::ptrdiff_t tokens = c.between(0, std::min<std::ptrdiff_t>(room + 1, 60));
        if (tokens > room && config.batch_size > 0) call.expect_refusal("more tokens than there is room for");
        if (is_paged) call.expect_refusal("perhaps more pages than are free");
        const mha_dtype dtype = given_to(config.dtype);
        Argument& key = call.tensor(dtype, {config.batch_size, config.num_kv_heads, tokens, config.head_dim});
        Argument& value = call.tensor(dtype, {config.batch_size, config.num_kv_heads, tokens, config.value_head_dim});
        const auto& new_lengths =
            call.pointer(c.once_in(2) ? call.integers(any_counts(c, config.batch_size, tokens)) : nullptr);
        call.mutate();
        call.run([&](int) {
          return (appends ? &mha_cache_append : &mha_cache_assign)(cache.handle, key.get(), value.get(), new_lengths);
        });
        break;
      }
      case 2: {
        const std::int64_t* const new_lengths =
            c.once_in(2) ? call.integers(any_counts(c, config.batch_size, count)) : nullptr;
        call.expect_refusal("perhaps more than there is room for");
        call.number(count);
        call.mutate();
        call.run([&](int) { return mha_cache_advance(cache.handle, count, new_lengths); });
        break;
      }
      case 3: {
        std::vector<std::int64_t> counts;
        for (std::ptrdiff_t b = 0; b < config.batch_size; ++b)
          counts.push_back(c.between(0, mha_cache_lengths(cache.handle)[b]));
        const auto& given = call.pointer(call.integers(counts));
        call.mutate();
        call.run([&](int) { return mha_cache_rollback(cache.handle, given); });
        break;
      }
      case 4:
        call.expect_refusal("perhaps more tokens than there are");
        call.number(count);
        call.mutate();
        call.run([&](int) { return mha_cache_rollback_by(cache.handle, count); });
        break;
      case 5: {
        const auto& index = call.pointer(
            call.integers(any_counts(c, config.batch_size, std::max<std::ptrdiff_t>(config.batch_size - 1, 0))));
        call.mutate();
        call.run([&](int) { return mha_cache_reorder(cache.handle, index); });
        break;
      }
      case 6: {
        std::int64_t sequence = c.between(0, 3), into = c.between(0, 3), length = c.between(-1, 70);
        for (std::int64_t* const number : {&sequence, &into, &length}) call.number(*number);
        call.expect_refusal("perhaps no sequences, or not so many tokens");
        call.mutate();
        call.run([&](int) {
          return is_paged && operations % 2 == 0 ? mha_paged_cache_release(cache.handle, sequence)
                                                 : mha_paged_cache_fork(cache.handle, sequence, into, length);
        });
        break;
      }
      case 7: {
        const bool of_keys = c.once_in(2);
        Argument& out =
            call.tensor(config.dtype,
                        {config.batch_size, config.num_kv_heads, mha_cache_longest(cache.handle, 0, nullptr),
                         of_keys ? config.head_dim : config.value_head_dim},
                        Role::output);
        call.mutate();
        call.run(
            [&](int) { return (of_keys ? &mha_cache_copy_keys : &mha_cache_copy_values)(cache.handle, out.get()); });
        break;
      }
      case 8:
        call.number(count);
        call.mutate();
        call.run([&](int) { return mha_cache_keep_last(cache.handle, count); });
        break;
      default:
        call.run([&](int) { return mha_cache_clear(cache.handle); });
    }
    const std::int64_t* const lengths = mha_cache_lengths(cache.handle);
    for (std::ptrdiff_t b = 0; b < config.batch_size; ++b)
      if (lengths[b] < 0 || lengths[b] > config.capacity) throw Finding("a cache holds more than its capacity");
  }
}

}  // namespace mha::fuzz
