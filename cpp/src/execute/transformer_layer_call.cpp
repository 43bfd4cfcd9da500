#include "execute/transformer_layer_call.hpp"

#include <algorithm>

namespace mha {

double TransformerLayerCall::work(const PackedTransformerLayer& layer, const LayerArguments& self,
                                  const LayerArguments* cross) {
  const double rows = double(self.query.extents[0]) * double(self.query.extents[1]);
  double work = AttentionCall::work(*layer.self_attention, self) + layer.self_attention->out.work(rows);
  if (cross) work += AttentionCall::work(*layer.cross_attention, *cross) + layer.cross_attention->out.work(rows);
  return work + layer.feed_forward_work(rows);
}

SizedTransformerLayerCall::SizedTransformerLayerCall(const PackedTransformerLayer& layer, const LayerArguments& self,
                                                     const LayerArguments* cross, const KernelTable& table, int threads,
                                                     Layout& layout)
    : layer_(layer),
      batch_(self.query.extents[0]),
      length_(self.query.extents[1]),
      embed_dim_(self.query.extents[2]),
      dtype_(layer.self_attention->dtype()),
      self_(*layer.self_attention, self, table, threads, layout),
      before_(row_steps(table, threads)),
      between_(row_steps(table, threads)),
      after_(row_steps(table, threads)),
      last_(row_steps(table, threads)) {
  if (cross) cross_.emplace(*layer.cross_attention, *cross, table, threads, layout);
  const double row_bytes = double(embed_dim_) * size_of(dtype_);
  const double bytes = double(batch_) * double(length_) * row_bytes;
  normed_at_ = layout.take(layer.has_norm_before() ? bytes : 0);
  between_at_ = layout.take(cross ? bytes : 0);
  joined_at_ = layout.take(layer.experts ? bytes : 0);
  if (layer.experts) {
    experts_.emplace(*layer.experts, table, batch_ * length_, layout);
  } else {
    joined_ = after_.buffer(embed_dim_, layout);
    hidden_ = after_.buffer(layer.feed_forward->up.segment_columns(), layout);
    after_.reserve_for(*layer.feed_forward);
  }
  if (cross) between_.reserve_for(layer.self_attention->out);
  const PackedLinear& last_out = cross ? layer.cross_attention->out : layer.self_attention->out;
  after_.reserve_for(last_out);
}

SizedRowSteps SizedTransformerLayerCall::row_steps(const KernelTable& table, int threads) const {
  return {table.kernels[static_cast<int>(dtype_)], dtype_, batch_ * length_, threads};
}

std::size_t SizedTransformerLayerCall::scratch_bytes() const {
  const std::size_t attention = std::max(self_.scratch_bytes(), cross_ ? cross_->scratch_bytes() : 0);
  const std::size_t experts = experts_ ? experts_->scratch_bytes() : 0;
  return std::max({attention, between_.scratch_bytes(), after_.scratch_bytes(), experts});
}

TransformerLayerCall::TransformerLayerCall(const SizedTransformerLayerCall& sized, const CallMemory& memory,
                                           const TensorView& x, const TensorView& context, const MutableTensorView& out)
    : sized_(sized),
      normed_(sized.matrix_at(memory.data() + sized.normed_at_)),
      before_(sized.before_, memory),
      between_(sized.between_, memory),
      after_(sized.after_, memory),
      last_(sized.last_, memory),
      self_(sized.self_, memory, input(0, x), input(0, x), input(0, x)) {
  const PackedTransformerLayer& layer = sized.layer_;
  if (const NormWeights* norm = layer.norm_before(0)) before_.normalize(norm, rows_of(x), {}, {}, rows_of(normed_));

  const AttentionCall* last_attention = &self_;
  const PackedLinear* last_out = &layer.self_attention->out;
  Rows residual = rows_of(x);
  int sublayer = 0;
  if (sized.cross_) {
    const TensorView between = sized.matrix_at(memory.data() + sized.between_at_);
    between_.project(*last_out, Activation::none, rows_of(self_.heads()), rows_of(between));
    join(between_, sublayer++, rows_of(between), residual);
    residual = rows_of(between);
    cross_.emplace(*sized.cross_, memory, input(sublayer, between), context, context);
    last_attention = &*cross_;
    last_out = &layer.cross_attention->out;
  }

  const Rows result = rows_of(out);
  const Rows joined = sized.experts_ ? rows_of(sized.matrix_at(memory.data() + sized.joined_at_)) : sized.joined_;
  after_.project(*last_out, Activation::none, rows_of(last_attention->heads()), joined);
  join(after_, sublayer++, joined, residual);
  const Rows given = input_of_feed_forward(sublayer, residual, joined);
  RowSteps& steps = sized.experts_ ? last_ : after_;
  if (sized.experts_)
    experts_.emplace(*sized.experts_, memory, given, result);
  else
    steps.feed_forward(*layer.feed_forward, given, sized.hidden_, result);
  join(steps, sublayer, result, joined);
  if (layer.final_norm) steps.normalize(layer.final_norm, result, {}, {}, result);
}

/// The rows that the feed-forward reads: with `joined`, the stream after the sublayers before it.
Rows TransformerLayerCall::input_of_feed_forward(int sublayer, const Rows& x, const Rows& joined) const {
  const PackedTransformerLayer& layer = sized_.layer_;
  if (layer.norm_before(sublayer) || (layer.is_parallel() && layer.norm_before(0))) return rows_of(normed_);
  return layer.is_parallel() ? x : joined;
}

/// The end of a sublayer: adds its result, after its output norm, to the residual stream, in the place of the
/// result. Writes the input of the next sublayer, too, if it differs.
void TransformerLayerCall::join(RowSteps& steps, int sublayer, const Rows& result, const Rows& residual) const {
  const PackedTransformerLayer& layer = sized_.layer_;
  if (const NormWeights* norm = layer.output_norms[sublayer]) steps.normalize(norm, result, {}, {}, result);
  if (const NormWeights* norm = layer.norm_after(sublayer)) return steps.normalize(norm, result, residual, {}, result);
  const NormWeights* next = layer.norm_before(sublayer + 1);
  if (layer.is_parallel()) {  // the next sublayer reads the rows that this one has read
    if (next) steps.normalize(next, residual, {}, {}, rows_of(normed_));
    next = nullptr;
  }
  steps.normalize(next, result, residual, result, next ? rows_of(normed_) : Rows());
}

void TransformerLayerCall::run(int threads) {
  Phase phases[kMostLayerPhases];
  int count = first_phases(phases);
  for (Index part = 0; sized_.experts_ && part < sized_.experts_->parts(); ++part) {
    if (part > 0) {  // its phases replace the phases of the part before
      run_phases(phases, count, threads);
      count = 0;
    }
    count += experts_->phases(part, phases + count);
  }
  count += last_.phases(phases + count);
  run_phases(phases, count, threads);
}

int TransformerLayerCall::first_phases(Phase* phases) const {
  int count = before_.phases(phases);
  count += self_.phases(phases + count);
  count += between_.phases(phases + count);
  if (cross_) count += cross_->phases(phases + count);
  return count + after_.phases(phases + count);
}

}  // namespace mha
