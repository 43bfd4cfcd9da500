#include "execute/attention_call.hpp"

#include <algorithm>

#include "cache/cache_storage.hpp"
#include "plan/make_plan.hpp"
#include "views/ragged_batch.hpp"
#include "views/sizes.hpp"

namespace mha {
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

Intermediate query_rows(const PackedAttention& layer, const LayerArguments& a) {
  return {layer.query, a.query.extents[0], a.query.extents[1]};
}

/// Keys and values that are projected into a cache need no other memory. Exceptions are rows with steps before they go
/// there, rows of a ragged batch, where neighbours go to different sequences, and rows to be quantized.
bool are_projected_into_place(const LayerArguments& a, const HeadSteps& steps) {
  return a.grows && !steps && !a.ragged && !a.grows->storage().memory().key_scales;
}

Intermediate rows_of(const PackedLinear& linear, const LayerArguments& a, const HeadSteps& steps) {
  const Index new_keys = a.key ? a.key.extents[1] : 0;
  return {linear, a.query.extents[0], are_projected_into_place(a, steps) ? 0 : new_keys};
}

Intermediate key_rows(const PackedAttention& layer, const LayerArguments& a) {
  return rows_of(layer.key, a, layer.key_steps());
}

Intermediate value_rows(const PackedAttention& layer, const LayerArguments& a) { return rows_of(layer.value, a, {}); }

/// The same into a cache, after its tokens.
Projection projection_into(const KVCache& cache, const MutableTensorView& memory, const PackedLinear& linear,
                           const KernelTable& table, const TensorView& x, const std::int64_t* new_lengths) {
  const auto kernels_of = [&](DType dtype) -> const DTypeKernels& { return table.kernels[static_cast<int>(dtype)]; };
  Projection p = projection(linear, kernels_of(linear.dtype()), x, memory);
  if (memory.dtype != linear.dtype()) {
    p.round = kernels_of(memory.dtype).round;
    p.rounded_size = size_of(memory.dtype);
  }
  p.first_rows = cache.lengths();
  p.tables = cache.storage().memory().tables;
  p.row_counts = new_lengths;
  return p;
}

/// Pairs of a query of a ragged batch and a key that its sequence has in the cache.
double pairs_with_cache(const LayerArguments& a) {
  double pairs = 0;
  for (Index b = 0; a.cache && b < a.ragged->size; ++b)
    pairs += double(a.ragged->cu_seqlens_q[b + 1] - a.ragged->cu_seqlens_q[b]) *
             double(a.cache->lengths()[sequence_of(*a.ragged, b)]);
  return pairs;
}

/// As many tokens of each sequence of a cache: the sizes of its keys or values in a call.
TensorView first_tokens(TensorView memory, Index length) {
  memory.extents[2] = length;
  return memory;
}

}  // namespace

Projection projection(const PackedLinear& linear, const DTypeKernels& kernels, const TensorView& x,
                      const MutableTensorView& out) {
  return {&linear,
          &kernels,
          x.extents[0],
          x.extents[1],
          {static_cast<const std::byte*>(x.data), byte_stride(x, 0), 0, byte_stride(x, 1), x.strides[2]},
          {static_cast<std::byte*>(out.data), byte_stride(out, 0), byte_stride(out, 1), byte_stride(out, 2),
           out.strides[3]}};
}

double AttentionCall::work(const PackedAttention& layer, const LayerArguments& a) {
  const MultiHeadAttentionConfig& sizes = layer.config;
  const double rows = double(a.query.extents[0]) * double(a.query.extents[1]);
  const double keys = a.key ? double(a.key.extents[0]) * double(a.key.extents[1]) : 0;
  const double pairs = !a.ragged ? rows * double(a.key_length) : count_pairs(*a.ragged) + pairs_with_cache(a);
  const double key_work = a.key ? layer.key.work(keys) + layer.value.work(keys) : 0;
  return layer.query.work(rows) + key_work + pairs * double(sizes.num_heads * (sizes.head_dim + sizes.value_head_dim));
}

SizedAttentionCall::SizedAttentionCall(const PackedAttention& layer, const LayerArguments& a, const KernelTable& table,
                                       int threads, Layout& layout)
    : layer_(layer), arguments_(a), table_(table) {
  const MultiHeadAttentionConfig& sizes = layer.config;
  const Index batch = a.query.extents[0], query_length = a.query.extents[1];
  const double rows = double(batch) * double(query_length);
  const double scratch = a.record ? 0 : 1;  // a record lies elsewhere
  query_at_ = layout.take(scratch * query_rows(layer, a).bytes());
  key_at_ = layout.take(scratch * key_rows(layer, a).bytes());
  value_at_ = layout.take(scratch * value_rows(layer, a).bytes());
  heads_at_ = layout.take(scratch * rows * double(layer.out.in_features()) * size_of(dtype()));
  lengths_at_ = layout.take(a.cache ? 2 * double(sequences()) * sizeof(std::int64_t) : 0);
  const Index group_rows = saturated_product(sizes.num_heads / sizes.num_kv_heads, query_length);
  const Index shared_rows = a.ragged ? std::min(group_rows, most_shared_rows(attention_kernels())) : group_rows;
  sums_at_ = layout.take(span_sums_bytes(attention_kernels(), saturated_product(sequences(), sizes.num_kv_heads),
                                         shared_rows, spans_of(a.key_length), sizes.value_head_dim, threads));
  const double shared = shared_bytes(threads);
  may_share_ = shared > 0;
  shared_at_ = layout.take(shared);
  schedule_at_ = layout.take(a.ragged ? double(schedule_bytes(sequences())) : 0);
  added_at_ = layout.take(layer.added.count() > 0 ? AddedShard::bytes(sizes, dtype(), rows) : 0);
}

/// For spans of the cache that sequences share.
double SizedAttentionCall::shared_bytes(int threads) const {
  const LayerArguments& a = arguments_;
  if (!a.cache) return 0;
  const MultiHeadAttentionConfig& sizes = layer_.config;
  KeyValues keys{};
  keys.tables = a.cache->storage().memory().tables;
  keys.sequences = a.ragged ? a.ragged->sequences : nullptr;
  const Index length = a.ragged ? longest_queries(*a.ragged) : a.query.extents[1];
  return shared_spans_bytes(attention_kernels(), keys, sequences(), sizes.num_kv_heads,
                            saturated_product(sizes.num_heads / sizes.num_kv_heads, length), spans_of(a.key_length),
                            sizes.value_head_dim, threads);
}

std::size_t SizedAttentionCall::scratch_bytes() const {
  const MultiHeadAttentionConfig& sizes = layer_.config;
  std::size_t bytes = attention_kernels().attention_scratch(sizes.head_dim, sizes.value_head_dim);
  // The added keys are of the dtype of the layer.
  if (layer_.added.count() > 0)
    bytes = std::max(bytes, kernels().attention_scratch(sizes.head_dim, sizes.value_head_dim));
  for (const PackedLinear* linear : {&layer_.query, &layer_.key, &layer_.value, &layer_.out})
    bytes = std::max(bytes, projection_scratch(kernels(), *linear));
  return std::max(bytes, HeadRowsRun::scratch_bytes(dtype(), sizes.head_dim, layer_.joint_features()));
}

/// Written to `memory`.
CacheLengths SizedAttentionCall::lengths_in_cache(std::byte* memory) const {
  const LayerArguments& a = arguments_;
  std::int64_t *const before = reinterpret_cast<std::int64_t*>(memory), *const after = before + sequences();
  for (Index b = 0; b < sequences(); ++b) {
    before[b] = a.cache->lengths()[a.ragged ? sequence_of(*a.ragged, b) : b];
    after[b] = before[b] + (a.ragged ? keys_of(*a.ragged, b) : a.new_lengths ? a.new_lengths[b] : new_keys());
  }
  return {before, after};
}

AttentionCall::AttentionCall(const SizedAttentionCall& sized, const CallMemory& memory, const TensorView& query,
                             const TensorView& key, const TensorView& value)
    : sized_(sized),
      heads_(sized.arguments_.record
                 ? sized.arguments_.record->heads
                 : MutableTensorView(memory.data() + sized.heads_at_, sized.dtype(),
                                     {sized.arguments_.query.extents[0], sized.arguments_.query.extents[1],
                                      sized.layer_.out.in_features()})),
      project_in_(memory.workers()) {
  const PackedAttention& layer = sized.layer_;
  const LayerArguments& a = sized.arguments_;
  const KernelTable& table = sized.table_;
  const Index key_length = a.key_length, value_columns = layer.config.value_head_dim;
  std::byte* const data = memory.data();
  const AttentionRecord* const record = a.record;
  const MutableTensorView q = record ? record->query : query_rows(layer, a).at(data + sized.query_at_),
                          k_new = record ? record->key : key_rows(layer, a).at(data + sized.key_at_),
                          v_new = record ? record->value : value_rows(layer, a).at(data + sized.value_at_);
  const CacheMemory* const cached = a.cache ? &a.cache->storage().memory() : nullptr;
  const TensorView k = cached ? first_tokens(cached->keys, key_length) : k_new;
  const TensorView v = cached ? first_tokens(cached->values, key_length) : v_new;
  const MutableTensorView z(
      heads_.data, sized.dtype(), {q.extents[0], layer.config.num_heads, q.extents[2], value_columns},
      {heads_.strides[0], value_columns * heads_.strides[2], heads_.strides[1], heads_.strides[2]});

  project_in_.add(projection(layer.query, sized.kernels(), query, q));
  if (are_projected_into_place(a, layer.key_steps()))
    project_in_.add(projection_into(*a.grows, cached->keys, layer.key, table, key, a.new_lengths));
  else if (a.key)
    project_in_.add(projection(layer.key, sized.kernels(), key, k_new));
  if (are_projected_into_place(a, {}))
    project_in_.add(projection_into(*a.grows, cached->values, layer.value, table, value, a.new_lengths));
  else if (a.value)
    project_in_.add(projection(layer.value, sized.kernels(), value, v_new));

  AttentionOptions options = a.options;
  if (a.cache) {
    const CacheLengths lengths = sized.lengths_in_cache(data + sized.lengths_at_);
    options.key_lengths = lengths.after;
    if (a.grows) options.query_offsets = lengths.before;
  }
  if (layer.query_steps() || layer.key_steps() || (a.grows && !are_projected_into_place(a, {}))) {
    head_rows_.emplace(table, memory.workers());
    add_head_rows(q, k_new, v_new, options);
  }
  MutableTensorView lse = record ? record->lse : MutableTensorView();
  if (layer.added.count() > 0) {
    shard_.emplace(layer.added, a, q, z, data + sized.added_at_, memory.workers(), table);
    options.sinks = shard_->lse();
    lse = shard_->total_lse();
  }
  const RaggedBatch rows = a.ragged && a.cache ? over_cache(*a.ragged) : RaggedBatch{};
  attend_plan_ =
      make_plan({"", q, k, v, z, lse, options, a.ragged && a.cache ? &rows : a.ragged, cached, rows.sequences},
                AttentionOutput::attended_values, table);
  attend_plan_.query_lengths = a.new_lengths;
  const SequenceTasks* tasks = a.ragged ? schedule(attend_plan_, data + sized.schedule_at_) : nullptr;
  attend_run_ = {&attend_plan_, memory.workers(), data + sized.sums_at_, tasks};
  if (sized.may_share_) attend_run_.shared = find_shared_spans(attend_plan_, data + sized.shared_at_, memory.workers());
  if (!a.weights) return;
  MutableTensorView columns = a.weights;  // the columns of added keys come last
  columns.extents[3] = key_length;
  weights_plan_ = make_plan({"", q, k, {}, columns, {}, options, nullptr, cached}, AttentionOutput::weights, table);
  weights_plan_.query_lengths = a.new_lengths;
  weights_run_ = {&weights_plan_, memory.workers(), nullptr};
}

/// Queries and new keys, whose positions are those that `options` give, and values that are still to go to the cache.
void AttentionCall::add_head_rows(const MutableTensorView& query, const MutableTensorView& key,
                                  const MutableTensorView& value, const AttentionOptions& options) {
  const LayerArguments& a = sized_.arguments_;
  HeadRows queries{sized_.layer_.query_steps(), query, options.query_offset, options.query_offsets};
  HeadRows keys{sized_.layer_.key_steps(), key};
  queries.row_counts = keys.row_counts = a.new_lengths;
  queries.positions = keys.positions = options.positions;
  if (a.ragged) {
    queries.starts = a.ragged->cu_seqlens_q;
    keys.starts = a.ragged->cu_seqlens_k;
    queries.sequences = keys.sequences = a.ragged->size;
  }
  if (a.grows) {
    const CacheMemory& memory = a.grows->storage().memory();
    keys.cache = memory.keys;
    keys.cache_scales = memory.key_scales;
    keys.tables = memory.tables;
    keys.first_positions = keys.first_rows = options.query_offsets;
    if (a.ragged) keys.cache_sequences = a.ragged->sequences;
  }
  head_rows_->add(queries);
  if (a.key && !are_projected_into_place(a, keys.steps)) head_rows_->add(keys);
  if (!a.grows || are_projected_into_place(a, {})) return;
  HeadRows values = keys;
  values.steps = {};
  values.rows = value;
  values.cache = a.grows->storage().memory().values;
  values.cache_scales = a.grows->storage().memory().value_scales;
  head_rows_->add(values);
}

int AttentionCall::phases(Phase* phases) const {
  phases[0] = projection_phase(project_in_);
  int count = 1;
  if (head_rows_) phases[count++] = head_rows_->phase();
  if (shard_) count += shard_->attend_phases(phases + count);
  count += attention_phases(attend_run_, phases + count);
  if (shard_) phases[count++] = shard_->join_phase();
  if (sized_.arguments_.weights) count += attention_phases(weights_run_, phases + count);
  return count;
}

}  // namespace mha
