// The layers that take each row by itself: LayerNorm and FeedForward.
#include <limits>
#include <optional>

#include "checks/transformer.hpp"
#include "checks/weights.hpp"
#include "execute/dense_rows.hpp"
#include "execute/row_chain.hpp"
#include "mha/transformer.hpp"
#include "platform/dispatch.hpp"
#include "views/copy_elements.hpp"
#include "weights/packed_feed_forward.hpp"

namespace mha {
namespace {

/// One call that is a chain of steps over the rows of x: buffers first, then place(), then steps, then run().
class RowCall {
 public:
  RowCall(DType dtype, const TensorView& x, const MutableTensorView& out, int num_threads, double work_of_row)
      : rows_(x, out, layout),
        threads_(threads_for(num_threads, std::numeric_limits<Index>::max(), double(rows_.count()) * work_of_row)),
        chain(active_kernels().kernels[static_cast<int>(dtype)], dtype, rows_.count(), threads_) {}

  void place() {
    const std::size_t stride = padded(chain.scratch_bytes());
    const std::size_t scratch_at = layout.take(double(threads_) * double(stride));
    std::byte* const memory = workspace_.emplace(layout.total()).data();
    chain.place(memory, {threads_, memory + scratch_at, stride});
    rows_.gather(memory);
  }
  Rows x() const { return rows_of(rows_.x()); }
  Rows out() const { return rows_of(rows_.out()); }
  void run() {
    Phase phases[RowChain::kMostSteps];
    run_phases(phases, chain.phases(phases), threads_);
    rows_.scatter();
  }

  Layout layout;

 private:
  DenseRows rows_;
  int threads_;
  std::optional<Workspace> workspace_;

 public:
  RowChain chain;
};

/// Multiply-adds that the time of normalizing an element is worth: memory and a few additions.
constexpr double kNormWork = 8;

}  // namespace

LayerNorm::LayerNorm(const TensorView& weight, const TensorView& bias, double eps) {
  validate_norm(weight, bias, eps);
  weights_ = std::make_shared<const NormWeights>(weight, bias, eps);
}

void LayerNorm::forward(const TensorView& x, const MutableTensorView& out, int num_threads) const {
  validate_rows("LayerNorm", dtype(), embed_dim(), x, out);
  RowCall call(dtype(), x, out, num_threads, kNormWork * double(embed_dim()));
  call.place();
  call.chain.normalize(weights_.get(), call.x(), {}, {}, call.out());
  call.run();
}

Index LayerNorm::embed_dim() const { return weights_->embed_dim; }
double LayerNorm::eps() const { return weights_->eps; }
bool LayerNorm::has_bias() const { return weights_->has_bias; }
DType LayerNorm::dtype() const { return weights_->dtype; }

void LayerNorm::copy_weights(const MutableTensorView& weight, const MutableTensorView& bias) const {
  check_copy("LayerNorm.copy_weights", "weight", weight, dtype(), {embed_dim()});
  check_copy("LayerNorm.copy_weights", "bias", bias, dtype(), {embed_dim()});
  if (weight) copy_elements({weights_->weight(), dtype(), {embed_dim()}}, weight);
  if (bias && has_bias()) copy_elements({weights_->bias(), dtype(), {embed_dim()}}, bias);
}

FeedForward::FeedForward(const FeedForwardWeights& weights, Activation activation, WeightFormat weight_format) {
  validate_feed_forward(weights, weight_format);
  packed_ = std::make_shared<const PackedFeedForward>(weights, activation, weight_format);
}

void FeedForward::forward(const TensorView& x, const MutableTensorView& out, int num_threads) const {
  validate_rows("FeedForward", dtype(), embed_dim(), x, out);
  RowCall call(dtype(), x, out, num_threads, packed_->work(1));
  const Rows hidden = call.chain.buffer(feedforward_dim(), call.layout);
  for (const PackedLinear* linear : {&packed_->up, &packed_->down}) call.chain.prepare_for(*linear);
  call.place();
  call.chain.project(packed_->up, packed_->activation, call.x(), hidden);
  call.chain.project(packed_->down, Activation::none, hidden, call.out());
  call.run();
}

Index FeedForward::embed_dim() const { return packed_->up.in_features(); }
Index FeedForward::feedforward_dim() const { return packed_->down.in_features(); }
Activation FeedForward::activation() const { return packed_->activation; }
bool FeedForward::has_bias1() const { return packed_->up.has_bias(); }
bool FeedForward::has_bias2() const { return packed_->down.has_bias(); }
DType FeedForward::dtype() const { return packed_->up.dtype(); }
WeightFormat FeedForward::weight_format() const { return packed_->up.format(); }

void FeedForward::copy_weights(const WeightOutputs& outputs) const {
  validate(*this, outputs);
  packed_->up.unpack(outputs.weight1, outputs.bias1, outputs.scale1);
  packed_->down.unpack(outputs.weight2, outputs.bias2, outputs.scale2);
}

}  // namespace mha
