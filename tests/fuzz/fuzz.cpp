#include "calls.hpp"

namespace mha::fuzz {

void fuzz(Choices& choices, Tally& tally) {
  // Those that read the most arguments come up more often.
  constexpr void (*kCalls[])(Choices&, Tally&) = {
      &fuzz_attention,  &fuzz_attention,    &fuzz_gradient,    &fuzz_varlen,      &fuzz_varlen,    &fuzz_weights,
      &fuzz_statistics, &fuzz_merge,        &fuzz_cache,       &fuzz_cache,       &fuzz_layer,     &fuzz_layer,
      &fuzz_norm,       &fuzz_feed_forward, &fuzz_transformer, &fuzz_transformer, &fuzz_positions, &fuzz_embedding,
      &fuzz_pooling,    &fuzz_runtime,      &fuzz_linear};
  kCalls[choices.below(std::ptrdiff_t(std::size(kCalls)))](choices, tally);
}

}  // namespace mha::fuzz
