// The layer: project, attend, concatenate, project out. Reads like the equation.
#include "mha/multi_head_attention.hpp"

#include <algorithm>
#include <limits>
#include <optional>

#include "added_keys.hpp"
#include "dispatch.hpp"
#include "make_plan.hpp"
#include "projection_phase.hpp"
#include "ragged_batch.hpp"
#include "run_plan.hpp"
#include "workspace.hpp"

namespace mha {

struct MultiHeadAttention::Impl {
  Impl(const MultiHeadAttentionConfig& sizes, const MultiHeadAttentionWeights& w)
      : config(sizes),
        query(w.query_weight, w.query_bias, sizes.head_dim),
        key(w.key_weight, w.key_bias, sizes.head_dim),
        value(w.value_weight, w.value_bias, sizes.value_head_dim),
        out(w.out_weight, w.out_bias, sizes.out_dim),
        added(sizes, w) {}

  DType dtype() const { return query.dtype(); }
  void run(const LayerArguments& arguments) const;

  MultiHeadAttentionConfig config;
  PackedLinear query, key, value, out;
  AddedKeys added;
};

namespace {

/// The rows of a tensor as [B, segments, T, columns] in scratch memory, and how much of it they take.
///
/// Memory order is [segments, B, T, columns], a row padded to `row` elements: keys and values of one head lie together,
/// and with batch elements of one segment next to each other, all rows of a projection are one run.
struct Intermediate {
  DType dtype;
  Index batch, segments, length, columns, row;

  Intermediate(const PackedLinear& linear, Index b, Index t)
      : dtype(linear.dtype()),
        batch(b),
        segments(linear.segments()),
        length(t),
        columns(linear.segment_columns()),
        row(linear.padded_segment_columns()) {}

  double bytes() const { return double(batch) * double(segments) * double(length) * double(row) * size_of(dtype); }

  MutableTensorView at(std::byte* data) const {
    return {data, dtype, {batch, segments, length, columns}, {length * row, batch * length * row, row, 1}};
  }
};

/// Rows of the sizes given share one block of memory.
class Layout {
 public:
  std::size_t take(double bytes) {
    // Sizes are products of extents that the caller chose; in double nothing wraps around.
    if (total_ + bytes > 4e18) throw AllocationError(static_cast<std::size_t>(-1));
    const std::size_t offset = static_cast<std::size_t>(total_);
    total_ = double(padded(offset + static_cast<std::size_t>(bytes)));
    return offset;
  }
  std::size_t total() const { return static_cast<std::size_t>(total_); }

 private:
  double total_ = 0;
};

/// x [B, T, features] to out [B, segments, T, columns].
Projection projection(const PackedLinear& linear, const DTypeKernels& kernels, const TensorView& x,
                      const MutableTensorView& out) {
  const Index size = size_of(linear.dtype());
  return {&linear,
          &kernels,
          x.extents[0],
          x.extents[1],
          {static_cast<const std::byte*>(x.data), x.strides[0] * size, 0, x.strides[1] * size, x.strides[2]},
          {static_cast<std::byte*>(out.data), out.strides[0] * size, out.strides[1] * size, out.strides[2] * size,
           out.strides[3]}};
}

/// The same into a cache, behind the tokens that are there.
Projection projection_into(KVCache& cache, const MutableTensorView& memory, const PackedLinear& linear,
                           const DTypeKernels& kernels, const TensorView& x, const std::int64_t* new_lengths) {
  Projection p = projection(linear, kernels, x, memory);
  p.first_rows = cache.lengths();
  p.row_counts = new_lengths;
  return p;
}

/// How many tokens each sequence will have, written to `lengths`.
const std::int64_t* lengths_after(const LayerArguments& a, Index new_keys, std::int64_t* lengths) {
  for (Index b = 0; b < a.cache->config().batch_size; ++b)
    lengths[b] = a.cache->lengths()[b] + (a.new_lengths ? a.new_lengths[b] : new_keys);
  return lengths;
}

/// The first `length` tokens of each sequence of a cache.
TensorView first_tokens(TensorView memory, Index length) {
  memory.extents[2] = length;
  return memory;
}

}  // namespace

MultiHeadAttention::MultiHeadAttention(const MultiHeadAttentionConfig& config, const MultiHeadAttentionWeights& weights)
    : impl_(std::make_unique<const Impl>(validate(config, weights), weights)) {}
MultiHeadAttention::~MultiHeadAttention() = default;
MultiHeadAttention::MultiHeadAttention(MultiHeadAttention&&) noexcept = default;
MultiHeadAttention& MultiHeadAttention::operator=(MultiHeadAttention&&) noexcept = default;

const MultiHeadAttentionConfig& MultiHeadAttention::config() const { return impl_->config; }
DType MultiHeadAttention::dtype() const { return impl_->dtype(); }

void MultiHeadAttention::copy_weights(const WeightOutputs& outputs) const {
  impl_->query.unpack(outputs.query_weight, outputs.query_bias);
  impl_->key.unpack(outputs.key_weight, outputs.key_bias);
  impl_->value.unpack(outputs.value_weight, outputs.value_bias);
  impl_->out.unpack(outputs.out_weight, outputs.out_bias);
  impl_->added.unpack(outputs.added_key, outputs.added_value);
}

void MultiHeadAttention::forward(const TensorView& query, const TensorView& key, const TensorView& value,
                                 const MutableTensorView& out, const MutableTensorView& weights,
                                 const AttentionOptions& options) const {
  impl_->run(validate(config(), dtype(), {query, key, value, out, weights, options}));
}

void MultiHeadAttention::forward_varlen(const TensorView& query, const TensorView& key, const TensorView& value,
                                        const RaggedBatch& batch, const MutableTensorView& out,
                                        const AttentionOptions& options) const {
  LayerArguments arguments{query, key, value, out, {}, options};
  arguments.ragged = &batch;
  impl_->run(validate(config(), dtype(), arguments));
}

void MultiHeadAttention::forward(const TensorView& query, const TensorView& key, const TensorView& value,
                                 KVCache& cache, const MutableTensorView& out, const MutableTensorView& weights,
                                 const AttentionOptions& options, const std::int64_t* new_lengths) const {
  impl_->run(validate(config(), dtype(), {query, key, value, out, weights, options, &cache, &cache, new_lengths}));
}

void MultiHeadAttention::attend(const TensorView& query, const KVCache& cache, const MutableTensorView& out,
                                const MutableTensorView& weights, const AttentionOptions& options) const {
  impl_->run(validate(config(), dtype(), {query, {}, {}, out, weights, options, &cache}));
}

void MultiHeadAttention::append_to(KVCache& cache, const TensorView& key, const TensorView& value,
                                   const std::int64_t* new_lengths, int num_threads) const {
  AttentionOptions options;
  options.num_threads = num_threads;
  impl_->run(validate(config(), dtype(), {{}, key, value, {}, {}, options, &cache, &cache, new_lengths}));
}

void MultiHeadAttention::Impl::run(const LayerArguments& a) const {
  const Impl& layer = *this;
  const MultiHeadAttentionConfig& sizes = config;
  const KernelTable& table = active_kernels();
  const DTypeKernels& kernels = table.kernels[static_cast<int>(dtype())];
  const Index batch = a.query.extents[0], query_length = a.query.extents[1], key_length = a.key_length;
  const Index new_keys = a.key ? a.key.extents[1] : 0, scratch_keys = a.cache ? 0 : key_length;

  // Memory: projected rows, concatenated heads, and scratch for each worker.
  const Intermediate q_rows(layer.query, batch, query_length), k_rows(layer.key, batch, scratch_keys),
      v_rows(layer.value, batch, scratch_keys);
  const Index concat_width = sizes.num_heads * sizes.value_head_dim;
  Layout layout;
  const std::size_t q_at = layout.take(q_rows.bytes()), k_at = layout.take(k_rows.bytes()),
                    v_at = layout.take(v_rows.bytes());
  const std::size_t z_at = layout.take(double(batch) * double(query_length) * double(concat_width) * size_of(dtype()));
  const std::size_t lengths_at = layout.take(a.cache ? double(batch) * sizeof(std::int64_t) : 0);
  const std::size_t scratch_stride =
      padded(std::max(kernels.attention_scratch(sizes.head_dim, sizes.value_head_dim), projection_scratch(kernels)));
  const double rows = double(batch) * double(query_length), keys = double(batch) * double(new_keys);
  const double pairs = a.ragged ? count_pairs(*a.ragged) : rows * double(key_length);
  const double key_work = a.key ? layer.key.work(keys) + layer.value.work(keys) : 0;
  const double work = layer.query.work(rows) + key_work + layer.out.work(rows) +
                      pairs * double(sizes.num_heads * (sizes.head_dim + sizes.value_head_dim));
  const int threads = threads_for(a.options.num_threads, std::numeric_limits<Index>::max(), work);
  const std::size_t scratch_at = layout.take(double(threads) * double(scratch_stride));
  const Index sequences = a.ragged ? a.ragged->size : batch;
  const Index group_rows = sizes.num_heads / sizes.num_kv_heads * query_length;
  const Index shared_rows = a.ragged ? std::min(group_rows, most_shared_rows(kernels)) : group_rows;
  const std::size_t sums_at = layout.take(span_sums_bytes(kernels, sequences * sizes.num_kv_heads, shared_rows,
                                                          spans_of(key_length), sizes.value_head_dim, threads));
  const std::size_t schedule_at = layout.take(a.ragged ? double(schedule_bytes(sequences)) : 0);
  const bool has_added = layer.added.count() > 0;
  const std::size_t added_at = layout.take(has_added ? AddedShard::bytes(sizes, dtype(), rows) : 0);
  Workspace workspace(layout.total());
  std::byte *const memory = workspace.data(), *const scratch = memory + scratch_at;

  const MutableTensorView q = q_rows.at(memory + q_at), k_new = k_rows.at(memory + k_at),
                          v_new = v_rows.at(memory + v_at);
  const TensorView k = a.cache ? first_tokens(a.cache->keys(), key_length) : k_new;
  const TensorView v = a.cache ? first_tokens(a.cache->values(), key_length) : v_new;
  const MutableTensorView z(memory + z_at, dtype(), {batch, sizes.num_heads, query_length, sizes.value_head_dim},
                            {query_length * concat_width, sizes.value_head_dim, concat_width, 1});
  const TensorView concat(memory + z_at, dtype(), {batch, query_length, concat_width});
  const MutableTensorView result(a.out.data, dtype(), {batch, 1, query_length, sizes.out_dim},
                                 {a.out.strides[0], 0, a.out.strides[1], a.out.strides[2]});

  ProjectionRun project_in(threads, scratch, scratch_stride), project_out(threads, scratch, scratch_stride);
  project_in.add(projection(layer.query, kernels, a.query, q));
  if (a.grows) {
    project_in.add(projection_into(*a.grows, a.grows->keys(), layer.key, kernels, a.key, a.new_lengths));
    project_in.add(projection_into(*a.grows, a.grows->values(), layer.value, kernels, a.value, a.new_lengths));
  } else if (!a.cache) {
    project_in.add(projection(layer.key, kernels, a.key, k_new));
    project_in.add(projection(layer.value, kernels, a.value, v_new));
  }
  AttentionOptions options = a.options;
  if (a.cache) options.key_lengths = lengths_after(a, new_keys, reinterpret_cast<std::int64_t*>(memory + lengths_at));
  if (a.grows) options.query_offsets = a.grows->lengths();
  std::optional<AddedShard> shard;
  MutableTensorView lse;
  if (has_added) {
    shard.emplace(layer.added, a, q, z, memory + added_at, table);
    options.sinks = shard->lse();
    lse = shard->total_lse();
  }
  AttentionPlan attend_plan =
      make_plan({"", q, k, v, z, lse, options, a.ragged}, AttentionOutput::attended_values, table);
  attend_plan.query_lengths = a.new_lengths;
  const SequenceTasks* tasks = a.ragged ? schedule(attend_plan, memory + schedule_at) : nullptr;
  const AttentionRun attend{&attend_plan, threads, scratch, scratch_stride, memory + sums_at, tasks};
  project_out.add(projection(layer.out, kernels, concat, result));

  Phase phases[8] = {projection_phase(project_in)};
  int count = 1;
  if (shard) count += shard->attend_phases(attend, phases + count);
  count += attention_phases(attend, phases + count);
  if (shard) phases[count++] = shard->join_phase();
  phases[count++] = projection_phase(project_out);
  AttentionPlan weigh_plan;
  const AttentionRun weigh{&weigh_plan, threads, scratch, scratch_stride, nullptr};
  if (a.weights) {
    MutableTensorView columns = a.weights;  // those of the added keys come behind
    columns.extents[3] = key_length;
    weigh_plan = make_plan({"", q, k, {}, columns, {}, options}, AttentionOutput::weights, table);
    weigh_plan.query_lengths = a.new_lengths;
    count += attention_phases(weigh, phases + count);
  }
  run_phases(phases, count, threads);
  if (a.grows) a.grows->advance(new_keys, a.new_lengths);
}

}  // namespace mha
