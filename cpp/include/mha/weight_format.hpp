// How a layer stores the weights of its projections: expanded from weight_formats.def, which describes each format.
#pragma once

namespace mha {

/// In every format inputs, outputs, biases, and all steps between two projections have the dtype of the layer.
enum class WeightFormat : unsigned char {
#define MHA_WEIGHT_FORMAT(name, constant, spelling, features, group, scales, block, bytes) name,
#include "mha/weight_formats.def"
#undef MHA_WEIGHT_FORMAT
};

/// The number of formats.
constexpr int kNumWeightFormats = 0
#define MHA_WEIGHT_FORMAT(name, constant, spelling, features, group, scales, block, bytes) +1
#include "mha/weight_formats.def"
#undef MHA_WEIGHT_FORMAT
    ;

/// The name of a format in Python and in messages; empty for `plain`.
constexpr const char* name_of(WeightFormat format) {
  constexpr const char* kNames[] = {
#define MHA_WEIGHT_FORMAT(name, constant, spelling, features, group, scales, block, bytes) spelling,
#include "mha/weight_formats.def"
#undef MHA_WEIGHT_FORMAT
  };
  return kNames[static_cast<int>(format)];
}

/// Input features whose weights share a word; in a layer of 16 bits `plain` has more.
constexpr int features_of(WeightFormat format) {
  constexpr int kFeatures[] = {
#define MHA_WEIGHT_FORMAT(name, constant, spelling, features, group, scales, block, bytes) features,
#include "mha/weight_formats.def"
#undef MHA_WEIGHT_FORMAT
  };
  return kFeatures[static_cast<int>(format)];
}

/// Input features whose weights share a multiplier; 0 where weights have none.
constexpr int group_features(WeightFormat format) {
  constexpr int kAll[] = {
#define MHA_WEIGHT_FORMAT(name, constant, spelling, features, group, scales, block, bytes) group,
#include "mha/weight_formats.def"
#undef MHA_WEIGHT_FORMAT
  };
  return kAll[static_cast<int>(format)];
}

/// Whether no layer accepts a format any more.
constexpr bool is_removed(WeightFormat format) { return features_of(format) == 0; }

/// Whether weights are integers of int8, with a scale for each output feature.
constexpr bool has_scales(WeightFormat format) {
  constexpr bool kHasScales[] = {
#define MHA_WEIGHT_FORMAT(name, constant, spelling, features, group, scales, block, bytes) scales,
#include "mha/weight_formats.def"
#undef MHA_WEIGHT_FORMAT
  };
  return kHasScales[static_cast<int>(format)];
}

/// The weights of a block; 0 where weights do not lie in blocks.
constexpr int block_features(WeightFormat format) {
  constexpr int kAll[] = {
#define MHA_WEIGHT_FORMAT(name, constant, spelling, features, group, scales, block, bytes) block,
#include "mha/weight_formats.def"
#undef MHA_WEIGHT_FORMAT
  };
  return kAll[static_cast<int>(format)];
}

/// The bytes of a block in a file, likewise.
constexpr int block_bytes(WeightFormat format) {
  constexpr int kAll[] = {
#define MHA_WEIGHT_FORMAT(name, constant, spelling, features, group, scales, block, bytes) bytes,
#include "mha/weight_formats.def"
#undef MHA_WEIGHT_FORMAT
  };
  return kAll[static_cast<int>(format)];
}

constexpr bool has_blocks(WeightFormat format) { return block_features(format) > 0; }

/// Bits in memory of a weight of a layer in f32, with its share of the numbers of its group or block.
constexpr double bits_of(WeightFormat format) {
  if (has_blocks(format)) return 8.0 * block_bytes(format) / block_features(format);
  const double bits = 32.0 / features_of(format);
  return group_features(format) > 0 ? bits + bits / group_features(format) : bits;
}

}  // namespace mha
