#include "execute/block_call.hpp"

#include <algorithm>

namespace mha {

double BlockCall::work(const Block& block, const LayerArguments& self, const LayerArguments* cross) {
  const double rows = double(self.query.extents[0]) * double(self.query.extents[1]);
  double work = AttentionCall::work(*block.self_attention, self) + block.self_attention->out.work(rows);
  if (cross) work += AttentionCall::work(*block.cross_attention, *cross) + block.cross_attention->out.work(rows);
  return work + block.feed_forward->work(rows);
}

BlockCall::BlockCall(const Block& block, const LayerArguments& self, const LayerArguments* cross,
                     const KernelTable& table, int threads, Layout& layout)
    : block_(block),
      batch_(self.query.extents[0]),
      length_(self.query.extents[1]),
      embed_dim_(self.query.extents[2]),
      dtype_(block.self_attention->dtype()),
      self_(*block.self_attention, self, table, threads, layout),
      before_(new_chain(table, threads)),
      between_(new_chain(table, threads)),
      after_(new_chain(table, threads)) {
  if (cross) cross_.emplace(*block.cross_attention, *cross, table, threads, layout);
  const double row_bytes = double(embed_dim_) * size_of(dtype_);
  const double bytes = double(batch_) * double(length_) * row_bytes;
  normed_at_ = layout.take(block.norm_first ? bytes : 0);
  between_at_ = layout.take(cross ? bytes : 0);
  joined_ = after_.buffer(embed_dim_, layout);
  hidden_ = after_.buffer(block.feed_forward->up.segment_columns(), layout);
  if (cross) between_.prepare_for(block.self_attention->out);
  const PackedLinear& last_out = cross ? block.cross_attention->out : block.self_attention->out;
  for (const PackedLinear* linear : {&last_out, &block.feed_forward->up, &block.feed_forward->down})
    after_.prepare_for(*linear);
}

RowChain BlockCall::new_chain(const KernelTable& table, int threads) const {
  return {table.kernels[static_cast<int>(dtype_)], dtype_, batch_ * length_, threads};
}

std::size_t BlockCall::scratch_bytes() const {
  const std::size_t attention = std::max(self_.scratch_bytes(), cross_ ? cross_->scratch_bytes() : 0);
  return std::max({attention, between_.scratch_bytes(), after_.scratch_bytes()});
}

/// The end of a sublayer: its result and the residual stream become one, in the place of the result; `normed` is what
/// the next sublayer reads, if norms come first.
void BlockCall::join(RowChain& chain, int sublayer, const Rows& result, const Rows& residual,
                     const Rows& normed) const {
  if (!block_.norm_first) return chain.normalize(block_.norms[sublayer], result, residual, {}, result);
  const bool is_last = sublayer == (cross_ ? 2 : 1);
  if (is_last)
    chain.normalize(nullptr, result, residual, result, {});
  else
    chain.normalize(block_.norms[sublayer + 1], result, residual, result, normed);
}

void BlockCall::place(std::byte* memory, const Workers& workers, const TensorView& x, const TensorView& context,
                      const MutableTensorView& out) {
  const auto matrix_at = [&](std::size_t offset) {
    return TensorView(memory + offset, dtype_, {batch_, length_, embed_dim_});
  };
  for (RowChain* chain : {&before_, &between_, &after_}) chain->place(memory, workers);
  const TensorView normed = matrix_at(normed_at_);
  if (block_.norm_first) before_.normalize(block_.norms[0], rows_of(x), {}, {}, rows_of(normed));
  const TensorView self_input = block_.norm_first ? normed : x;
  self_.place(memory, workers, self_input, self_input, self_input);

  const AttentionCall* last_attention = &self_;
  const PackedLinear* last_out = &block_.self_attention->out;
  Rows residual = rows_of(x);
  int sublayer = 0;
  if (cross_) {
    const TensorView between = matrix_at(between_at_);
    between_.project(*last_out, Activation::none, rows_of(self_.heads()), rows_of(between));
    join(between_, sublayer++, rows_of(between), residual, rows_of(normed));
    residual = rows_of(between);
    cross_->place(memory, workers, block_.norm_first ? normed : between, context, context);
    last_attention = &*cross_;
    last_out = &block_.cross_attention->out;
  }

  const PackedFeedForward& feed_forward = *block_.feed_forward;
  const Rows result = rows_of(out);
  after_.project(*last_out, Activation::none, rows_of(last_attention->heads()), joined_);
  join(after_, sublayer++, joined_, residual, rows_of(normed));
  after_.project(feed_forward.up, feed_forward.activation, block_.norm_first ? rows_of(normed) : joined_, hidden_);
  after_.project(feed_forward.down, Activation::none, hidden_, result);
  join(after_, sublayer, result, joined_, {});
  if (block_.final_norm) after_.normalize(block_.final_norm, result, {}, {}, result);
}

int BlockCall::phases(Phase* phases) {
  int count = before_.phases(phases);
  count += self_.phases(phases + count);
  count += between_.phases(phases + count);
  if (cross_) count += cross_->phases(phases + count);
  return count + after_.phases(phases + count);
}

}  // namespace mha
