#include "calls.hpp"

namespace mha::fuzz {
namespace {

/// The length of sequence b as a cache of `config` holds it, its tokens finite numbers.
void fill(Choices& c, const Cache& cache, const mha_cache_config& config) {
  std::mt19937 contents = c.contents();
  for (const mha_tensor& all : {mha_cache_keys(cache.handle), mha_cache_values(cache.handle)})
    for_each_element(all, [&](std::ptrdiff_t offset) {
      write_element(static_cast<std::byte*>(all.data) + offset, all.dtype, contents());
    });
  const std::vector<std::int64_t> lengths = any_counts(c, config.batch_size, config.capacity);
  if (mha_cache_advance(cache.handle, config.capacity, lengths.data()) != MHA_OK)
    throw Finding(std::string("mha_cache_advance: ") + mha_last_error());
}

}  // namespace

Cache filled_cache(Choices& c, Tally& tally, const mha_cache_config& config) {
  Cache cache;
  ++tally.calls;
  if (mha_cache_create(&config, cache.fresh()) != MHA_OK)
    throw Finding(std::string("mha_cache_create: ") + mha_last_error());
  ++tally.accepted;
  fill(c, cache, config);
  return cache;
}

void fuzz_cache(Choices& c, Tally& tally) {
  mha_cache_config config{c.between(0, 4), c.between(1, 2), c.between(0, 9),
                          c.between(1, 9), c.between(0, 9), any_dtype(c)};
  if (c.once_in(6)) config.capacity = c.between(200, 700);  // more bytes than one piece of a rotation
  Cache cache;
  if (c.once_in(4)) {
    Call call("mha_cache_create", c, tally);
    int dtype = config.dtype;
    std::int64_t sizes[] = {config.batch_size, config.num_kv_heads, config.capacity, config.head_dim,
                            config.value_head_dim};
    for (std::int64_t& size : sizes) call.number(size);
    call.small(dtype);
    call.mutate();
    config = {sizes[0], sizes[1], sizes[2], sizes[3], sizes[4], dtype};
    const bool made = call.run([&](int) { return mha_cache_create(&config, cache.fresh()); });
    if (!made || config.batch_size > 8 || config.capacity > 1000) return;  // of which most may not even be memory
  } else {
    cache = filled_cache(c, tally, config);
  }
  config = mha_cache_config_of(cache.handle);
  for (std::ptrdiff_t operations = c.between(1, 5); operations-- > 0;) {
    Call call("mha_cache", c, tally);
    call.cache(cache.handle);
    std::int64_t count = c.between(0, 5);
    switch (const std::ptrdiff_t operation = c.below(8)) {
      case 0:
      case 1: {
        const bool appends = operation == 0;
        std::int64_t room = config.capacity;
        for (std::ptrdiff_t b = 0; b < config.batch_size && appends; ++b)
          room = std::min(room, config.capacity - mha_cache_lengths(cache.handle)[b]);
        const std::ptrdiff_t tokens = c.between(0, std::min<std::ptrdiff_t>(room + 1, 60));
        if (tokens > room && config.batch_size > 0) call.expect_refusal("more tokens than there is room for");
        Argument& key = call.tensor(config.dtype, {config.batch_size, config.num_kv_heads, tokens, config.head_dim});
        Argument& value =
            call.tensor(config.dtype, {config.batch_size, config.num_kv_heads, tokens, config.value_head_dim});
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
      case 6:
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
