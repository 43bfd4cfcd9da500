// Layers of a transformer with random weights, and what tests call them with.
#pragma once

#include "arrays.hpp"
#include "mha/transformer.hpp"

namespace mha::testing {

using Rows = Array<float>;

inline MultiHeadAttention attention(Index embed_dim, Index heads, Index memory_dim, unsigned seed) {
  const Rows in = Rows::random({embed_dim, embed_dim}, seed), out = Rows::random({embed_dim, embed_dim}, seed + 1);
  const Rows key = Rows::random({embed_dim, memory_dim}, seed + 2), bias = Rows::random({embed_dim}, seed + 3);
  MultiHeadAttentionConfig config;
  config.embed_dim = embed_dim;
  config.num_heads = heads;
  config.kdim = config.vdim = memory_dim;
  return {config,
          {{in.view(), bias.view()}, {key.view(), bias.view()}, {key.view(), bias.view()}, {out.view(), bias.view()}}};
}

inline FeedForward feed_forward(Index embed_dim, Index hidden, unsigned seed,
                                Activation activation = Activation::gelu) {
  const Rows up = Rows::random({hidden, embed_dim}, seed), down = Rows::random({embed_dim, hidden}, seed + 1);
  const Rows bias1 = Rows::random({hidden}, seed + 2), bias2 = Rows::random({embed_dim}, seed + 3);
  return {{{up.view(), bias1.view()}, {down.view(), bias2.view()}}, activation};
}

inline LayerNorm norm(Index embed_dim, unsigned seed) {
  const Rows weight = Rows::random({embed_dim}, seed), bias = Rows::random({embed_dim}, seed + 1);
  return LayerNorm(weight.view(), bias.view());
}

inline RMSNorm rms_norm(Index embed_dim, unsigned seed, bool unit_offset) {
  const Rows weight = Rows::random({embed_dim}, seed);
  return RMSNorm(weight.view(), 1e-6, unit_offset);
}

inline constexpr Index kEmbed = 40, kHeads = 4, kHidden = 72, kMemory = 24;

inline constexpr NormPlacement kPlacements[] = {NormPlacement::after, NormPlacement::before};

inline const char* name_of(NormPlacement placement) {
  constexpr const char* kNames[] = {"norms last", "norms first", "parallel"};
  return kNames[static_cast<int>(placement)];
}

inline TransformerLayer encoder_layer(unsigned seed, NormPlacement placement = NormPlacement::after,
                                      Index embed_dim = kEmbed) {
  return {attention(embed_dim, kHeads, embed_dim, seed),
          {},
          feed_forward(embed_dim, kHidden, seed + 10),
          norm(embed_dim, seed + 20),
          norm(embed_dim, seed + 30),
          {},
          placement};
}

inline TransformerLayer decoder_layer(unsigned seed, NormPlacement placement = NormPlacement::after) {
  return {attention(kEmbed, kHeads, kEmbed, seed),
          attention(kEmbed, kHeads, kMemory, seed + 5),
          feed_forward(kEmbed, kHidden, seed + 10),
          norm(kEmbed, seed + 20),
          norm(kEmbed, seed + 30),
          norm(kEmbed, seed + 40),
          placement};
}

inline TransformerStack encoder_of(const TransformerLayer* layers, Index count, const Norm* last = nullptr) {
  return {layers, count, last, "Encoder"};
}

inline TransformerStack encoder(NormPlacement placement = NormPlacement::after) {
  const TransformerLayer layers[] = {encoder_layer(1, placement), encoder_layer(2, placement)};
  const LayerNorm last = norm(kEmbed, 3);
  return encoder_of(layers, 2, &last);
}

inline AttentionOptions with_threads(int threads) {
  AttentionOptions options;
  options.num_threads = threads;
  return options;
}

inline KVCache cache_of(const MultiHeadAttention& layer, Index batch, Index capacity) {
  const MultiHeadAttentionConfig& sizes = layer.config();
  return KVCache({batch, sizes.num_kv_heads, capacity, sizes.head_dim, sizes.value_head_dim, layer.dtype()});
}

}  // namespace mha::testing
