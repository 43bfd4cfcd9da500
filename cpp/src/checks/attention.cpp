#include "checks/attention.hpp"

#include <cmath>
#include <limits>

#include "checks/kv_cache.hpp"
#include "checks/rotary.hpp"
#include "checks/rules.hpp"
#include "kernels/kernel_table.hpp"
#include "views/describe.hpp"
#include "views/leading_axes.hpp"
#include "views/memory_overlap.hpp"
#include "views/ragged_batch.hpp"
#include "views/sizes.hpp"

namespace mha {
namespace {

/// A query lies no further from the first key: then its position, and its distance from any key, fit 64 bits.
constexpr std::int64_t kFarthest = std::int64_t{1} << 62;

/// Turns the rows of a ragged batch, [N, H, D] or [N, H], into [1, H, N, D] or [1, H, N].
template <class View>
void ragged_to_dense_axes(View& view) {
  if (!view) return;
  std::swap(view.extents[0], view.extents[1]);
  std::swap(view.strides[0], view.strides[1]);
  add_leading_axes(view, view.rank + 1);
}

/// Repeats a batch of one `batch` times, by a stride of 0.
void repeat_batch(TensorView& view, Index batch) {
  if (!view || view.extents[0] == batch) return;
  view.extents[0] = batch;
  view.strides[0] = 0;
}

/// Broadcasts a view to `shape`, by strides of 0; false if its shape does not broadcast.
bool broadcast_to(TensorView& view, std::initializer_list<Index> shape) {
  add_leading_axes(view, int(shape.size()));
  int axis = 0;
  for (Index extent : shape) {
    if (view.extents[axis] == 1 && extent != 1) view.strides[axis] = 0;
    if (view.extents[axis] != 1 && view.extents[axis] != extent) return false;
    view.extents[axis++] = extent;
  }
  return true;
}

void check_apart(const char* function, const KVCache& cache, Named views) {
  for (const auto& [name, view] : views)
    if (may_overlap(cache.keys(), view) || may_overlap(cache.values(), view))
      fail(function, std::string(name) + " must not overlap the cache in memory", {{name, view}});
}

/// Checks the options for scores of shape [B, H, Tq, Tk], and broadcasts the masks to that shape. In a ragged batch B
/// is 1, and Tq and Tk count the rows of all sequences together; if it is over a cache, without offsets of keys, Tk is
/// the length of the longest sequence.
void check_options(const char* function, AttentionOptions& options, DType dtype, Index batch, Index heads,
                   Index query_length, Index key_length, const RaggedBatch* ragged, const ArgumentNames& names = {}) {
  const auto wrong = [&](const std::string& rule) { throw std::invalid_argument(std::string(function) + ": " + rule); };
  const auto shape = [](std::initializer_list<Index> extents) {
    std::string text;
    for (Index extent : extents) text += (text.empty() ? "[" : ", ") + std::to_string(extent);
    return text + "]";
  };
  const std::pair<const char*, const TensorView&> views[] = {
      {names.attn_mask, options.attn_mask},     {names.key_mask, options.key_mask},
      {names.block_mask, options.block_mask},   {"alibi_slopes", options.alibi_slopes},
      {"position_bias", options.position_bias}, {"sinks", options.sinks}};
  for (const auto& [name, view] : views)
    if (view.rank != 0) check_tensor(function, name, view);
  const Index sequences = ragged ? ragged->size : batch;
  const bool packs_keys = ragged && ragged->cu_seqlens_k;
  if (TensorView& mask = options.attn_mask; mask) {
    if (mask.dtype != DType::boolean && mask.dtype != dtype)
      throw DTypeError(std::string(function) + ": " + names.attn_mask +
                       " must be bool or have the dtype of query; got query " + name_of(dtype) + ", " +
                       names.attn_mask + " " + name_of(mask.dtype));
    const std::string given = shape_of(mask);
    const Index columns = packs_keys ? longest_keys(*ragged) : key_length;
    if (!broadcast_to(mask, {batch, heads, query_length, columns}))
      wrong(names.attn_mask + std::string(" must broadcast to ") +
            (ragged ? "[H, Nq, longest Tk] = " + shape({heads, query_length, columns})
                    : "[B, H, Tq, Tk] = " + shape({batch, heads, query_length, columns})) +
            "; got " + names.attn_mask + " " + given);
  }
  if (TensorView& mask = options.key_mask; mask) {
    if (mask.dtype != DType::boolean)
      throw DTypeError(std::string(function) + ": " + names.key_mask + " must be bool; got " + names.key_mask + " " +
                       name_of(mask.dtype));
    const std::string given = shape_of(mask);
    if (mask.rank > 2 || !broadcast_to(mask, {packs_keys ? batch : sequences, key_length}))
      wrong(names.key_mask + std::string(" must broadcast to ") +
            (packs_keys ? "[Nk] = " + shape({key_length}) : "[B, Tk] = " + shape({sequences, key_length})) + "; got " +
            names.key_mask + " " + given);
  }
  if (TensorView& mask = options.block_mask; mask) {
    if (mask.dtype != DType::boolean)
      throw DTypeError(std::string(function) + ": " + names.block_mask + " must be bool; got " + names.block_mask +
                       " " + name_of(mask.dtype));
    const std::string given = shape_of(mask);
    const auto blocks = [](Index rows) { return rows / kKeyBlock + (rows % kKeyBlock != 0); };
    const Index row_blocks = blocks(ragged ? longest_queries(*ragged) : query_length);
    const Index key_blocks = blocks(packs_keys ? longest_keys(*ragged) : key_length);
    add_leading_axes(mask, 4);
    if (mask.extents[2] != row_blocks || mask.extents[3] != key_blocks ||
        !broadcast_to(mask, {sequences, heads, row_blocks, key_blocks}))
      wrong(names.block_mask + std::string(" must be [B or 1, H or 1, ceil(") + (ragged ? "longest " : "") +
            "Tq / 64), ceil(" + (ragged ? "longest " : "") + "Tk / 64)] with B, H and blocks " +
            shape({sequences, heads, row_blocks, key_blocks}) + "; got " + names.block_mask + " " + given);
  }
  if (options.key_lengths)
    for (Index b = 0; b < sequences; ++b) {
      const std::int64_t keys = packs_keys ? keys_of(*ragged, b) : key_length;
      if (options.key_lengths[b] < 0 || options.key_lengths[b] > keys)
        wrong(names.key_lengths + std::string(" must lie in [0, Tk] = [0, ") + std::to_string(keys) + "]; got " +
              std::to_string(options.key_lengths[b]) + " for batch element " + std::to_string(b));
    }
  for (Index b = 0; b < (options.query_offsets ? sequences : 1); ++b) {
    const std::int64_t offset = options.query_offsets ? options.query_offsets[b] : options.query_offset;
    if (offset < -kFarthest || offset > kFarthest)
      wrong("query_offset must lie in [-2^62, 2^62]; got " + std::to_string(offset) +
            (options.query_offsets ? " for batch element " + std::to_string(b) : ""));
  }
  if (options.window_left < -1 || options.window_right < -1)
    wrong("window must be (left, right) with -1 for unbounded; got (" + std::to_string(options.window_left) + ", " +
          std::to_string(options.window_right) + ")");
  // The exponent of a weight has the factor scale * log2(e), in the dtype of the scores. NaN stands for the default.
  const DType scores = accumulator_of(dtype);
  const double largest_scale =
      (scores == DType::f64 ? std::numeric_limits<double>::max() : double(std::numeric_limits<float>::max())) / 2;
  if (std::abs(options.scale) > largest_scale)
    wrong(std::string(names.scale) + " must be finite, and at most half the largest " + name_of(scores) +
          " in magnitude; got " + text_of(options.scale));
  if (!(options.softcap >= 0) || std::isinf(options.softcap))
    wrong("softcap must be a finite positive number, or 0 for none; got " + text_of(options.softcap));
  const bool is_scale_good = is_zero_or_normal(options.scale, DType::f64);
  if (!is_scale_good || !is_zero_or_normal(options.softcap, DType::f64))
    wrong(std::string(is_scale_good ? "softcap" : names.scale) + " must be " + zero_or_normal(DType::f64) + "; got " +
          text_of(is_scale_good ? options.softcap : options.scale));
  if (!(options.dropout_p >= 0 && options.dropout_p < 1))
    wrong("dropout_p must lie in [0, 1); got " + text_of(options.dropout_p));
  const auto check_scores = [&](const char* name, const TensorView& numbers, DType other, bool has_shape,
                                const auto& expected_shape) {
    if (!numbers) return;
    if (numbers.dtype != scores && numbers.dtype != other)
      throw DTypeError(std::string(function) + ": " + name + " must be " + name_of(scores) +
                       (other != scores ? std::string(" or ") + name_of(other) : "") + "; got " + name + " " +
                       name_of(numbers.dtype));
    if (!has_shape)
      wrong(std::string(name) + " must be " + expected_shape() + "; got " + name + " " + shape_of(numbers));
  };
  TensorView& slopes = options.alibi_slopes;
  check_scores("alibi_slopes", slopes, scores,
               has_shape(slopes, {heads}) || has_shape(slopes, {1, heads}) || has_shape(slopes, {sequences, heads}),
               [&] { return "[H] = " + shape({heads}) + " or [B, H] = " + shape({sequences, heads}); });
  if (slopes) broadcast_to(slopes, {sequences, heads});
  check_scores("sinks", options.sinks, dtype, has_shape(options.sinks, {heads}),
               [&] { return "[H] = " + shape({heads}); });
  const TensorView bias = options.position_bias;
  check_scores("position_bias", bias, scores, bias.rank == 2 && bias.extents[0] == heads && bias.extents[1] % 2 == 1,
               [&] { return "[H, 2 R + 1] = [" + std::to_string(heads) + ", an odd number]"; });
  if (bias)
    options.position_bias = {
        bias.data, bias.dtype, {batch, heads, query_length, bias.extents[1]}, {0, bias.strides[0], 0, bias.strides[1]}};
  if (const TensorView sinks = options.sinks; sinks)
    options.sinks = {sinks.data, sinks.dtype, {batch, heads, query_length}, {0, sinks.strides[0], 0}};
  if (options.num_threads < 0)
    wrong("num_threads must be at least 1, or 0 for the default; got " + std::to_string(options.num_threads));
}

/// `limit` says what dropout is for.
void refuse_dropout(const char* f, const AttentionOptions& options, const char* limit) {
  if (options.dropout_p != 0)
    throw std::invalid_argument(std::string(f) + ": dropout_p is " + limit + "; got " + text_of(options.dropout_p));
}

/// The memory that is read as keys, and as values: of a cache all of it.
TensorView keys_of(const AttentionArguments& a) { return a.memory ? TensorView(a.memory->keys) : a.key; }
TensorView values_of(const AttentionArguments& a) {
  return a.memory && a.value ? TensorView(a.memory->values) : a.value;
}

/// Checks and brings into shape all arguments but the outputs; of `out` only the dtype is checked.
void check_inputs(AttentionArguments& a, AttentionOutput output) {
  const char* f = a.function;
  const bool gives_weights = output != AttentionOutput::attended_values;
  const char* result = gives_weights ? "weights" : "out";
  const TensorView query = a.query, key = a.key, value = a.value;  // as they were given, for messages
  const Named inputs = {{"query", query}, {"key", key}, {"value", value}};

  const int least_rank = a.ragged ? 3 : 2, most_rank = a.ragged ? 3 : 4;
  check_rank(f, "query", query, least_rank, most_rank, inputs);
  check_rank(f, "key", key, least_rank, most_rank, inputs);
  if (!gives_weights) check_rank(f, "value", value, least_rank, most_rank, inputs);
  check_dtypes(f, query.dtype, {{"query", query}, {"key", key}, {"value", value}, {result, a.out}});

  if (a.ragged)
    for (TensorView* view : {&a.query, &a.key, &a.value}) ragged_to_dense_axes(*view);
  add_leading_axes(a.query, 4);
  add_leading_axes(a.key, 4);
  add_leading_axes(a.value, 4);
  const Index query_batch = a.query.extents[0], key_batch = a.key.extents[0];
  if (query_batch != key_batch && query_batch != 1 && key_batch != 1)
    fail(f, "query and key must have the same batch size, or one of them 1", inputs);
  if (!gives_weights && a.value.extents[0] != key_batch) fail(f, "value must have the batch size of key", inputs);
  if (query_batch != key_batch) {
    for (TensorView* view : {&a.query, &a.key, &a.value})
      repeat_batch(*view, query_batch == 1 ? key_batch : query_batch);
    check_tensor(f, "query", a.query);
    check_tensor(f, "key", a.key);
  }

  const auto [batch, heads, query_length, head_dim] = a.query.extents;
  const auto [same_batch, kv_heads, key_length, key_dim] = a.key.extents;
  if (key_dim != head_dim) fail(f, "key must have the head_dim of query", inputs);
  if (kv_heads == 0 ? heads != 0 : heads % kv_heads != 0)
    fail(f, "the heads of query must be a multiple of the heads of key", inputs);
  if (!gives_weights) {
    if (a.value.extents[1] != kv_heads) fail(f, "value must have the heads of key", inputs);
    if (a.value.extents[2] != key_length) fail(f, "value must have the length of key", inputs);
  }

  if (a.ragged) check_ragged_batch(f, *a.ragged, query_length, key_length);
  check_options(f, a.options, query.dtype, batch, heads, query_length, key_length, a.ragged);
  refuse_positions(f, a.options);
  if (gives_weights || a.memory)
    refuse_dropout(f, a.options, gives_weights ? "for calls that return values" : "for keys and values in tensors");
}

}  // namespace

void validate(AttentionArguments& a, AttentionOutput output) {
  const char* f = a.function;
  const bool gives_weights = output != AttentionOutput::attended_values;
  const char* result = gives_weights ? "weights" : "out";
  const TensorView query = a.query, key = a.key, value = a.value;  // as they were given, for messages
  check_inputs(a, output);
  const auto [batch, heads, query_length, head_dim] = a.query.extents;

  const Index width = gives_weights ? a.key.extents[2] : a.value.extents[3];
  const MutableTensorView out = a.out, lse = a.lse;
  const int rank = !a.ragged && batch != 1 ? 4 : query.rank;  // a batch of one that is repeated gets its axis
  if (a.ragged && out.rank == 3) ragged_to_dense_axes(a.out);
  add_leading_axes(a.out, 4);
  if (out.rank != rank || !has_shape(a.out, {batch, heads, query_length, width}))
    fail(f, std::string(result) + " must have the axes of query, ending in " + std::to_string(width),
         {{result, out}, {"query", query}, {"key", key}, {"value", value}});
  const Named inputs_and_masks = {{"query", a.query},
                                  {"key", keys_of(a)},
                                  {"value", values_of(a)},
                                  {"attn_mask", a.options.attn_mask},
                                  {"key_mask", a.options.key_mask},
                                  {"block_mask", a.options.block_mask},
                                  {"alibi_slopes", a.options.alibi_slopes},
                                  {"position_bias", a.options.position_bias},
                                  {"sinks", a.options.sinks}};
  check_output(f, result, a.out, inputs_and_masks);
  if (lse) {
    if (lse.dtype != accumulator_of(query.dtype))
      throw DTypeError(std::string(f) + ": lse must have the dtype of the scores; got " +
                       dtypes_of({{"query", query}, {"lse", lse}}));
    if (a.ragged && lse.rank == 2) ragged_to_dense_axes(a.lse);
    add_leading_axes(a.lse, 3);
    if ((a.ragged && lse.rank != 2) || !has_shape(a.lse, {batch, heads, query_length}))
      fail(f, "lse must have the shape of query without head_dim", {{"lse", lse}, {"query", query}});
    check_output(f, "lse", a.lse, inputs_and_masks);
    check_output(f, "lse", a.lse, {{result, a.out}});
  }
}

StatisticsArguments validate(AttentionArguments inputs, AttentionStatistics r) {
  const char* f = inputs.function;
  const TensorView query = inputs.query;
  check_inputs(inputs, AttentionOutput::weights);
  const Index* const sizes = inputs.query.extents;
  const Named arrays = {{"query", inputs.query},
                        {"key", keys_of(inputs)},
                        {"attn_mask", inputs.options.attn_mask},
                        {"key_mask", inputs.options.key_mask},
                        {"block_mask", inputs.options.block_mask},
                        {"alibi_slopes", inputs.options.alibi_slopes},
                        {"position_bias", inputs.options.position_bias},
                        {"sinks", inputs.options.sinks}};
  const auto check = [&](const char* name, MutableTensorView& result, Index length) {
    if (!result) return;
    if (result.dtype != accumulator_of(query.dtype))
      throw DTypeError(std::string(f) + ": " + name + " must have the dtype of the scores; got " +
                       dtypes_of({{"query", query}, {name, result}}));
    const MutableTensorView given = result;
    add_leading_axes(result, 3);
    if (!has_shape(result, {sizes[0], sizes[1], length}))
      fail(f, std::string(name) + " must have the batch and heads of query, ending in " + std::to_string(length),
           {{name, given}, {"query", query}});
  };
  check("entropy", r.entropy, sizes[2]);
  check("max_weight", r.max_weight, sizes[2]);
  check("mean_distance", r.mean_distance, sizes[2]);
  check("received_weight", r.received_weight, inputs.key.extents[2]);

  MutableTensorView max_key;  // of int64; f64 has as many bytes, and only the memory is checked
  if (r.max_key) max_key = MutableTensorView(r.max_key, DType::f64, {sizes[0], sizes[1], sizes[2]});
  const std::pair<const char*, MutableTensorView> outputs[] = {{"entropy", r.entropy},
                                                               {"max_weight", r.max_weight},
                                                               {"max_key", max_key},
                                                               {"mean_distance", r.mean_distance},
                                                               {"received_weight", r.received_weight}};
  bool has_elements_to_write = false;
  for (const auto& [name, output] : outputs) {
    has_elements_to_write = has_elements_to_write || has_elements(output);
    check_output(f, name, output, arrays);
    for (const auto* before = outputs; before->first != name; ++before)
      check_output(f, name, output, {{before->first, before->second}});
  }
  return {inputs, r, has_elements_to_write};
}

void validate(GradientArguments& a) {
  AttentionArguments& inputs = a.inputs;
  AttentionGradients& g = a.gradients;
  const char* f = inputs.function;
  const DType dtype = inputs.query.dtype;
  const AttentionOptions given = inputs.options;
  check_inputs(inputs, AttentionOutput::attended_values);
  const DType sums = accumulator_of(dtype);
  const auto [batch, heads, query_length, head_dim] = inputs.query.extents;
  const Index kv_heads = inputs.key.extents[1], key_length = inputs.key.extents[2];
  const Index value_dim = inputs.value.extents[3];

  // Brings a view with a row for each query, or for each key, to the axes of a dense call.
  const auto check_rows = [&](const char* name, auto& view, DType expected, std::initializer_list<Index> shape) {
    if (!view) return;
    const auto as_given = view;
    check_tensor(f, name, view);
    if (view.dtype != expected)
      throw DTypeError(std::string(f) + ": " + name + " must be " + name_of(expected) + "; got " + name_of(view.dtype));
    const int axes = int(shape.size());
    if (inputs.ragged && view.rank == axes - 1) ragged_to_dense_axes(view);
    add_leading_axes(view, axes);
    if (!has_shape(view, shape)) {
      std::string extents;
      int axis = 0;
      for (Index extent : shape)
        if (axis++ > 0 || !inputs.ragged) extents += (extents.empty() ? "" : ", ") + std::to_string(extent);
      fail(f,
           std::string(name) + " must have the axes of a call with " + (inputs.ragged ? "[H, N, ...]" : "[B, H, ...]") +
               " = [" + extents + "]",
           {{name, as_given}});
    }
  };
  for (const auto& [name, view] :
       {std::pair<const char*, const TensorView&>("out", a.out), {"lse", a.lse}, {"dout", a.dout}})
    if (!view) throw std::invalid_argument(std::string(f) + ": " + name + " must be given");
  check_rows("out", a.out, dtype, {batch, heads, query_length, value_dim});
  check_rows("lse", a.lse, sums, {batch, heads, query_length});
  check_rows("dout", a.dout, dtype, {batch, heads, query_length, value_dim});
  check_rows("dlse", a.dlse, sums, {batch, heads, query_length});
  check_rows("the gradient of query", g.query, dtype, {batch, heads, query_length, head_dim});
  check_rows("the gradient of key", g.key, dtype, {batch, kv_heads, key_length, head_dim});
  check_rows("the gradient of value", g.value, dtype, {batch, kv_heads, key_length, value_dim});

  const auto check_option = [&](const char* name, MutableTensorView& gradient, const TensorView& option) {
    if (!gradient) return;
    const std::string called = std::string("the gradient of ") + name;
    if (!option) throw std::invalid_argument(std::string(f) + ": " + called + " needs " + name);
    if (option.dtype == DType::boolean)
      throw DTypeError(std::string(f) + ": " + called + " needs a mask that is added; got bool");
    check_tensor(f, called.c_str(), gradient);
    if (gradient.dtype != sums)
      throw DTypeError(std::string(f) + ": " + called + " must be " + name_of(sums) + "; got " +
                       name_of(gradient.dtype));
    bool is_same = gradient.rank == option.rank;
    for (int axis = 0; is_same && axis < option.rank; ++axis) is_same = gradient.extents[axis] == option.extents[axis];
    if (!is_same) fail(f, called + " must have the shape of " + name, {{called.c_str(), gradient}, {name, option}});
  };
  check_option("attn_mask", g.attn_mask, given.attn_mask);
  check_option("alibi_slopes", g.alibi_slopes, given.alibi_slopes);
  check_option("position_bias", g.position_bias, given.position_bias);
  check_option("sinks", g.sinks, given.sinks);

  const Named read = {{"query", inputs.query},
                      {"key", inputs.key},
                      {"value", inputs.value},
                      {"out", a.out},
                      {"lse", a.lse},
                      {"dout", a.dout},
                      {"dlse", a.dlse},
                      {"attn_mask", given.attn_mask},
                      {"key_mask", given.key_mask},
                      {"block_mask", given.block_mask},
                      {"alibi_slopes", given.alibi_slopes},
                      {"position_bias", given.position_bias},
                      {"sinks", given.sinks}};
  const std::pair<const char*, MutableTensorView> outputs[] = {{"the gradient of query", g.query},
                                                               {"the gradient of key", g.key},
                                                               {"the gradient of value", g.value},
                                                               {"the gradient of attn_mask", g.attn_mask},
                                                               {"the gradient of alibi_slopes", g.alibi_slopes},
                                                               {"the gradient of position_bias", g.position_bias},
                                                               {"the gradient of sinks", g.sinks}};
  for (const auto& [name, output] : outputs) {
    check_output(f, name, output, read);
    for (const auto* before = outputs; before->first != name; ++before)
      check_output(f, name, output, {{before->first, before->second}});
  }
  add_leading_axes(g.attn_mask, 4);
}

namespace {

/// Checks the views of the record of a call, whose other arguments are validated; `inputs` are those that it reads.
void check_record(const char* f, const MultiHeadAttentionConfig& config, const LayerArguments& a, Named inputs) {
  const AttentionRecord& record = *a.record;
  const Index batch = a.query.extents[0], queries = a.query.extents[1], keys = a.key_length;
  const DType dtype = a.query.dtype;
  const std::pair<const char*, MutableTensorView> views[] = {{"the record of query", record.query},
                                                             {"the record of key", record.key},
                                                             {"the record of value", record.value},
                                                             {"the record of heads", record.heads},
                                                             {"the record of lse", record.lse}};
  const MutableTensorView shapes[] = {{nullptr, dtype, {batch, config.num_heads, queries, config.head_dim}},
                                      {nullptr, dtype, {batch, config.num_kv_heads, keys, config.head_dim}},
                                      {nullptr, dtype, {batch, config.num_kv_heads, keys, config.value_head_dim}},
                                      {nullptr, dtype, {batch, queries, config.num_heads * config.value_head_dim}},
                                      {nullptr, accumulator_of(dtype), {batch, config.num_heads, queries}}};
  for (int i = 0; i < 5; ++i) {
    const auto& [name, view] = views[i];
    const MutableTensorView& shape = shapes[i];
    const bool is_dense = i > 2 || view.rank < 4 || view.extents[3] < 2 || view.strides[3] == 1;
    bool fits = view.rank == shape.rank && view.dtype == shape.dtype && is_dense;
    for (int axis = 0; fits && axis < shape.rank; ++axis) fits = view.extents[axis] == shape.extents[axis];
    if (!fits)
      fail(f, std::string(name) + " must have the shape, the dtype and the dense rows of the call",
           {{name, view}, {"query", a.query}, {"key", a.key}});
    check_output(f, name, view, inputs);
    check_output(f, name, view, {{"out", a.out}});
    for (int before = 0; before < i; ++before)
      check_output(f, name, view, {{views[before].first, views[before].second}});
  }
}

}  // namespace

LayerArguments validate(const PackedAttention& layer, LayerArguments a) {
  const MultiHeadAttentionConfig& config = layer.config;
  const DType dtype = layer.dtype();
  const bool attends_only = a.cache && !a.grows;
  const char* f = a.part_of ? a.part_of : a.appends_only ? "MultiHeadAttention.append_to" : "MultiHeadAttention";
  const TensorView query = a.query, key = a.key, value = a.value;
  const Named inputs = {{"query", query}, {"key", key}, {"value", value}};
  const int most_rank = a.ragged && !a.part_of ? 2 : 3;
  if (!a.appends_only) check_rank(f, "query", query, 2, most_rank, inputs);
  if (!attends_only) {
    check_rank(f, "key", key, 2, most_rank, inputs);
    check_rank(f, "value", value, 2, most_rank, inputs);
  }
  check_dtypes(f, dtype, {{"query", query}, {"key", key}, {"value", value}, {"out", a.out}, {"weights", a.weights}});

  add_leading_axes(a.query, 3);
  add_leading_axes(a.key, 3);
  add_leading_axes(a.value, 3);
  const Index batch = a.appends_only ? a.key.extents[0] : a.query.extents[0];
  const Index query_length = a.query.extents[1];  // 0 if there is no query
  const auto features = [](const char* name, Index count) {
    return std::string(name) + " must have " + std::to_string(count) + " features";
  };
  if (!a.appends_only && a.query.extents[2] != config.embed_dim) fail(f, features("query", config.embed_dim), inputs);
  if (!attends_only) {
    if (a.key.extents[2] != config.kdim) fail(f, features("key", config.kdim), inputs);
    if (a.value.extents[2] != config.vdim) fail(f, features("value", config.vdim), inputs);
    if (a.key.extents[0] != batch) fail(f, "key must have the batch size of query", inputs);
    if (a.value.extents[0] != batch) fail(f, "value must have the batch size of key", inputs);
    if (a.value.extents[1] != a.key.extents[1]) fail(f, "value must have the length of key", inputs);
  }
  if (a.ragged) check_ragged_batch(f, *a.ragged, query_length, a.key.extents[1]);
  if (a.ragged && a.ragged->sequences && !a.cache)
    throw std::invalid_argument(f + std::string(": sequences needs a cache"));
  a.key_length = a.cache ? validate_cache(f, config, dtype, a) : a.key.extents[1];
  if (a.appends_only) {
    a.query = {nullptr, dtype, {batch, 0, config.embed_dim}};
    a.out = {nullptr, dtype, {batch, 0, config.out_dim}};
  }
  const Index key_length = a.key_length;

  const RaggedBatch rows = a.ragged && a.cache ? over_cache(*a.ragged) : RaggedBatch{};
  check_options(f, a.options, dtype, batch, config.num_heads, query_length, key_length,
                a.ragged && a.cache ? &rows : a.ragged, a.names);

  const MutableTensorView out = a.out, weights = a.weights;
  add_leading_axes(a.out, 3);
  const bool has_shape_of_query =
      (out.rank == query.rank || a.appends_only) && has_shape(a.out, {batch, query_length, config.out_dim});
  if (!a.part_of && !has_shape_of_query)
    fail(f, "out must have the axes of query, ending in " + std::to_string(config.out_dim),
         {{"out", out}, {"query", query}});
  const Named inputs_and_masks = {{"query", a.query},
                                  {"key", a.key},
                                  {"value", a.value},
                                  {a.names.attn_mask, a.options.attn_mask},
                                  {a.names.key_mask, a.options.key_mask},
                                  {a.names.block_mask, a.options.block_mask},
                                  {"alibi_slopes", a.options.alibi_slopes},
                                  {"position_bias", a.options.position_bias},
                                  {"sinks", a.options.sinks}};
  if (!a.part_of) check_output(f, "out", a.out, inputs_and_masks);
  if (a.cache) {
    check_apart(f, *a.cache, inputs_and_masks);
    check_apart(f, *a.cache, {{"out", a.out}});
  }
  if (weights) {
    add_leading_axes(a.weights, 4);
    const Index added = config.added_keys();
    if (!has_shape(a.weights, {batch, config.num_heads, query_length, key_length + added}))
      fail(f,
           added ? "weights must be [B, H, Tq, Tk + " + std::to_string(added) + "]" : "weights must be [B, H, Tq, Tk]",
           {{"weights", weights}, {"query", query}, {"key", key}});
    check_output(f, "weights", a.weights, inputs_and_masks);
    check_output(f, "weights", a.weights, {{"out", a.out}});
    if (a.cache) check_apart(f, *a.cache, {{"weights", a.weights}});
  }
  if (a.record) check_record(f, config, a, inputs_and_masks);
  if (layer.rotary())
    check_positions(f, *layer.rotary(), a);
  else
    refuse_positions(f, a.options);
  refuse_dropout(f, a.options, "for functions, not for layers");
  return a;
}

}  // namespace mha
