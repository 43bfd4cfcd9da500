#include "plan/make_plan.hpp"

#include <algorithm>
#include <cfloat>
#include <cmath>

#include "mha/kv_cache.hpp"
#include "views/sizes.hpp"

namespace mha {
namespace {

template <class Byte, class View>
Strided<Byte> strided(const View& view) {
  return {static_cast<Byte*>(view.data), byte_stride(view, 0), byte_stride(view, 1), byte_stride(view, 2),
          view.strides[3]};
}

KeyValues key_values_of(const AttentionArguments& a) {
  KeyValues all{};
  all.sequences = a.sequences;
  if (!a.memory) {
    all.key = strided<const std::byte>(a.key);
    if (a.value) all.value = strided<const std::byte>(a.value);
    all.element_size = size_of(a.key.dtype);
    return all;
  }
  all.key = strided<const std::byte>(a.memory->keys);
  all.element_size = size_of(a.memory->keys.dtype);
  all.tables = a.memory->tables;
  if (a.memory->key_scales) all.key_scale = strided<const std::byte>(a.memory->key_scales);
  if (!a.value) return all;
  all.value = strided<const std::byte>(a.memory->values);
  if (a.memory->value_scales) all.value_scale = strided<const std::byte>(a.memory->value_scales);
  return all;
}

/// The kernel for few rows loads whole vectors of keys and values.
bool suits_decode(const AttentionPlan& plan) {
  const Index lanes = plan.kernels->decode_lanes;
  return plan.head_dim % lanes == 0 && plan.value_dim % lanes == 0 && plan.head_dim > 0 && plan.value_dim > 0 &&
         plan.key_values.are_contiguous();
}

}  // namespace

AttentionPlan make_plan(const AttentionArguments& a, AttentionOutput output, const KernelTable& table) {
  const AttentionOptions& options = a.options;
  AttentionPlan plan{};
  const DType attended = attended_as(a.key.dtype);
  plan.kernels = &table.kernels[static_cast<int>(attended)];
  plan.is_wide = a.query.dtype != attended;
  plan.batch = a.query.extents[0];
  plan.kv_heads = a.key.extents[1];
  plan.group = plan.kv_heads == 0 ? 0 : a.query.extents[1] / plan.kv_heads;
  plan.query_length = a.query.extents[2];
  plan.head_dim = a.query.extents[3];
  plan.key_length = a.key.extents[2];
  plan.value_dim = a.value ? a.value.extents[3] : 0;

  plan.query = strided<const std::byte>(a.query);
  plan.key_values = key_values_of(a);
  plan.out = strided<std::byte>(a.out);
  if (a.lse) plan.lse = strided<std::byte>(a.lse);
  plan.lse.step = 1;
  if (options.sinks) plan.sinks = strided<const std::byte>(options.sinks);
  plan.sink_dtype = options.sinks.dtype;
  if (const TensorView& bias = options.position_bias; bias) {
    plan.position_bias = strided<const std::byte>(bias);
    plan.farthest_distance = bias.extents[3] / 2;
  }

  if (const TensorView& mask = options.attn_mask; mask) {
    plan.attn_mask = strided<const std::byte>(mask);
    plan.attn_mask_is_boolean = mask.dtype == DType::boolean;
  }
  if (const TensorView& mask = options.key_mask; mask) {
    plan.key_mask = static_cast<const std::byte*>(mask.data);
    plan.key_mask_batch = mask.strides[0];
    plan.key_mask_step = mask.strides[1];
  } else if (plan.attn_mask.data && plan.attn_mask_is_boolean &&
             (plan.attn_mask.head == 0 || a.query.extents[1] == 1) &&
             (plan.attn_mask.row == 0 || plan.query_length == 1) && !a.ragged) {
    // The mask is the same for every head and query. As a key_mask it is read once for each key instead of once for
    // each pair of query and key. Not in a ragged batch: there an attn_mask begins anew with each sequence, while a
    // key_mask runs through the keys of all sequences.
    plan.key_mask = plan.attn_mask.data;
    plan.key_mask_batch = plan.attn_mask.batch;
    plan.key_mask_step = plan.attn_mask.step;
    plan.attn_mask.data = nullptr;
  }

  if (const TensorView& mask = options.block_mask; mask) plan.block_mask = strided<const std::byte>(mask);

  if (a.ragged) {
    plan.batch = a.ragged->size;
    plan.query_starts = a.ragged->cu_seqlens_q;
    plan.key_starts = a.ragged->cu_seqlens_k;
    plan.query.batch = plan.out.batch = plan.lse.batch = plan.attn_mask.batch = 0;
    plan.position_bias.batch = plan.sinks.batch = 0;
    // Without offsets keys belong to sequences of a cache, and a key_mask has a row for each sequence of the batch.
    if (plan.key_starts) plan.key_values.key.batch = plan.key_values.value.batch = plan.key_mask_batch = 0;
  }

  plan.is_causal = options.is_causal;
  plan.window_left = options.window_left;
  plan.window_right = options.window_right;
  plan.query_offset = options.query_offset;
  plan.query_offsets = options.query_offsets;
  plan.key_lengths = options.key_lengths;
  plan.scale = !std::isnan(options.scale) ? options.scale
               : plan.head_dim > 0        ? 1.0 / std::sqrt(static_cast<double>(plan.head_dim))
                                          : 1.0;

  plan.accumulator = accumulator_of(a.query.dtype);
  // A cap beyond these bounds is larger or smaller than every score and acts like the bound. Within them it is a normal
  // number, and so is its reciprocal.
  const bool is_f64 = plan.accumulator == DType::f64;
  const double least_cap = is_f64 ? DBL_MIN : double(FLT_MIN), most_cap = is_f64 ? 0x1p512 : 0x1p64;
  plan.softcap = options.softcap == 0 ? 0 : std::clamp(options.softcap, least_cap, most_cap);
  if (options.dropout_p > 0) {
    plan.has_dropout = true;
    plan.dropout_below = static_cast<std::uint32_t>(std::min(std::nearbyint(options.dropout_p * 0x1p32), 0x1p32 - 1));
    plan.dropout_factor = 1 / (1 - options.dropout_p);
    plan.dropout_seed = static_cast<std::uint64_t>(options.dropout_seed);
  }
  plan.alibi_slopes.data = static_cast<const std::byte*>(options.alibi_slopes.data);
  plan.alibi_slopes.batch = byte_stride(options.alibi_slopes, 0);
  plan.alibi_slopes.head = byte_stride(options.alibi_slopes, 1);

  if (output == AttentionOutput::scores) plan.write = plan.kernels->scores;
  if (output == AttentionOutput::weights) plan.write = plan.kernels->weights;
  plan.suits_decode = !plan.write && !plan.has_dropout && suits_decode(plan);

  // Without an array of their lengths all batch elements are alike: an empty call may have 2^40 of them.
  const Index alike = a.ragged || plan.key_lengths ? 1 : std::max<Index>(plan.batch, 1);
  double pairs = 0;
  Index most_rows = 0, most_keys = 0;
  for (Index b = 0; b < plan.batch / alike; ++b) {
    const Index rows = plan.group * plan.queries_of(b), keys = plan.keys_of(b);
    plan.query_tiles += plan.tiles_of(b) * alike;
    // Few rows take the time of reading keys and values, which is about 16 multiply-adds for each element.
    if (rows > 0) pairs += double(std::max<Index>(rows, 16)) * double(keys) * double(alike);
    most_rows = std::max(most_rows, rows);
    most_keys = std::max(most_keys, keys);
  }
  if (!has_elements(a.out) && !has_elements(a.lse)) plan.query_tiles = 0;  // no result, nothing to compute
  if (!a.ragged && plan.batch > 0) plan.tiles_per_head = plan.tiles_of(0);
  plan.spans =
      !plan.write && most_rows <= most_shared_rows(*plan.kernels) ? std::max<Index>(1, spans_of(most_keys)) : 1;
  plan.most_rows = most_rows;
  const double width = double(plan.kv_heads) * double(plan.head_dim + plan.value_dim);
  plan.work = pairs * width * (plan.is_causal && most_rows > plan.group ? 0.5 : 1.0);
  plan.scratch_bytes = plan.kernels->attention_scratch(plan.head_dim, plan.value_dim);
  return plan;
}

}  // namespace mha
