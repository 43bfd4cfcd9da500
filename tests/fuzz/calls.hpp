// Calls of mha.h as a string of bytes chooses them: valid ones, of which one thing is then broken half of the time.
#pragma once

#include <utility>
#include <vector>

#include "call.hpp"

namespace mha::fuzz {

/// One of the functions of mha.h, or a few that belong together. @throws Finding
void fuzz(Choices& choices, Tally& tally);

// What fuzz() chooses from.
void fuzz_attention(Choices& choices, Tally& tally);
void fuzz_varlen(Choices& choices, Tally& tally);
void fuzz_weights(Choices& choices, Tally& tally);
void fuzz_statistics(Choices& choices, Tally& tally);
void fuzz_gradient(Choices& choices, Tally& tally);
void fuzz_merge(Choices& choices, Tally& tally);
void fuzz_cache(Choices& choices, Tally& tally);
void fuzz_layer(Choices& choices, Tally& tally);
void fuzz_norm(Choices& choices, Tally& tally);
void fuzz_linear(Choices& choices, Tally& tally);
void fuzz_feed_forward(Choices& choices, Tally& tally);
void fuzz_transformer(Choices& choices, Tally& tally);
void fuzz_positions(Choices& choices, Tally& tally);
void fuzz_embedding(Choices& choices, Tally& tally);
void fuzz_pooling(Choices& choices, Tally& tally);
void fuzz_runtime(Choices& choices, Tally& tally);

inline mha_dtype any_dtype(Choices& choices) {
  return choices.one_of({MHA_DTYPE_f32, MHA_DTYPE_f32, MHA_DTYPE_f64, MHA_DTYPE_f16, MHA_DTYPE_bf16});
}
inline mha_dtype accumulator_of(mha_dtype dtype) { return dtype == MHA_DTYPE_f64 ? MHA_DTYPE_f64 : MHA_DTYPE_f32; }

/// The score options of one call, whose scores are [B, H, Tq, Tk].
class ScoreOptions {
 public:
  struct Scores {
    std::ptrdiff_t batch, heads, queries, keys;
    const std::vector<std::int64_t>* key_counts = nullptr;  // of each sequence of a ragged batch, whose B is 1
    bool over_cache = false;                                // which has lengths and positions of its own
    bool is_turned = false;                                 // by a table that has no negative positions
  };
  ScoreOptions(Call& call, mha_dtype dtype, const Scores& scores);
  ScoreOptions(const ScoreOptions&) = delete;
  ScoreOptions& operator=(const ScoreOptions&) = delete;

  /// With `threads` threads; 0: as many as the options ask for.
  mha_attention_options at(int threads) const;

 private:
  mha_attention_options options_ = mha_default_options();
  const Argument *attn_mask_ = nullptr, *key_mask_ = nullptr, *block_mask_ = nullptr, *alibi_slopes_ = nullptr;
  const Argument *position_bias_ = nullptr, *sinks_ = nullptr;
  const std::int64_t *key_lengths_ = nullptr, *query_offsets_ = nullptr, *positions_ = nullptr;
};

/// Offsets of `size` sequences that have `most` rows each at most.
std::vector<std::int64_t> any_offsets(Choices& choices, std::ptrdiff_t size, std::ptrdiff_t most);
/// `count` numbers in [0, most].
std::vector<std::int64_t> any_counts(Choices& choices, std::ptrdiff_t count, std::ptrdiff_t most);

/// A handle that is destroyed with its scope; null, if it could not be made.
template <class Handle, void (*kDestroy)(Handle*)>
struct Owned {
  Handle* handle = nullptr;

  Owned() = default;
  Owned(Owned&& other) noexcept : handle(std::exchange(other.handle, nullptr)) {}
  Owned& operator=(Owned&& other) noexcept {
    std::swap(handle, other.handle);
    return *this;
  }
  ~Owned() { kDestroy(handle); }
  /// Takes a new one in place of the old one.
  Handle** fresh() {
    kDestroy(handle);
    handle = nullptr;
    return &handle;
  }
};
using Cache = Owned<mha_cache, &mha_cache_destroy>;
using Layer = Owned<mha_layer, &mha_layer_destroy>;
using Norm = Owned<mha_norm, &mha_norm_destroy>;
using Rotary = Owned<mha_rotary, &mha_rotary_destroy>;
using LinearLayer = Owned<mha_linear, &mha_linear_destroy>;
using FeedForwardLayer = Owned<mha_feed_forward, &mha_feed_forward_destroy>;
using Transformer = Owned<mha_transformer, &mha_transformer_destroy>;

/// A cache that fits, with some tokens in it.
Cache filled_cache(Choices& choices, Tally& tally, const mha_cache_config& config);
Norm some_norm(Choices& choices, Tally& tally, mha_dtype dtype, std::ptrdiff_t width, bool may_fail = false);
LinearLayer some_linear(Choices& choices, Tally& tally, mha_dtype dtype, std::ptrdiff_t out, std::ptrdiff_t in);
void copy_linear_weights(Choices& choices, Tally& tally, const mha_linear* layer);
FeedForwardLayer some_feed_forward(Choices& choices, Tally& tally, mha_dtype dtype, std::ptrdiff_t width,
                                   bool may_fail = false);
void copy_feed_forward_weights(Choices& choices, Tally& tally, const mha_feed_forward* layer);
/// A table for heads of `head_dim` features, at least 2, with more positions than any call has rows.
Rotary some_rotary(Choices& choices, Tally& tally, mha_dtype dtype, std::ptrdiff_t head_dim);
/// An attention layer of these sizes. @param config its zeros are left as they are
/// @param stands_alone it may fail, and may have norms of heads and rotary positions
Layer some_layer(Choices& choices, Tally& tally, mha_dtype dtype, const mha_layer_config& config,
                 bool stands_alone = false);

}  // namespace mha::fuzz
