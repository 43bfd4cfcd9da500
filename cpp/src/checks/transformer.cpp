#include "checks/transformer.hpp"

#include <algorithm>
#include <cmath>
#include <utility>

#include "checks/rotary.hpp"
#include "checks/rules.hpp"
#include "views/describe.hpp"
#include "views/leading_axes.hpp"

namespace mha {
namespace {

void check_features(const char* f, const char* name, const TensorView& view, Index features) {
  if (view.extents[view.rank - 1] != features)
    fail(f, std::string(name) + " must have " + std::to_string(features) + " features", {{name, view}});
}

void check_row_arguments(const char* f, DType dtype, Index features, const TensorView& x,
                         const MutableTensorView& out) {
  const Named views = {{"x", x}, {"out", out}};
  check_rank(f, "x", x, 1, kMaxRank, views);
  check_dtypes(f, dtype, views);
  check_features(f, "x", x, features);
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

/// There is one memory, or caches of it, if the layers read one, and else none.
void check_memory(const char* f, Index memory_dim, const TransformerExtras& extras, bool is_ragged, Named views) {
  const auto wrong = [&](const char* rule) { throw std::invalid_argument(std::string(f) + ": " + rule); };
  const bool has_memory = bool(extras.memory), has_caches = extras.memory_caches != nullptr;
  if (memory_dim == 0 && (has_memory || has_caches)) wrong("no layer has a cross_attention that could read a memory");
  if (memory_dim > 0 && is_ragged && !has_caches)
    wrong("layers with a cross_attention take a ragged batch only with memory_caches");
  if (memory_dim > 0 && has_memory == has_caches) wrong("either memory or memory_caches must be given");
  if (!has_memory) return;
  check_rank(f, "memory", extras.memory, 2, 3, views);
  check_features(f, "memory", extras.memory, memory_dim);
}

}  // namespace

void validate_rows(const char* f, DType dtype, Index features, const TensorView& x, const MutableTensorView& out) {
  check_row_arguments(f, dtype, features, x, out);
  check_rows_output(f, x, out);
}

void validate_linear_rows(const char* f, DType dtype, Index in_features, Index out_features, const TensorView& x,
                          const MutableTensorView& out) {
  check_row_arguments(f, dtype, in_features, x, out);
  bool has_axes_of_x = out.rank == x.rank && out.extents[out.rank - 1] == out_features;
  for (int axis = 0; axis < x.rank - 1; ++axis) has_axes_of_x = has_axes_of_x && out.extents[axis] == x.extents[axis];
  if (!has_axes_of_x)
    fail(f, "out must have " + std::to_string(out_features) + " features, and otherwise the shape of x",
         {{"out", out}, {"x", x}});
  check_output(f, "out", out, {{"x", x}});
}

void validate_experts(const PackedExperts& experts, const TensorView& correction) {
  constexpr char f[] = "Experts";
  const auto wrong = [&](const std::string& rule) { throw std::invalid_argument(std::string(f) + ": " + rule); };
  const auto check = [&](const std::string& name, Index size, Index expected) {
    if (size != expected) wrong(name + " must be " + std::to_string(expected) + "; got " + std::to_string(size));
  };
  const auto check_dtype = [&](const std::string& name, DType dtype) {
    if (dtype != experts.dtype())
      throw DTypeError(std::string(f) + ": dtype of " + name + " must be " + name_of(experts.dtype()) +
                       ", as of router; got " + name_of(dtype));
  };
  const Index count = experts.num_experts(), width = experts.embed_dim(), used = experts.config.experts_per_token;
  if (count < 1) wrong("there must be at least 1 expert");
  check("out_features of router", experts.router->segment_columns(), count);
  if (used < 1 || used > count)
    wrong("experts_per_token must be from 1 to " + std::to_string(count) + "; got " + std::to_string(used));
  const double scale = experts.config.scale;
  if (!(scale > 0) || std::isinf(scale)) wrong("scale must be a finite number above 0; got " + text_of(scale));
  const auto gate_format = [](const PackedFeedForward& of) { return of.gate ? of.gate->format() : of.up.format(); };
  for (Index i = 0; i < count; ++i) {
    const PackedFeedForward &first = *experts.experts[0], &one = *experts.experts[static_cast<std::size_t>(i)];
    const std::string name = "expert " + std::to_string(i);
    check("embed_dim of " + name, one.up.in_features(), width);
    check("feedforward_dim of " + name, one.down.in_features(), first.down.in_features());
    check_dtype(name, one.up.dtype());
    if (one.up.format() != first.up.format() || one.down.format() != first.down.format() ||
        gate_format(one) != gate_format(first))
      wrong("all experts must have the weight format of the first; " + name + " has another");
  }
  if (experts.shared) {
    check("embed_dim of shared", experts.shared->up.in_features(), width);
    check_dtype("shared", experts.shared->up.dtype());
  }
  if (experts.shared_gate) {
    if (!experts.shared) wrong("shared_gate must not be given without shared");
    check("in_features of shared_gate", experts.shared_gate->in_features(), width);
    check("out_features of shared_gate", experts.shared_gate->segment_columns(), 1);
    check_dtype("shared_gate", experts.shared_gate->dtype());
    if (experts.shared_gate->format() != experts.router->format())
      wrong("shared_gate must have the weight format of router");
  }
  if (!correction) return;
  if (!experts.config.is_sigmoid) wrong("correction must not be given without is_sigmoid");
  check_dtypes(f, DType::f32, {{"correction", correction}});
  check_tensor(f, "correction", correction);
  if (!has_shape(correction, {count}))
    fail(f, "correction must have one entry for each expert", {{"correction", correction}});
}

void validate_add_and_normalize(const Norm* norm, const TensorView& x, const TensorView& residual,
                                const MutableTensorView& sum, const MutableTensorView& out) {
  constexpr char f[] = "add_and_normalize";
  if (!x || !residual || !sum || bool(out) != (norm != nullptr))
    throw std::invalid_argument(std::string(f) + ": x, residual and sum must be given, and out with a norm alone");
  const Named views = {{"x", x}, {"residual", residual}, {"sum", sum}, {"out", out}};
  check_dtypes(f, norm ? norm->dtype() : x.dtype, views);
  check_rank(f, "x", x, 1, kMaxRank, views);
  if (norm) check_features(f, "x", x, norm->embed_dim());
  for (const auto& [name, view] : views) {
    if (!view) continue;
    check_tensor(f, name, view);
    bool fits = view.rank == x.rank;
    Index stride = 1;
    for (int axis = x.rank - 1; fits && axis >= 0; --axis) {
      fits = view.extents[axis] == x.extents[axis] && (view.extents[axis] == 1 || view.strides[axis] == stride);
      stride *= view.extents[axis];
    }
    if (!fits) fail(f, std::string(name) + " must have the shape of x, and dense rows", views);
  }
  const bool is_x = sum.data == x.data, is_residual = sum.data == residual.data;
  if (!is_x) check_output(f, "sum", sum, {{"x", x}});
  if (!is_residual) check_output(f, "sum", sum, {{"residual", residual}});
  if (out) check_output(f, "out", out, {{"x", x}, {"residual", residual}, {"sum", sum}});
}

StackSizes validate_layer(const char* f, Index i, const PackedTransformerLayer& layer, const StackSizes* before) {
  const MultiHeadAttentionConfig &self = layer.self_attention->config,
                                 *cross = layer.cross_attention ? &layer.cross_attention->config : nullptr;
  StackSizes sizes = {layer.self_attention->dtype(), self.embed_dim, cross ? cross->kdim : 0,
                      layer.self_attention->rotary() || (before && before->has_rotary)};
  const auto of_layer = [&] { return std::string(f) + ": layer " + std::to_string(i) + ": "; };
  const auto check = [&](const char* name, Index size, Index expected) {
    if (size != expected)
      throw std::invalid_argument(of_layer() + name + " must be " + std::to_string(expected) + "; got " +
                                  std::to_string(size));
  };
  const auto check_dtype = [&](const char* name, DType dtype, DType expected) {
    if (dtype != expected)
      throw DTypeError(of_layer() + name + " must be " + name_of(expected) + "; got " + name_of(dtype));
  };
  if (before) {
    check("embed_dim", sizes.embed_dim, before->embed_dim);
    check("kdim of cross_attention", sizes.memory_dim, before->memory_dim);
    check_dtype("dtype", sizes.dtype, before->dtype);
  }
  check("kdim of self_attention", self.kdim, sizes.embed_dim);
  check("vdim of self_attention", self.vdim, sizes.embed_dim);
  check("out_dim of self_attention", self.out_dim, sizes.embed_dim);
  if (cross && layer.is_parallel())
    throw std::invalid_argument(of_layer() + "a parallel layer must have no cross_attention");
  if (cross) {
    check("embed_dim of cross_attention", cross->embed_dim, sizes.embed_dim);
    check("vdim of cross_attention", cross->vdim, sizes.memory_dim);
    check("out_dim of cross_attention", cross->out_dim, sizes.embed_dim);
    check_dtype("dtype of cross_attention", layer.cross_attention->dtype(), sizes.dtype);
    if (layer.cross_attention->rotary())
      throw std::invalid_argument(of_layer() + "cross_attention must have no rotary: x has no place in the memory");
  }
  if (bool(layer.feed_forward) == bool(layer.experts))
    throw std::invalid_argument(of_layer() + "there must be either a feed_forward or experts");
  if (layer.experts) {
    check("embed_dim of experts", layer.experts->embed_dim(), sizes.embed_dim);
    check_dtype("dtype of experts", layer.experts->dtype(), sizes.dtype);
  } else {
    check("embed_dim of feed_forward", layer.feed_forward->up.in_features(), sizes.embed_dim);
    check_dtype("dtype of feed_forward", layer.feed_forward->up.dtype(), sizes.dtype);
  }
  for (int n = 0; n < kMostSublayers; ++n)
    for (const auto& [kind, norm] :
         {std::pair{"norm", layer.norms[n]}, std::pair{"output_norm", layer.output_norms[n]}}) {
      if (!norm) continue;
      const std::string name = kind + std::to_string(n + 1);
      if (n >= layer.num_sublayers())
        throw std::invalid_argument(of_layer() + name + " must not be there without a cross_attention");
      check(("embed_dim of " + name).c_str(), norm->embed_dim, sizes.embed_dim);
      check_dtype(("dtype of " + name).c_str(), norm->dtype, sizes.dtype);
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
  TransformerExtras& extras = a.extras;
  const Named views = {{"x", a.x}, {"memory", extras.memory}, {"out", a.out}};
  for (Index i = 0; !sizes.has_rotary && i < (extras.layer_options ? layers : 1); ++i)
    refuse_positions(f, a.options_of(i));
  if (a.ragged)
    check_rank(f, "x", a.x, 2, 2, views);
  else
    check_rank(f, "x", a.x, 2, 3, views);
  check_dtypes(f, sizes.dtype, views);
  check_features(f, "x", a.x, sizes.embed_dim);
  check_rows_output(f, a.x, a.out);
  const auto check_apart = [&](Named inputs) {
    for (const auto& [name, view] : inputs) check_tensor(f, name, view);
    check_output(f, "out", a.out, inputs);
  };
  const AttentionOptions& of_memory = extras.memory_options;
  check_apart({{"memory", extras.memory},
               {kNamesOfMemory.attn_mask, of_memory.attn_mask},
               {kNamesOfMemory.key_mask, of_memory.key_mask},
               {kNamesOfMemory.block_mask, of_memory.block_mask},
               {"alibi_slopes of memory", of_memory.alibi_slopes},
               {"position_bias of memory", of_memory.position_bias},
               {"sinks of memory", of_memory.sinks}});
  for (Index i = 0; i < (extras.layer_options ? layers : 1); ++i) {
    const AttentionOptions& options = a.options_of(i);
    check_apart({{"attn_mask", options.attn_mask},
                 {"key_mask", options.key_mask},
                 {"block_mask", options.block_mask},
                 {"alibi_slopes", options.alibi_slopes},
                 {"position_bias", options.position_bias},
                 {"sinks", options.sinks}});
  }
  check_memory(f, sizes.memory_dim, extras, a.ragged, views);
  const auto wrong = [&](const char* rule) { throw std::invalid_argument(std::string(f) + ": " + rule); };
  if (extras.caches) check_caches(f, extras.caches, layers);
  if (extras.new_lengths && !extras.caches) wrong("new_lengths needs caches");
  if (extras.sequences && !(extras.caches && a.ragged)) wrong("sequences needs caches and cu_seqlens");
  if (extras.memory_sequences && !(extras.memory_caches && a.ragged))
    wrong("memory_sequences needs memory_caches and cu_seqlens");
  if (a.ragged && extras.new_lengths) wrong("new_lengths must not be given with cu_seqlens, which says how many rows");
  if (a.ragged && extras.weights) wrong("weights must not be wanted with cu_seqlens: they have no ragged form");
  add_leading_axes(a.x, 3);
  add_leading_axes(a.out, 3);
  add_leading_axes(extras.memory, 3);
  if (extras.memory && extras.memory.extents[0] != a.x.extents[0])
    fail(f, "memory must have the batch size of x", views);
  return a;
}

LayerArguments self_arguments(const StackArguments& a, Index i, const PackedTransformerLayer& layer) {
  LayerArguments self{a.x, a.x, a.x, a.out, {}, a.options_of(i)};
  self.options.num_threads = a.options.num_threads;
  if (!layer.self_attention->rotary()) self.options.positions = nullptr;  // they are for other layers
  self.part_of = a.function;
  self.names = kNamesOfSelf;
  self.ragged = a.ragged;
  if (a.extras.weights) self.weights = a.extras.weights[i];
  if (a.extras.caches) {
    self.cache = self.grows = a.extras.caches[i];
    self.new_lengths = a.extras.new_lengths;
  }
  return validate(*layer.self_attention, self);
}

LayerArguments cross_arguments(const StackArguments& a, Index i, const PackedTransformerLayer& layer) {
  LayerArguments cross{a.x, a.extras.memory, a.extras.memory, a.out, {}, a.extras.memory_options};
  cross.part_of = a.cross_attention;
  cross.names = kNamesOfMemory;
  cross.ragged = a.memories;
  if (a.extras.memory_caches) cross.cache = a.extras.memory_caches[i];
  return validate(*layer.cross_attention, cross);
}

}  // namespace mha
