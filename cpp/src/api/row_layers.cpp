// The layers that take each row by itself: norms, Linear and FeedForward.
#include <limits>
#include <stdexcept>

#include "checks/rules.hpp"
#include "checks/transformer.hpp"
#include "checks/weights.hpp"
#include "execute/dense_rows.hpp"
#include "execute/row_steps.hpp"
#include "mha/linear.hpp"
#include "mha/transformer.hpp"
#include "platform/dispatch.hpp"
#include "platform/floating_point_state.hpp"
#include "views/copy_elements.hpp"
#include "weights/blocks.hpp"
#include "weights/packed_feed_forward.hpp"

namespace mha {
namespace {

/// The sizes of one call, before there is memory.
struct SizedRowCall {
  SizedRowCall(DType dtype, const TensorView& x, const MutableTensorView& out, int num_threads, double work_of_row,
               bool in_place = true)
      : rows(x, out, in_place, layout),
        threads(threads_for(num_threads, std::numeric_limits<Index>::max(), double(rows.count()) * work_of_row)),
        steps(active_kernels().kernels[static_cast<int>(dtype)], dtype, rows.count(), threads) {}

  Layout layout;
  DenseRows rows;
  const int threads;
  SizedRowSteps steps;
};

/// The call, over memory: steps are added, and then run.
struct RowCall {
  explicit RowCall(const SizedRowCall& sized)
      : memory(sized.layout, sized.threads, sized.steps.scratch_bytes()), rows(sized.rows), steps(sized.steps, memory) {
    rows.gather(memory.data());
  }

  Rows x() const { return rows_of(rows.x()); }
  Rows out() const { return rows_of(rows.out()); }
  void run() const {
    Phase phases[RowSteps::kMostSteps];
    run_phases(phases, steps.phases(phases), memory.workers().threads);
    rows.scatter();
  }

  const CallMemory memory;
  DenseRows rows;
  RowSteps steps;
};

/// out = x W^T + b
void project(const PackedLinear& packed, const TensorView& x, const MutableTensorView& out, int num_threads) {
  SizedRowCall sized(packed.dtype(), x, out, num_threads, packed.work(1), false);
  sized.steps.reserve_for(packed);
  RowCall call(sized);
  call.steps.project(packed, Activation::none, call.x(), call.out());
  call.run();
}

/// Multiply-adds that the time of dequantizing a number is worth.
constexpr double kDequantizingWork = 8;

/// The state of the tasks of dequantize(), each of one row.
struct RowsOfBlocks {
  LinearWeights weights;
  MutableTensorView out;

  static void dequantize_row(const void* context, Index row, int) {
    const FloatingPointState state(Subnormals::kept);
    const RowsOfBlocks& all = *static_cast<const RowsOfBlocks*>(context);
    const TensorView& matrix = all.weights.weight;
    dequantize_blocks(all.weights.block_format, static_cast<const std::byte*>(matrix.data) + row * matrix.strides[0],
                      all.out.extents[1] / block_features(all.weights.block_format),
                      static_cast<float*>(all.out.data) + row * all.out.strides[0]);
  }
};

/// Multiply-adds that the time of normalizing an element is worth: memory and a few additions.
constexpr double kNormWork = 8;

/// The name of a norm in messages.
const char* name_of(NormKind kind) { return kind == NormKind::layer ? "LayerNorm" : "RMSNorm"; }

}  // namespace

Norm::Norm(NormKind kind, const TensorView& weight, const TensorView& bias, double eps) {
  validate_norm(name_of(kind), weight, bias, eps);
  weights_ = std::make_shared<const NormWeights>(kind, weight, bias, eps);
}

LayerNorm::LayerNorm(const TensorView& weight, const TensorView& bias, double eps)
    : Norm(NormKind::layer, weight, bias, eps) {}

RMSNorm::RMSNorm(const TensorView& weight, double eps, bool unit_offset)
    : Norm(unit_offset ? NormKind::rms_unit_offset : NormKind::rms, weight, {}, eps) {}

void Norm::forward(const TensorView& x, const MutableTensorView& out, int num_threads) const {
  const FloatingPointState state;
  validate_rows(name_of(kind()), dtype(), embed_dim(), x, out);
  RowCall call(SizedRowCall(dtype(), x, out, num_threads, kNormWork * double(embed_dim())));
  call.steps.normalize(weights_.get(), call.x(), {}, {}, call.out());
  call.run();
}

NormKind Norm::kind() const { return weights_->kind; }
Index Norm::embed_dim() const { return weights_->embed_dim; }
double Norm::eps() const { return weights_->eps; }
bool Norm::has_bias() const { return weights_->has_bias; }
DType Norm::dtype() const { return weights_->dtype; }

void Norm::copy_weights(const MutableTensorView& weight, const MutableTensorView& bias) const {
  const char* const f = kind() == NormKind::layer ? "LayerNorm.copy_weights" : "RMSNorm.copy_weights";
  check_copy(f, "weight", weight, dtype(), {embed_dim()});
  check_copy(f, "bias", bias, dtype(), {embed_dim()});
  if (weight) copy_elements({weights_->weight(), dtype(), {embed_dim()}}, weight);
  if (bias && has_bias()) copy_elements({weights_->bias(), dtype(), {embed_dim()}}, bias);
}

void add_and_normalize(const TensorView& x, const TensorView& residual, const Norm* norm, const MutableTensorView& sum,
                       const MutableTensorView& out, int num_threads) {
  const FloatingPointState state;
  validate_add_and_normalize(norm, x, residual, sum, out);
  const SizedRowCall sized(x.dtype, x, sum, num_threads, kNormWork * double(x.extents[x.rank - 1]));
  RowCall call(sized);
  const Index columns = x.extents[x.rank - 1], row_bytes = columns * size_of(x.dtype);
  const Rows added{static_cast<std::byte*>(const_cast<void*>(residual.data)), row_bytes, columns};
  const Rows normed = out ? Rows{static_cast<std::byte*>(out.data), row_bytes, columns} : Rows();
  call.steps.normalize(norm ? &norm->weights() : nullptr, call.x(), added, call.out(), normed);
  call.run();
}

Linear::Linear(const LinearWeights& weights, WeightFormat weight_format) {
  const FloatingPointState state(Subnormals::kept);
  validate_linear("Linear", weights, weight_format);
  packed_ = std::make_shared<const PackedLinear>(weights, weights.out_features(), weight_format);
}

void Linear::forward(const TensorView& x, const MutableTensorView& out, int num_threads) const {
  const FloatingPointState state;
  validate_linear_rows("Linear", dtype(), in_features(), out_features(), x, out);
  project(*packed_, x, out, num_threads);
}

void linear(const TensorView& x, const LinearWeights& weights, const MutableTensorView& out, int num_threads) {
  constexpr char f[] = "linear";
  const FloatingPointState state;
  validate_linear(f, weights, WeightFormat::plain);
  const DType dtype = has_blocks(weights.block_format) ? DType::f32 : weights.weight.dtype;
  validate_linear_rows(f, dtype, weights.in_features(), weights.out_features(), x, out);
  check_output(f, "out", out, {{"weight", weights.weight}, {"bias", weights.bias}});
  if (!has_elements(x)) return;
  const PackedLinear packed(weights, weights.out_features(), WeightFormat::plain, num_threads);
  project(packed, x, out, num_threads);
}

void dequantize(const LinearWeights& weights, const MutableTensorView& out, int num_threads) {
  validate_dequantize(weights, out);
  const RowsOfBlocks rows{weights, out};
  const double work = kDequantizingWork * double(out.extents[0]) * double(out.extents[1]);
  const Phase phase{out.extents[0], &RowsOfBlocks::dequantize_row, &rows};
  run_phases(&phase, 1, threads_for(num_threads, out.extents[0], work));
}

Index Linear::in_features() const { return packed_->in_features(); }
Index Linear::out_features() const { return packed_->segment_columns(); }
bool Linear::has_bias() const { return packed_->has_bias(); }
DType Linear::dtype() const { return packed_->dtype(); }
WeightFormat Linear::weight_format() const { return packed_->format(); }

void Linear::copy_weights(const LinearWeightOutputs& outputs) const {
  const FloatingPointState state(Subnormals::kept);
  validate(*this, outputs);
  packed_->unpack(outputs);
}

void Linear::dequantize_rows(const std::int64_t* features, Index count, const MutableTensorView& rows) const {
  const FloatingPointState state(Subnormals::kept);
  validate_dequantized_rows(*this, features, count, rows);
  for (Index i = 0; i < count; ++i)
    packed_->dequantize_row(features[i], static_cast<float*>(rows.data) + i * rows.strides[0]);
}

FeedForward::FeedForward(const FeedForwardWeights& weights, Activation activation, WeightFormat weight_format) {
  const FloatingPointState state(Subnormals::kept);
  validate_feed_forward(weights, weight_format);
  packed_ = std::make_shared<const PackedFeedForward>(weights, activation, weight_format);
}

void FeedForward::forward(const TensorView& x, const MutableTensorView& out, int num_threads) const {
  const FloatingPointState state;
  validate_rows("FeedForward", dtype(), embed_dim(), x, out);
  SizedRowCall sized(dtype(), x, out, num_threads, packed_->work(1));
  const Rows hidden = sized.steps.buffer(feedforward_dim(), sized.layout);
  sized.steps.reserve_for(*packed_);
  RowCall call(sized);
  call.steps.feed_forward(*packed_, call.x(), hidden, call.out());
  call.run();
}

Index FeedForward::embed_dim() const { return packed_->up.in_features(); }
Index FeedForward::feedforward_dim() const { return packed_->down.in_features(); }
Activation FeedForward::activation() const { return packed_->activation; }
bool FeedForward::has_up_bias() const { return packed_->up.has_bias(); }
bool FeedForward::has_down_bias() const { return packed_->down.has_bias(); }
bool FeedForward::has_gate() const { return packed_->gate.has_value(); }
bool FeedForward::has_gate_bias() const { return packed_->gate && packed_->gate->has_bias(); }
DType FeedForward::dtype() const { return packed_->up.dtype(); }
WeightFormat FeedForward::weight_format() const { return packed_->up.format(); }

Linear FeedForward::up() const { return Linear({packed_, &packed_->up}); }
Linear FeedForward::down() const { return Linear({packed_, &packed_->down}); }
Linear FeedForward::gate() const {
  if (!has_gate()) throw std::invalid_argument("FeedForward.gate: the layer has no gate");
  return Linear({packed_, &*packed_->gate});
}

void FeedForward::copy_weights(const WeightOutputs& outputs) const {
  const FloatingPointState state(Subnormals::kept);
  validate(*this, outputs);
  packed_->unpack(outputs);
}

}  // namespace mha
