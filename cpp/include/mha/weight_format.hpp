// How a layer keeps the weights of its projections.
#pragma once

namespace mha {

/// What goes in and comes out, biases, and all between two projections are of the dtype of the layer in every format.
enum class WeightFormat : unsigned char {
  plain,   // in the dtype of the layer
  bf16,    // rounded to bfloat16, to nearest even; of layers in f32
  int8,    // an integer times a scale of its output feature; of layers in f32, whose rows are quantized as they come
  bf16x3,  // as they are, of layers in f32: multiplied in three parts of bfloat16 each by matrix units, where there are
           // any, else as `plain`
};
constexpr int kNumWeightFormats = 4;

}  // namespace mha
