// Norms of a layer of a transformer, of every kind and at every place: the layer is its parts in order, bit by bit.
#include <gtest/gtest.h>

#include <optional>
#include <string>

#include "arrays.hpp"
#include "transformer_layers.hpp"

namespace mha {
namespace {

using testing::decoder_layer;
using testing::encoder_layer;
using testing::encoder_of;
using testing::feed_forward;
using testing::kEmbed;
using testing::kMemory;
using testing::name_of;
using testing::norm;
using testing::rms_norm;
using testing::Rows;
using testing::with_threads;

void add_to(Rows& sum, const Rows& x) {
  for (std::size_t i = 0; i < sum.data().size(); ++i) sum.data()[i] += x.data()[i];
}

/// x becomes norm(x), if there is a norm.
void normalize(const std::optional<Norm>& own_norm, Rows& x) {
  if (own_norm) own_norm->forward(x.view(), x.view());
}

/// What a layer computes, out of its parts: the bits, in float32.
Rows parts_in_order(const TransformerLayer& layer, const Rows& x, const Rows& memory) {
  Rows y = x, part = x;
  const bool norm_first = layer.norm_placement == NormPlacement::before;
  const auto sublayer = [&](const std::optional<Norm>& own_norm, const std::optional<Norm>& output_norm, auto run) {
    Rows in = y;
    if (norm_first) normalize(own_norm, in);
    run(in.view());
    normalize(output_norm, part);
    add_to(y, part);
    if (!norm_first) normalize(own_norm, y);
  };
  const auto attend = [&](const TensorView& in) { layer.self_attention.forward(in, in, in, part.view()); };
  const auto feed_forward = [&](const TensorView& in) { layer.feed_forward->forward(in, part.view()); };
  if (layer.norm_placement == NormPlacement::parallel) {
    Rows in = x;
    normalize(layer.norm1, in);
    attend(in.view());
    normalize(layer.output_norm1, part);
    add_to(y, part);
    Rows second = layer.norm2 ? x : in;
    normalize(layer.norm2, second);
    feed_forward(second.view());
    normalize(layer.output_norm2, part);
    add_to(y, part);
    return y;
  }
  sublayer(layer.norm1, layer.output_norm1, attend);
  if (!layer.cross_attention) {
    sublayer(layer.norm2, layer.output_norm2, feed_forward);
    return y;
  }
  const auto attend_to_memory = [&](const TensorView& in) {
    layer.cross_attention->forward(in, memory.view(), memory.view(), part.view());
  };
  sublayer(layer.norm2, layer.output_norm2, attend_to_memory);
  sublayer(layer.norm3, layer.output_norm3, feed_forward);
  return y;
}

TEST(Transformer, ALayerIsItsPartsInOrderWhicheverNormsItHas) {
  const Rows x = Rows::random({2, 7, kEmbed}, 5), memory = Rows::random({2, 3, kMemory}, 6);
  const Norm kinds[] = {norm(kEmbed, 40), rms_norm(kEmbed, 41, false), rms_norm(kEmbed, 42, true)};
  for (const NormPlacement placement : {NormPlacement::after, NormPlacement::before, NormPlacement::parallel})
    for (const bool is_decoder : {false, true}) {
      if (is_decoder && placement == NormPlacement::parallel) continue;
      TransformerLayer layer = is_decoder ? decoder_layer(4, placement) : encoder_layer(4, placement);
      TransformerExtras extras;
      if (is_decoder) extras.memory = memory.view();
      std::optional<Norm>* const norms[] = {&layer.norm1,        &layer.output_norm1, &layer.norm2,
                                            &layer.output_norm2, &layer.norm3,        &layer.output_norm3};
      const int places = is_decoder ? 6 : 4;
      for (int chosen = 0; chosen < 1 << places; ++chosen) {
        SCOPED_TRACE(std::string(name_of(placement)) + ", norms " + std::to_string(chosen) + " of " +
                     std::to_string(1 << places));
        for (int n = 0; n < places; ++n) {
          norms[n]->reset();
          if (chosen >> n & 1) norms[n]->emplace(kinds[(n + chosen) % 3]);
        }
        const Rows expected = parts_in_order(layer, x, memory);
        for (const int threads : {1, 8}) {  // all steps of a block of rows together, and each step a phase
          Rows out = testing::nans<float>({2, 7, kEmbed}), in_place = x;
          encoder_of(&layer, 1).forward(x.view(), out.view(), with_threads(threads), extras);
          EXPECT_EQ(out.data(), expected.data()) << threads << " threads";
          encoder_of(&layer, 1).forward(in_place.view(), in_place.view(), with_threads(threads), extras);
          EXPECT_EQ(in_place.data(), expected.data()) << threads << " threads, in place";
        }
      }
    }
}

TEST(Transformer, AParallelLayerReadsNoMemory) {
  const TransformerLayer layer = decoder_layer(4, NormPlacement::parallel);
  testing::expect_words(testing::message_of<std::invalid_argument>([&] { encoder_of(&layer, 1); }),
                        {"layer 0", "parallel", "cross_attention"});
}

TEST(Transformer, TheFinalNormMayBeOfAnyKind) {
  const TransformerLayer layer = encoder_layer(4);
  const Rows x = Rows::random({2, 7, kEmbed}, 5);
  const Norm last = rms_norm(kEmbed, 3, true);
  Rows out = testing::nans<float>({2, 7, kEmbed}), expected = parts_in_order(layer, x, x);
  encoder_of(&layer, 1, &last).forward(x.view(), out.view());
  normalize(last, expected);
  EXPECT_EQ(out.data(), expected.data());
}

}  // namespace
}  // namespace mha
