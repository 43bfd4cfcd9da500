// Feed-forward networks with experts.
#include <algorithm>
#include <limits>
#include <optional>
#include <vector>

#include "checks/transformer.hpp"
#include "execute/dense_rows.hpp"
#include "execute/experts_call.hpp"
#include "mha/transformer.hpp"
#include "platform/dispatch.hpp"
#include "platform/floating_point_state.hpp"
#include "views/copy_elements.hpp"
#include "weights/packed_experts.hpp"

namespace mha {
namespace {

template <class Part>
std::optional<Part> optional_copy(const Part* part) {
  return part ? std::optional<Part>(*part) : std::nullopt;
}

/// The parts, whose packed weights the base class points to.
struct OwnedExperts : PackedExperts {
  OwnedExperts(const Linear& router_of_rows, const FeedForward* first, Index count, const ExpertsConfig& given,
               const FeedForward* shared_expert, const Linear* gate_of_shared)
      : PackedExperts{given, nullptr, {}, nullptr, nullptr, {}},
        owned_router(router_of_rows),
        owned(first, first + std::max<Index>(count, 0)),
        owned_shared(optional_copy(shared_expert)),
        owned_gate(optional_copy(gate_of_shared)) {
    router = &owned_router.packed();
    for (const FeedForward& expert : owned) add(&expert.packed());
    if (owned_shared) shared = &owned_shared->packed();
    if (owned_gate) shared_gate = &owned_gate->packed();
  }

  const Linear owned_router;
  const std::vector<FeedForward> owned;
  const std::optional<FeedForward> owned_shared;
  const std::optional<Linear> owned_gate;
};

}  // namespace

Experts::Experts(const Linear& router, const FeedForward* experts, Index num_experts, const ExpertsConfig& config,
                 const FeedForward* shared, const Linear* shared_gate, const TensorView& correction) {
  const auto parts = std::make_shared<OwnedExperts>(router, experts, num_experts, config, shared, shared_gate);
  validate_experts(*parts, correction);
  if (correction) {
    std::vector<float> dense(static_cast<std::size_t>(num_experts));
    copy_elements(correction, {dense.data(), DType::f32, {num_experts}});
    parts->correction.assign(dense.begin(), dense.end());
  }
  packed_ = parts;
}

void Experts::forward(const TensorView& x, const MutableTensorView& out, int num_threads) const {
  const FloatingPointState state;
  validate_rows("Experts", dtype(), embed_dim(), x, out);
  Layout layout;
  DenseRows rows(x, out, true, layout);
  if (rows.count() == 0) return;
  const SizedExpertsCall sized(*packed_, active_kernels(), rows.count(), layout);
  const int threads = threads_for(num_threads, std::numeric_limits<Index>::max(), packed_->work(double(rows.count())));
  const CallMemory memory(layout, threads, sized.scratch_bytes());
  rows.gather(memory.data());
  ExpertsCall call(sized, memory, rows_of(rows.x()), rows_of(rows.out()));
  for (Index part = 0; part < sized.parts(); ++part) {
    Phase phases[ExpertsCall::kMostPhases];
    run_phases(phases, call.phases(part, phases), threads);
  }
  rows.scatter();
}

Index Experts::num_experts() const { return packed_->num_experts(); }
Index Experts::embed_dim() const { return packed_->embed_dim(); }
DType Experts::dtype() const { return packed_->dtype(); }
const ExpertsConfig& Experts::config() const { return packed_->config; }

}  // namespace mha
