#include "added_keys.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

namespace mha {
namespace {

/// Rows of a task when shards are joined: 16 of 512 columns are some 5 us, many times what it takes to fetch a task.
constexpr Index kJoinRows = 16;

std::byte* element(const MutableTensorView& view, Index b, Index h, Index i) {
  return static_cast<std::byte*>(view.data) +
         (b * view.strides[0] + h * view.strides[1] + i * view.strides[2]) * size_of(view.dtype);
}

/// Calls visit(i, at) for element i of [Hk * columns], which is element `at` of [Hk, count, columns]: the first row of
/// its head.
template <class Visitor>
void for_first_rows(Index kv_heads, Index count, Index columns, Visitor visit) {
  for (Index i = 0; i < kv_heads * columns; ++i) visit(i, i / columns * count * columns + i % columns);
}

/// [Hk, count, columns], of which the first row of each head is given, if any; all else is zeros.
std::vector<std::byte> rows_of_heads(const TensorView& given, Index kv_heads, Index count, Index columns, DType dtype) {
  const Index size = size_of(dtype);
  std::vector<std::byte> rows(static_cast<std::size_t>(kv_heads * count * columns * size));
  if (given)
    for_first_rows(kv_heads, count, columns, [&](Index i, Index at) {
      std::memcpy(rows.data() + at * size, static_cast<const std::byte*>(given.data) + i * given.strides[0] * size,
                  static_cast<std::size_t>(size));
    });
  return rows;
}

}  // namespace

AddedKeys::AddedKeys(const MultiHeadAttentionConfig& config, const MultiHeadAttentionWeights& weights)
    : dtype_(weights.query_weight.dtype),
      has_bias_kv_(config.add_bias_kv),
      count_(config.added_keys()),
      kv_heads_(config.num_kv_heads),
      head_dim_(config.head_dim),
      value_head_dim_(config.value_head_dim),
      keys_(rows_of_heads(weights.added_key, kv_heads_, count_, head_dim_, dtype_)),
      values_(rows_of_heads(weights.added_value, kv_heads_, count_, value_head_dim_, dtype_)) {}

void AddedKeys::unpack(const MutableTensorView& key, const MutableTensorView& value) const {
  if (!has_bias_kv_) return;
  const Index size = size_of(dtype_);
  const auto unpack_rows = [&](const MutableTensorView& to, const std::vector<std::byte>& rows, Index columns) {
    if (to)
      for_first_rows(kv_heads_, count_, columns, [&](Index i, Index at) {
        std::memcpy(static_cast<std::byte*>(to.data) + i * to.strides[0] * size, rows.data() + at * size,
                    static_cast<std::size_t>(size));
      });
  };
  unpack_rows(key, keys_, head_dim_);
  unpack_rows(value, values_, value_head_dim_);
}

double AddedShard::bytes(const MultiHeadAttentionConfig& config, DType dtype, double rows) {
  const double of_head = double(config.value_head_dim) * size_of(dtype) + 2 * size_of(accumulator_of(dtype));
  return rows * double(config.num_heads) * of_head;
}

AddedShard::AddedShard(const AddedKeys& keys, const LayerArguments& call, const TensorView& query,
                       const MutableTensorView& out, std::byte* memory, const KernelTable& table)
    : out_(out), shard_out_(out) {
  const auto [batch, heads, query_length, value_dim] = out.extents;
  const Index rows = batch * query_length;
  const auto lse_at = [&, b = batch, h = heads, t = query_length](std::byte* data) {
    return MutableTensorView(data, accumulator_of(out.dtype), {b, h, t}, {t * h, 1, h});
  };
  // Accumulators come first: they are not narrower than the elements.
  lse_ = lse_at(memory);
  total_lse_ = lse_at(memory + rows * heads * size_of(lse_.dtype));
  shard_out_.data = memory + 2 * rows * heads * size_of(lse_.dtype);

  AttentionOptions options;  // masks, positions and lengths are about the keys of the call
  options.scale = call.options.scale;
  options.softcap = call.options.softcap;
  options.sinks = call.options.sinks;
  attend_plan_ = make_plan({"", query, keys.keys(batch), keys.values(batch), shard_out_, lse_, options},
                           AttentionOutput::attended_values, table);
  attend_plan_.query_lengths = call.new_lengths;
  if (!call.weights) return;
  weights_ = call.weights;
  weights_.data = static_cast<std::byte*>(weights_.data) + call.key_length * weights_.strides[3] * size_of(out.dtype);
  weights_.extents[3] = keys.count();
  weigh_plan_ = make_plan({"", query, keys.keys(batch), {}, weights_, {}, options}, AttentionOutput::weights, table);
  weigh_plan_.query_lengths = call.new_lengths;
}

int AddedShard::attend_phases(const AttentionRun& workers, Phase* phases) {
  attend_ = weigh_ = {nullptr, workers.threads, workers.scratch, workers.scratch_stride, nullptr};
  attend_.plan = &attend_plan_;
  weigh_.plan = &weigh_plan_;
  int count = attention_phases(attend_, phases);  // so few keys are one span
  if (weights_) count += attention_phases(weigh_, phases + count);
  return count;
}

Phase AddedShard::join_phase() const {
  return {(out_.extents[0] * out_.extents[2] + kJoinRows - 1) / kJoinRows, &run_join, this};
}

void AddedShard::run_join(const void* context, Index task, int) {
  const AddedShard& shard = *static_cast<const AddedShard*>(context);
  const Index rows = shard.out_.extents[0] * shard.out_.extents[2];
  for (Index row = task * kJoinRows; row < std::min(rows, (task + 1) * kJoinRows); ++row)
    if (shard.out_.dtype == DType::f64)
      shard.join_row<double>(row);
    else
      shard.join_row<float>(row);
}

template <class T>
void AddedShard::join_row(Index row) const {
  const Index b = row / out_.extents[2], i = row % out_.extents[2];
  for (Index h = 0; h < out_.extents[1]; ++h) {
    const T lse = *reinterpret_cast<const T*>(element(lse_, b, h, i));
    const T total = *reinterpret_cast<const T*>(element(total_lse_, b, h, i));
    // A row of padding sees nothing at all.
    const bool sees_nothing = lse == -std::numeric_limits<T>::infinity();
    const T share = sees_nothing ? T(0) : static_cast<T>(std::exp(double(lse) - double(total)));
    T* const out = reinterpret_cast<T*>(element(out_, b, h, i));
    const T* const own = reinterpret_cast<const T*>(element(shard_out_, b, h, i));
    for (Index d = 0; d < out_.extents[3]; ++d) out[d] += share * own[d];
    if (!weights_) continue;
    T* const weights = reinterpret_cast<T*>(element(weights_, b, h, i));
    for (Index k = 0; k < weights_.extents[3]; ++k) weights[k * weights_.strides[3]] *= share;
  }
}

}  // namespace mha
