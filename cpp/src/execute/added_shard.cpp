#include "execute/added_shard.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

#include "mha/half_precision.hpp"

namespace mha {
namespace {

/// Rows of a task when shards are joined. With 8 heads that is 128 exponentials of some 20 ns, many times as long as
/// fetching a task.
constexpr Index kJoinRows = 16;

std::byte* element(const MutableTensorView& view, Index b, Index h, Index i) {
  return static_cast<std::byte*>(view.data) +
         (b * view.strides[0] + h * view.strides[1] + i * view.strides[2]) * size_of(view.dtype);
}

}  // namespace

double AddedShard::bytes(const MultiHeadAttentionConfig& config, DType dtype, double rows) {
  const double of_head = double(config.value_head_dim) * size_of(dtype) + 2 * size_of(accumulator_of(dtype));
  return rows * double(config.num_heads) * of_head;
}

AddedShard::AddedShard(const AddedKeys& keys, const LayerArguments& call, const TensorView& query,
                       const MutableTensorView& out, std::byte* memory, const Workers& workers,
                       const KernelTable& table)
    : out_(out), shard_out_(out) {
  const auto [batch, heads, query_length, value_dim] = out.extents;
  const Index rows = batch * query_length;
  const auto lse_at = [&, b = batch, h = heads, t = query_length](std::byte* data) {
    return MutableTensorView(data, accumulator_of(out.dtype), {b, h, t}, {t * h, 1, h});
  };
  // Accumulators come first: they are not narrower than the elements.
  lse_ = lse_at(memory);
  total_lse_ = call.record ? call.record->lse : lse_at(memory + rows * heads * size_of(lse_.dtype));
  shard_out_.data = memory + 2 * rows * heads * size_of(lse_.dtype);

  AttentionOptions options;  // masks, positions and lengths are about the keys of the call
  options.scale = call.options.scale;
  options.softcap = call.options.softcap;
  options.sinks = call.options.sinks;
  attend_plan_ = make_plan({"", query, keys.keys(batch), keys.values(batch), shard_out_, lse_, options},
                           AttentionOutput::attended_values, table);
  attend_plan_.query_lengths = call.new_lengths;
  attend_run_ = {&attend_plan_, workers, nullptr};  // so few keys are one span
  if (!call.weights) return;
  weights_ = call.weights;
  weights_.data = static_cast<std::byte*>(weights_.data) + call.key_length * weights_.strides[3] * size_of(out.dtype);
  weights_.extents[3] = keys.count();
  weights_plan_ = make_plan({"", query, keys.keys(batch), {}, weights_, {}, options}, AttentionOutput::weights, table);
  weights_plan_.query_lengths = call.new_lengths;
  weights_run_ = {&weights_plan_, workers, nullptr};
}

int AddedShard::attend_phases(Phase* phases) const {
  int count = attention_phases(attend_run_, phases);
  if (weights_) count += attention_phases(weights_run_, phases + count);
  return count;
}

Phase AddedShard::join_phase() const {
  return {(out_.extents[0] * out_.extents[2] + kJoinRows - 1) / kJoinRows, &run_join, this};
}

void AddedShard::run_join(const void* context, Index task, int) {
  const AddedShard& shard = *static_cast<const AddedShard*>(context);
  const Index rows = shard.out_.extents[0] * shard.out_.extents[2];
  for (Index row = task * kJoinRows; row < std::min(rows, (task + 1) * kJoinRows); ++row) switch (shard.out_.dtype) {
#define MHA_DTYPE(name, scalar, accumulator)  \
  case DType::name:                           \
    shard.join_row<scalar, accumulator>(row); \
    break;
#include "mha/dtypes.def"
#undef MHA_DTYPE
      case DType::boolean:
      case DType::int8:
        break;
    }
}

template <class Element, class Sum>
void AddedShard::join_row(Index row) const {
  const Index b = row / out_.extents[2], i = row % out_.extents[2];
  for (Index h = 0; h < out_.extents[1]; ++h) {
    const Sum lse = *reinterpret_cast<const Sum*>(element(lse_, b, h, i));
    const Sum total = *reinterpret_cast<const Sum*>(element(total_lse_, b, h, i));
    // Padding sees no key at all; then the difference is between two infinities.
    const bool sees_nothing = lse == -std::numeric_limits<Sum>::infinity();
    const Sum share = sees_nothing ? Sum(0) : static_cast<Sum>(std::exp(double(lse) - double(total)));
    auto* const out = reinterpret_cast<Element*>(element(out_, b, h, i));
    const auto* const own = reinterpret_cast<const Element*>(element(shard_out_, b, h, i));
    for (Index d = 0; d < out_.extents[3]; ++d)
      out[d] = from_double<Element>(static_cast<Sum>(to_double(out[d])) + share * static_cast<Sum>(to_double(own[d])));
    if (!weights_) continue;
    auto* const weights = reinterpret_cast<Element*>(element(weights_, b, h, i));
    for (Index k = 0; k < weights_.extents[3]; ++k) {
      Element& weight = weights[k * weights_.strides[3]];
      weight = from_double<Element>(static_cast<Sum>(to_double(weight)) * share);
    }
  }
}

}  // namespace mha
