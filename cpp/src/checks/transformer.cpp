#include "checks/transformer.hpp"

#include <algorithm>
#include <cmath>

#include "checks/rules.hpp"
#include "checks/weights.hpp"
#include "views/describe.hpp"
#include "views/leading_axes.hpp"

namespace mha {
namespace {

bool is_same_view(const TensorView& a, const TensorView& b) {
  if (a.data != b.data || a.rank != b.rank) return false;
  for (int axis = 0; axis < a.rank; ++axis)
    if (a.extents[axis] != b.extents[axis] || (a.extents[axis] > 1 && a.strides[axis] != b.strides[axis])) return false;
  return true;
}

/// `out` has the shape of x, and is either x itself or overlaps it nowhere.
void check_rows_output(const char* f, const TensorView& x, const MutableTensorView& out) {
  bool has_shape_of_x = out.rank == x.rank;
  for (int axis = 0; axis < x.rank; ++axis) has_shape_of_x = has_shape_of_x && out.extents[axis] == x.extents[axis];
  if (!has_shape_of_x) fail(f, "out must have the shape of x", {{"out", out}, {"x", x}});
  if (is_same_view(x, out))
    check_output(f, "out", out, {});
  else
    check_output(f, "out", out, {{"x", x}});
}

void check_features(const char* f, const char* name, const TensorView& view, Index features) {
  if (view.extents[view.rank - 1] != features)
    fail(f, std::string(name) + " must have " + std::to_string(features) + " features", {{name, view}});
}

/// Each layer has a cache of its own, and all hold the same tokens.
void check_caches(const char* f, KVCache* const* caches, Index layers) {
  const auto wrong = [&](const std::string& rule) { throw std::invalid_argument(std::string(f) + ": " + rule); };
  for (Index i = 1; i < layers; ++i) {
    for (Index j = 0; j < i; ++j)
      if (caches[i] == caches[j])
        wrong("each layer must have a cache of its own; layers " + std::to_string(j) + " and " + std::to_string(i) +
              " share one");
    const Index batch = caches[0]->config().batch_size;
    if (caches[i]->config().batch_size != batch ||
        !std::equal(caches[0]->lengths(), caches[0]->lengths() + batch, caches[i]->lengths()))
      wrong("the caches of all layers must hold the same tokens; those of layer " + std::to_string(i) +
            " differ in number from those of layer 0");
  }
}

}  // namespace

void validate_norm(const TensorView& weight, const TensorView& bias, double eps) {
  const char* f = "LayerNorm";
  const Named views = {{"weight", weight}, {"bias", bias}};
  check_dtypes(f, weight.dtype, views);
  check_rank(f, "weight", weight, 1, 1, views);
  if (weight.extents[0] < 1) fail(f, "weight must have at least 1 element", views);
  if (bias && !has_shape(bias, {weight.extents[0]})) fail(f, "bias must have the shape of weight", views);
  if (!(eps >= 0) || std::isinf(eps))
    throw std::invalid_argument(std::string(f) + ": eps must be a finite number of at least 0; got " +
                                std::to_string(eps));
}

void validate_feed_forward(const FeedForwardWeights& w, WeightFormat format) {
  const char* f = "FeedForward";
  const Named views = {{"weight1", w.weight1}, {"weight2", w.weight2}, {"bias1", w.bias1}, {"bias2", w.bias2}};
  check_weights(f, format, views, {{"scale1", w.scale1}, {"scale2", w.scale2}});
  check_rank(f, "weight1", w.weight1, 2, 2, views);
  check_rank(f, "weight2", w.weight2, 2, 2, views);
  const Index features = w.weight1.extents[1], hidden = w.weight1.extents[0];
  if (features < 1 || hidden < 1) fail(f, "weight1 must not be empty", views);
  if (!has_shape(w.weight2, {features, hidden})) fail(f, "weight2 must have the shape of weight1 transposed", views);
  if (w.bias1 && !has_shape(w.bias1, {hidden})) fail(f, "bias1 must have one entry for each row of weight1", views);
  if (w.bias2 && !has_shape(w.bias2, {features})) fail(f, "bias2 must have one entry for each row of weight2", views);
}

void validate_rows(const char* f, DType dtype, Index features, const TensorView& x, const MutableTensorView& out) {
  const Named views = {{"x", x}, {"out", out}};
  check_rank(f, "x", x, 1, kMaxRank, views);
  check_dtypes(f, dtype, views);
  check_features(f, "x", x, features);
  check_rows_output(f, x, out);
}

StackSizes validate_block(const char* f, Index layer, const Block& block, const StackSizes* first) {
  const MultiHeadAttentionConfig &self = block.self_attention->config,
                                 *cross = block.cross_attention ? &block.cross_attention->config : nullptr;
  StackSizes sizes = {block.self_attention->dtype(), self.embed_dim, cross ? cross->kdim : 0};
  const std::string of_layer = std::string(f) + ": layer " + std::to_string(layer) + ": ";
  const auto check = [&](const char* name, Index size, Index expected) {
    if (size != expected)
      throw std::invalid_argument(of_layer + name + " must be " + std::to_string(expected) + "; got " +
                                  std::to_string(size));
  };
  const auto check_dtype = [&](const char* name, DType dtype, DType expected) {
    if (dtype != expected)
      throw DTypeError(of_layer + name + " must be " + name_of(expected) + "; got " + name_of(dtype));
  };
  if (first) {
    check("embed_dim", sizes.embed_dim, first->embed_dim);
    check("kdim of cross_attention", sizes.memory_dim, first->memory_dim);
    check_dtype("dtype", sizes.dtype, first->dtype);
  }
  check("kdim of self_attention", self.kdim, sizes.embed_dim);
  check("vdim of self_attention", self.vdim, sizes.embed_dim);
  check("out_dim of self_attention", self.out_dim, sizes.embed_dim);
  if (cross) {
    check("embed_dim of cross_attention", cross->embed_dim, sizes.embed_dim);
    check("vdim of cross_attention", cross->vdim, sizes.memory_dim);
    check("out_dim of cross_attention", cross->out_dim, sizes.embed_dim);
    check_dtype("dtype of cross_attention", block.cross_attention->dtype(), sizes.dtype);
  }
  check("embed_dim of feed_forward", block.feed_forward->up.in_features(), sizes.embed_dim);
  check_dtype("dtype of feed_forward", block.feed_forward->up.dtype(), sizes.dtype);
  for (int i = 0; i < (cross ? 3 : 2); ++i) {
    const std::string norm = "norm" + std::to_string(i + 1);
    check(("embed_dim of " + norm).c_str(), block.norms[i]->embed_dim, sizes.embed_dim);
    check_dtype(("dtype of " + norm).c_str(), block.norms[i]->dtype, sizes.dtype);
  }
  return sizes;
}

void validate_final_norm(const char* f, const NormWeights& norm, const StackSizes& sizes) {
  if (norm.embed_dim != sizes.embed_dim || norm.dtype != sizes.dtype)
    throw std::invalid_argument(std::string(f) + ": final_norm must be of " + std::to_string(sizes.embed_dim) +
                                " features in " + name_of(sizes.dtype) + "; got " + std::to_string(norm.embed_dim) +
                                " in " + name_of(norm.dtype));
}

StackArguments validate(const StackSizes& sizes, Index layers, StackArguments a) {
  const char* f = a.function;
  const Named views = {{"x", a.x}, {"memory", a.memory}, {"out", a.out}};
  if (a.ragged)
    check_rank(f, "x", a.x, 2, 2, views);
  else
    check_rank(f, "x", a.x, 2, 3, views);
  check_dtypes(f, sizes.dtype, views);
  check_features(f, "x", a.x, sizes.embed_dim);
  check_rows_output(f, a.x, a.out);
  check_output(f, "out", a.out,
               {{"memory", a.memory},
                {"attn_mask", a.options.attn_mask},
                {"key_mask", a.options.key_mask},
                {"alibi_slopes", a.options.alibi_slopes},
                {"sinks", a.options.sinks},
                {"attn_mask of memory", a.memory_options.attn_mask},
                {"key_mask of memory", a.memory_options.key_mask}});
  if (sizes.memory_dim) {
    if (bool(a.memory) == bool(a.memory_caches))
      throw std::invalid_argument(std::string(f) + ": either memory or memory_caches must be given");
    if (a.memory) {
      check_rank(f, "memory", a.memory, 2, 3, views);
      check_features(f, "memory", a.memory, sizes.memory_dim);
    }
  }
  if (a.caches) check_caches(f, a.caches, layers);
  if (a.new_lengths && !a.caches) throw std::invalid_argument(std::string(f) + ": new_lengths needs caches");
  add_leading_axes(a.x, 3);
  add_leading_axes(a.out, 3);
  add_leading_axes(a.memory, 3);
  if (a.memory && a.memory.extents[0] != a.x.extents[0]) fail(f, "memory must have the batch size of x", views);
  return a;
}

LayerArguments self_arguments(const StackArguments& a, Index layer, const Block& block) {
  LayerArguments self{a.x, a.x, a.x, a.out, {}, a.options};
  self.block = a.function;
  self.ragged = a.ragged;
  if (a.weights) self.weights = a.weights[layer];
  if (a.caches) {
    self.cache = self.grows = a.caches[layer];
    self.new_lengths = a.new_lengths;
  }
  return validate(block.self_attention->config, block.self_attention->dtype(), self);
}

LayerArguments cross_arguments(const StackArguments& a, Index layer, const Block& block) {
  LayerArguments cross{a.x, a.memory, a.memory, a.out, {}, a.memory_options};
  cross.block = "Decoder, attention to memory";
  if (a.memory_caches) cross.cache = a.memory_caches[layer];
  return validate(block.cross_attention->config, block.cross_attention->dtype(), cross);
}

}  // namespace mha
