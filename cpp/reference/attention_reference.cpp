// The textbook equation, loop by loop.
#include "attention_reference.hpp"

#include <algorithm>
#include <cmath>
#include <initializer_list>
#include <limits>
#include <memory>

namespace mha::reference {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

/// The element at `index`, aligned to the last axis. Missing leading axes and axes of extent 1 broadcast.
double at(const TensorView& view, std::initializer_list<Index> index) {
  const Index* position = index.end();
  Index offset = 0;
  for (int axis = view.rank - 1; axis >= 0; --axis) {
    --position;
    if (view.extents[axis] != 1) offset += *position * view.strides[axis];
  }
  switch (view.dtype) {
    case DType::f32:
      return static_cast<const float*>(view.data)[offset];
    case DType::f64:
      return static_cast<const double*>(view.data)[offset];
    default:
      return static_cast<const unsigned char*>(view.data)[offset];
  }
}

/// The extent of the axis that is `from_last` places before the last one; a missing leading axis counts 1.
Index extent(const TensorView& view, int from_last) {
  return view.rank > from_last ? view.extents[view.rank - 1 - from_last] : 1;
}

/// Of query i among the keys.
Index position_of(const AttentionOptions& options, Index b, Index i) {
  return (options.query_offsets ? options.query_offsets[b] : options.query_offset) + i;
}

bool takes_part(const AttentionOptions& options, Index b, Index h, Index i, Index j) {
  const Index position = position_of(options, b, i);
  if (options.is_causal && j > position) return false;
  if (options.window_left >= 0 && j < position - options.window_left) return false;
  if (options.window_right >= 0 && j > position + options.window_right) return false;
  if (options.key_lengths && j >= options.key_lengths[b]) return false;
  if (options.key_mask && at(options.key_mask, {b, j}) == 0) return false;
  if (options.block_mask && at(options.block_mask, {b, h, i / 64, j / 64}) == 0) return false;
  if (!options.attn_mask) return true;
  const double mask = at(options.attn_mask, {b, h, i, j});
  return options.attn_mask.dtype == DType::boolean ? mask != 0 : mask != -kInfinity;
}

/// Caps a scaled score.
double capped(double score, const AttentionOptions& options) {
  return options.softcap > 0 ? options.softcap * std::tanh(score / options.softcap) : score;
}

/// Biases a capped score.
double biased(double score, const AttentionOptions& options, Index b, Index h, Index i, Index j) {
  if (options.attn_mask && options.attn_mask.dtype != DType::boolean) score += at(options.attn_mask, {b, h, i, j});
  if (options.alibi_slopes)
    score -= at(options.alibi_slopes, {b, h}) * std::abs(static_cast<double>(position_of(options, b, i) - j));
  if (options.position_bias) {
    const Index farthest = options.position_bias.extents[1] / 2;
    const Index distance = std::clamp(j - position_of(options, b, i), -farthest, farthest);
    score += at(options.position_bias, {h, distance + farthest});
  }
  return score;
}

/// A dense [rows..., features] array of doubles that a layer hands from one step to the next.
struct Dense {
  std::vector<double> data;
  TensorView view;
};

/// x W^T + b, laid out as [B, heads, T, features of one head].
Dense project_heads(const TensorView& x, const LinearWeights& linear, Index heads) {
  const TensorView &weight = linear.weight, &bias = linear.bias;
  const Index batch = extent(x, 2), length = extent(x, 1), in = extent(x, 0), width = weight.extents[0] / heads;
  Dense result{std::vector<double>(static_cast<std::size_t>(batch * heads * length * width)), {}};
  result.view = TensorView(result.data.data(), {batch, heads, length, width});
  double* target = result.data.data();
  for (Index b = 0; b < batch; ++b)
    for (Index h = 0; h < heads; ++h)
      for (Index t = 0; t < length; ++t)
        for (Index d = 0; d < width; ++d) {
          double sum = bias ? at(bias, {h * width + d}) : 0.0;
          for (Index e = 0; e < in; ++e) sum += at(x, {b, t, e}) * at(weight, {h * width + d, e});
          *target++ = sum;
        }
  return result;
}

/// Every row sees the last `added` keys, which are neither biased nor masked.
Attention attention(const TensorView& query, const TensorView& key, const TensorView& value,
                    const AttentionOptions& options, Index added) {
  const Index batch = extent(query, 3), heads = extent(query, 2), queries = extent(query, 1),
              head_dim = extent(query, 0);
  const Index kv_heads = extent(key, 2), keys = extent(key, 1), value_dim = extent(value, 0);
  // With no head dimension every score is 0, and the default scale must not turn it into NaN.
  const double default_scale = head_dim > 0 ? 1.0 / std::sqrt(static_cast<double>(head_dim)) : 1.0;
  const double scale = std::isnan(options.scale) ? default_scale : options.scale;

  Attention result;
  std::vector<double> scores(static_cast<std::size_t>(keys));
  const auto seen = std::make_unique<bool[]>(scores.size());
  double* const score = scores.data();
  bool* const sees = seen.get();
  for (Index b = 0; b < batch; ++b)
    for (Index h = 0; h < heads; ++h)
      for (Index i = 0; i < queries; ++i) {
        const Index hk = h / (heads / kv_heads);
        const double sink = options.sinks ? at(options.sinks, {h}) : -kInfinity;
        double maximum = sink;
        for (Index j = 0; j < keys; ++j) {
          const bool is_added = j >= keys - added;
          sees[j] = is_added || takes_part(options, b, h, i, j);
          if (!is_added && options.key_lengths && j >= options.key_lengths[b]) {  // there is nothing to read
            for (auto* stage : {&result.scaled, &result.capped, &result.masked}) stage->push_back(-kInfinity);
            continue;
          }
          double dot = 0;
          for (Index d = 0; d < head_dim; ++d) dot += at(query, {b, h, i, d}) * at(key, {b, hk, j, d});
          result.scaled.push_back(scale * dot);
          result.capped.push_back(capped(scale * dot, options));
          score[j] = is_added ? result.capped.back() : biased(result.capped.back(), options, b, h, i, j);
          result.masked.push_back(sees[j] ? score[j] : -kInfinity);
          if (!sees[j]) continue;
          if (score[j] > maximum) maximum = score[j];
        }
        if (maximum == -kInfinity) maximum = 0;  // nothing at all: the exponentials below are 0
        double sum = std::exp(sink - maximum);
        for (Index j = 0; j < keys; ++j)
          if (sees[j]) sum += std::exp(score[j] - maximum);
        result.lse.push_back(maximum + std::log(sum));
        for (Index j = 0; j < keys; ++j) result.weights.push_back(sees[j] ? std::exp(score[j] - maximum) / sum : 0.0);
        const double* weight = result.weights.data() + (Index(result.weights.size()) - keys);
        for (Index d = 0; d < value_dim; ++d) {
          double out = 0;
          for (Index j = 0; j < keys; ++j)
            if (sees[j]) out += weight[j] * at(value, {b, hk, j, d});
          result.out.push_back(out);
        }
      }
  return result;
}

/// Projected rows, [B, Hk, T, columns], and after the rows of each head the rows that a layer adds: `given`, [Hk *
/// columns] or empty, and zeros.
Dense with_added_rows(const Dense& x, const TensorView& given, bool add_zeros) {
  const auto [batch, heads, length, columns] = x.view.extents;
  const Index total = length + Index{bool(given)} + Index{add_zeros};
  Dense result;
  for (Index b = 0; b < batch; ++b)
    for (Index h = 0; h < heads; ++h)
      for (Index t = 0; t < total; ++t)
        for (Index c = 0; c < columns; ++c)
          result.data.push_back(t < length             ? at(x.view, {b, h, t, c})
                                : t == length && given ? at(given, {h * columns + c})
                                                       : 0.0);
  result.view = TensorView(result.data.data(), {batch, heads, total, columns});
  return result;
}

}  // namespace

Attention scaled_dot_product_attention(const TensorView& query, const TensorView& key, const TensorView& value,
                                       const AttentionOptions& options) {
  return attention(query, key, value, options, 0);
}

Attention multi_head_attention(const MultiHeadAttentionConfig& config, const MultiHeadAttentionWeights& weights,
                               const TensorView& query, const TensorView& key, const TensorView& value,
                               const AttentionOptions& options) {
  const Index heads = config.num_heads, kv_heads = config.num_kv_heads > 0 ? config.num_kv_heads : heads;
  const Dense q = project_heads(query, weights.query, heads);
  const Dense k = project_heads(key, weights.key, kv_heads);
  const Dense v = project_heads(value, weights.value, kv_heads);
  const Dense keys = with_added_rows(k, weights.added_key, config.add_zero_attn);
  const Dense values = with_added_rows(v, weights.added_value, config.add_zero_attn);
  Attention result = attention(q.view, keys.view, values.view, options, config.added_keys());

  // concat(head_1 ... head_H): [B, H, Tq, Dv] read as [B, Tq, H * Dv].
  const Index batch = extent(query, 2), queries = extent(query, 1), width = extent(v.view, 0);
  std::vector<double> concatenated;
  for (Index b = 0; b < batch; ++b)
    for (Index i = 0; i < queries; ++i)
      for (Index h = 0; h < heads; ++h)
        for (Index d = 0; d < width; ++d)
          concatenated.push_back(result.out.data()[((b * heads + h) * queries + i) * width + d]);
  const TensorView heads_view(concatenated.data(), {batch, queries, heads * width});
  result.out = project_heads(heads_view, weights.out, 1).data;
  return result;
}

}  // namespace mha::reference
