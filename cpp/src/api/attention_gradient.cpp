#include "mha/attention_gradient.hpp"

#include <cmath>
#include <cstring>

#include "checks/attention.hpp"
#include "execute/run_gradient.hpp"
#include "plan/make_plan.hpp"
#include "platform/dispatch.hpp"
#include "platform/floating_point_state.hpp"
#include "platform/layout.hpp"
#include "views/leading_axes.hpp"
#include "views/sizes.hpp"

namespace mha {
namespace {

/// Calls visit(i, j, k) for the rows of a view with four axes. An axis with a stride of 0 counts once.
template <class Visitor>
void for_each_row(const TensorView& view, Visitor visit) {
  const auto count = [&](int axis) {
    return view.strides[axis] == 0 ? std::min<Index>(view.extents[axis], 1) : view.extents[axis];
  };
  for (Index i = 0; i < count(0); ++i)
    for (Index j = 0; j < count(1); ++j)
      for (Index k = 0; k < count(2); ++k) visit(i, j, k);
}

std::byte* row_of(const MutableTensorView& view, Index i, Index j, Index k) {
  return static_cast<std::byte*>(view.data) +
         (i * view.strides[0] + j * view.strides[1] + k * view.strides[2]) * size_of(view.dtype);
}

/// Elements of 16 bits as f32. Views that are repeated by a stride of 0 stay so.
class Widened {
 public:
  explicit Widened(TensorView& view, Layout& layout) : view_(view) {
    if (!view || view.dtype == DType::boolean || view.dtype == accumulator_of(view.dtype)) return;
    is_wanted_ = true;
    add_leading_axes(view, kMaxRank);
    Index size = 1;
    for (int axis = kMaxRank - 1; axis >= 0; --axis) {
      const bool repeats = view.strides[axis] == 0 && axis < kMaxRank - 1;
      strides_[axis] = repeats ? 0 : size;
      if (!repeats) size *= view.extents[axis];
    }
    at_ = layout.take(double(size) * sizeof(float));
  }

  void widen(std::byte* memory, const KernelTable& table) const {
    if (!is_wanted_) return;
    MutableTensorView wide;
    wide.data = memory + at_;
    wide.dtype = DType::f32;
    wide.rank = kMaxRank;
    std::copy_n(view_.extents, kMaxRank, wide.extents);
    std::copy_n(strides_, kMaxRank, wide.strides);
    const auto convert = table.kernels[static_cast<int>(view_.dtype)].widen;
    const Index columns = view_.extents[3], step = view_.strides[3], size = size_of(view_.dtype);
    for_each_row(wide, [&](Index i, Index j, Index k) {
      const std::byte* from = static_cast<const std::byte*>(view_.data) +
                              (i * view_.strides[0] + j * view_.strides[1] + k * view_.strides[2]) * size;
      std::byte* const to = row_of(wide, i, j, k);
      if (step == 1) return convert(from, to, columns);
      for (Index c = 0; c < columns; ++c) convert(from + c * step * size, to + c * Index(sizeof(float)), 1);
    });
    view_ = wide;
  }

 private:
  TensorView& view_;
  bool is_wanted_ = false;
  std::size_t at_ = 0;
  Index strides_[kMaxRank] = {};
};

template <class Byte, class View>
Strided<Byte> strided(const View& view) {
  if (!view) return {};
  return {static_cast<Byte*>(view.data), byte_stride(view, 0), byte_stride(view, 1), byte_stride(view, 2),
          view.rank > 3 && view.extents[3] > 1    ? view.strides[3]
          : view.rank > 3 && view.extents[3] == 1 ? 0
                                                  : 1};
}

template <class To, class From>
void store(const From* sums, const MutableTensorView& to) {
  const Index rows = to.rank == 2 ? to.extents[0] : 1, columns = to.extents[to.rank - 1];
  for (Index i = 0; i < rows; ++i)
    for (Index c = 0; c < columns; ++c)
      static_cast<To*>(to.data)[(to.rank == 2 ? i * to.strides[0] : 0) + c * to.strides[to.rank - 1]] =
          static_cast<To>(sums[i * columns + c]);
}

void run(GradientArguments a) {
  const FloatingPointState state;
  validate(a);
  const KernelTable& table = active_kernels();
  AttentionArguments& inputs = a.inputs;
  AttentionGradients& wanted = a.gradients;
  const DType dtype = inputs.query.dtype, sums = accumulator_of(dtype);
  const Index heads = inputs.query.extents[1];

  Layout layout;
  Widened widened[] = {Widened(inputs.query, layout), Widened(inputs.key, layout),
                       Widened(inputs.value, layout), Widened(a.out, layout),
                       Widened(a.dout, layout),       Widened(inputs.options.attn_mask, layout)};
  const auto elements = [](const MutableTensorView& view) {
    Index count = view ? 1 : 0;
    for (int axis = 0; axis < view.rank; ++axis) count *= view.extents[axis];
    return count;
  };
  const Index slopes = elements(wanted.alibi_slopes), sinks = elements(wanted.sinks),
              distances = elements(wanted.position_bias);
  const std::size_t slopes_at = layout.take(double(slopes) * sizeof(double));
  const std::size_t sinks_at = layout.take(double(sinks) * sizeof(double));
  const std::size_t bias_at = layout.take(double(distances) * size_of(sums));
  const Workspace memory(layout.total());
  for (const Widened& one : widened) one.widen(memory.data(), table);

  GradientPlan plan{};
  plan.attention = make_plan(inputs, AttentionOutput::attended_values, table);
  plan.dtype = dtype;
  plan.rounding = &table.kernels[static_cast<int>(dtype)];
  plan.out = strided<const std::byte>(a.out);
  plan.lse = strided<const std::byte>(a.lse);
  plan.dout = strided<const std::byte>(a.dout);
  plan.dlse = strided<const std::byte>(a.dlse);
  plan.dquery = strided<std::byte>(wanted.query);
  plan.dkey = strided<std::byte>(wanted.key);
  plan.dvalue = strided<std::byte>(wanted.value);
  plan.dattn_mask = strided<std::byte>(wanted.attn_mask);
  if (inputs.ragged)
    for (Strided<const std::byte>* one : {&plan.out, &plan.lse, &plan.dout, &plan.dlse}) one->batch = 0;
  if (inputs.ragged)
    for (Strided<std::byte>* one : {&plan.dquery, &plan.dkey, &plan.dvalue, &plan.dattn_mask}) one->batch = 0;

  if (wanted.attn_mask)
    for_each_row(wanted.attn_mask, [&](Index i, Index j, Index k) {
      std::byte* const row = row_of(wanted.attn_mask, i, j, k);
      const Index size = size_of(sums);
      for (Index c = 0; c < wanted.attn_mask.extents[3]; ++c)
        std::memset(row + c * wanted.attn_mask.strides[3] * size, 0, std::size_t(size));
    });
  const auto zeros = [&](std::size_t at, Index count, Index size) {
    std::memset(memory.data() + at, 0, std::size_t(count * size));
    return memory.data() + at;
  };
  if (slopes > 0) plan.dalibi_slopes = reinterpret_cast<double*>(zeros(slopes_at, slopes, sizeof(double)));
  plan.dalibi_slopes_batch = wanted.alibi_slopes.rank == 2 && wanted.alibi_slopes.extents[0] > 1 ? heads : 0;
  if (sinks > 0) plan.dsinks = reinterpret_cast<double*>(zeros(sinks_at, sinks, sizeof(double)));
  if (distances > 0) plan.dposition_bias = {zeros(bias_at, distances, size_of(sums)), 0, 0, 0, 1};
  plan.adds_batches = plan.dsinks || plan.dposition_bias.data ||
                      (plan.dalibi_slopes && plan.dalibi_slopes_batch == 0) ||
                      (plan.dattn_mask.data && plan.dattn_mask.batch == 0);
  plan.adds_heads = plan.dattn_mask.data && plan.dattn_mask.head == 0;
  run_gradient(plan, inputs.options.num_threads);

  const auto store_sums = [&](auto* from, const MutableTensorView& to) {
    if (sums == DType::f64)
      store<double>(from, to);
    else
      store<float>(from, to);
  };
  if (slopes > 0) store_sums(plan.dalibi_slopes, wanted.alibi_slopes);
  if (sinks > 0) store_sums(plan.dsinks, wanted.sinks);
  if (distances > 0 && sums == DType::f64)
    store<double>(reinterpret_cast<const double*>(plan.dposition_bias.data), wanted.position_bias);
  else if (distances > 0)
    store<float>(reinterpret_cast<const float*>(plan.dposition_bias.data), wanted.position_bias);
}

}  // namespace

void attention_gradient(const TensorView& query, const TensorView& key, const TensorView& value, const TensorView& out,
                        const TensorView& lse, const TensorView& dout, const AttentionGradients& gradients,
                        const AttentionOptions& options, const TensorView& dlse) {
  run({{"attention_gradient", query, key, value, {}, {}, options}, out, lse, dout, dlse, gradients});
}

void attention_gradient_varlen(const TensorView& query, const TensorView& key, const TensorView& value,
                               const RaggedBatch& batch, const TensorView& out, const TensorView& lse,
                               const TensorView& dout, const AttentionGradients& gradients,
                               const AttentionOptions& options, const TensorView& dlse) {
  run({{"attention_gradient_varlen", query, key, value, {}, {}, options, &batch}, out, lse, dout, dlse, gradients});
}

}  // namespace mha
