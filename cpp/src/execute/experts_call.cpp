#include "execute/experts_call.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "mha/half_precision.hpp"
#include "platform/cancellation.hpp"

namespace mha {
namespace {

/// Bytes that the slots of a part take at most, where rows are many. A part of a model with 128 experts, 8 for each row,
/// has some 1,500 rows then: 90 for each expert, so that products take longer than reading the weights.
constexpr double kMostSlotBytes = double(Index{128} << 20);
constexpr Index kLeastPartRows = 128, kMostPartRows = 4096;

/// Rows that a task chooses experts for, copies, or adds up.
constexpr Index kTaskRows = 16;

/// Rows up to which one task does all that comes between the router and the products: waking other threads takes longer.
constexpr Index kFewRows = 4;

Index ceil_div(Index n, Index by) { return (n + by - 1) / by; }

/// Most blocks of so many slots: experts may fill one block each in part.
Index most_blocks(const PackedExperts& experts, Index slots) {
  return std::min(experts.num_experts(), slots) + slots / kProjectionBlockRows;
}

/// The results that are added up for a row.
Index terms_of(const PackedExperts& experts) { return experts.config.experts_per_token + (experts.shared ? 1 : 0); }

}  // namespace

SizedExpertsCall::SizedExpertsCall(const PackedExperts& experts, const KernelTable& table, Index rows, Layout& layout)
    : experts_(experts), kernels_(table.kernels[static_cast<int>(experts.dtype())]), rows_(rows) {
  const Index k = experts.config.experts_per_token, num_experts = experts.num_experts();
  const Index size = size_of(experts.dtype()), width = experts.embed_dim();
  const double slot_bytes = double(width + experts.feedforward_dim()) * double(size);
  const double fitting = kMostSlotBytes / (double(k) * slot_bytes);
  const Index part_rows = static_cast<Index>(std::clamp(fitting, double(kLeastPartRows), double(kMostPartRows)));
  parts_ = ceil_div(rows, part_rows);
  const Index most_rows = parts_ == 0 ? 0 : ceil_div(rows, parts_), slots = most_rows * k;

  const double r = double(most_rows), terms = r * double(terms_of(experts));
  logits_at_ = layout.take(r * double(num_experts) * double(size));
  shared_logit_at_ = layout.take(experts.shared_gate ? r * double(size) : 0);
  chosen_at_ = layout.take(double(slots) * sizeof(Index));
  factors_at_ = layout.take(terms * sizeof(double));
  slots_at_ = layout.take(terms * sizeof(std::int64_t));
  rows_at_ = layout.take(double(slots) * sizeof(Index));
  starts_at_ = layout.take(double(num_experts + 2) * sizeof(Index));
  blocks_at_ = layout.take(double(most_blocks(experts, slots)) * sizeof(ExpertBlock));
  results_at_ = layout.take(terms * double(width) * double(size));
  hidden_at_ = layout.take(double(slots) * double(experts.feedforward_dim()) * double(size));
  shared_hidden_at_ = layout.take(r * double(experts.shared_dim()) * double(size));

  scratch_bytes_ = 0;
  const auto reserve = [&](const PackedLinear& linear, const PackedLinear* gate = nullptr) {
    scratch_bytes_ = std::max(scratch_bytes_, projection_scratch(kernels_, linear, gate));
  };
  const auto reserve_for = [&](const PackedFeedForward& expert) {
    reserve(expert.up, expert.gate ? &*expert.gate : nullptr);
    reserve(expert.down);
  };
  reserve(*experts.router);
  for (const PackedFeedForward* expert : experts.kinds) reserve_for(*expert);
  if (experts.shared) reserve_for(*experts.shared);
  if (experts.shared_gate) reserve(*experts.shared_gate);
}

ExpertsCall::ExpertsCall(const SizedExpertsCall& sized, const CallMemory& memory, const Rows& x, const Rows& out)
    : sized_(sized),
      experts_(sized.experts_),
      memory_(memory.data()),
      workers_(memory.workers()),
      x_(x),
      out_(out),
      router_(memory.workers()) {}

int ExpertsCall::phases(Index part, Phase* phases) {
  first_ = first_row_of(part, sized_.rows_, sized_.parts_);
  count_ = first_row_of(part + 1, sized_.rows_, sized_.parts_) - first_;
  up_ = products(false);
  down_ = products(true);

  const Index size = size_of(experts_.dtype());
  const auto logits = [&](const PackedLinear& linear, std::size_t offset) {
    const Index row = linear.segment_columns() * size;
    router_.add({&linear,
                 &sized_.kernels_,
                 1,
                 count_,
                 {x_.data + first_ * x_.row_bytes, 0, 0, x_.row_bytes, 1},
                 {memory_ + offset, 0, 0, row, 1}});
  };
  router_.count = 0;
  logits(*experts_.router, sized_.logits_at_);
  if (experts_.shared_gate) logits(*experts_.shared_gate, sized_.shared_logit_at_);

  const Index tasks = ceil_div(count_, kTaskRows);
  int n = 0;
  phases[n++] = projection_phase(router_);
  if (count_ <= kFewRows) {
    phases[n++] = {1, &run_route, this};
  } else {
    phases[n++] = {tasks, &run_choose, this};
    phases[n++] = {1, &run_group, this};
    phases[n++] = {ceil_div(slots(), kTaskRows), &run_gather, this};
  }
  phases[n++] = {up_.all_tasks(), &run_up, this};
  phases[n++] = {down_.all_tasks(), &run_down, this};
  phases[n++] = {tasks, &run_add, this};
  return n;
}

ExpertsCall::Products ExpertsCall::products(bool is_down) const {
  const Index blocks = most_blocks(experts_, slots());
  const auto of = [&](const PackedFeedForward& f) -> const PackedLinear& { return is_down ? f.down : f.up; };
  Products result{};
  const PackedLinear& linear = of(*experts_.experts[0]);  // others have as many panels, whatever their formats are
  result.panels_of_task = projection_panels_of_task(linear.format(), linear.panels(), blocks, workers_.threads);
  result.tasks_of_block = ceil_div(linear.panels(), result.panels_of_task);
  result.tasks = blocks * result.tasks_of_block;
  if (!experts_.shared) return result;
  const PackedLinear& shared = of(*experts_.shared);
  result.shared_blocks = projection_blocks(count_, shared.panels(), workers_.threads);
  result.shared_panels_of_task =
      projection_panels_of_task(shared.format(), shared.panels(), result.shared_blocks, workers_.threads);
  result.shared_tasks_of_block = ceil_div(shared.panels(), result.shared_panels_of_task);
  return result;
}

double ExpertsCall::number(const std::byte* elements, Index i) const {
  const auto read = [&](auto value) {
    std::memcpy(&value, elements + i * Index(sizeof value), sizeof value);
    return to_double(value);
  };
  switch (experts_.dtype()) {
#define MHA_DTYPE(name, scalar, accumulator) \
  case DType::name:                          \
    return read(scalar());
#include "mha/dtypes.def"
#undef MHA_DTYPE
    case DType::boolean:
    case DType::int8:
      break;
  }
  return 0;
}

/// Factor i of the sums of results, rounded to the type in which these are added.
void ExpertsCall::set_factor(Index i, double factor) const {
  if (accumulator_of(experts_.dtype()) == DType::f64)
    at<double>(sized_.factors_at_)[i] = factor;
  else
    at<float>(sized_.factors_at_)[i] = static_cast<float>(factor);
}

/// By which experts are chosen. Softmax rises with its logits, which take its place.
double ExpertsCall::score(Index row, Index expert) const {
  const double logit = number(at<std::byte>(sized_.logits_at_), row * experts_.num_experts() + expert);
  if (!experts_.config.is_sigmoid) return logit;
  const double score = 1 / (1 + std::exp(-logit));
  return experts_.correction.empty() ? score : score + experts_.correction[static_cast<std::size_t>(expert)];
}

/// Chooses the experts of a row, in rising order, and their weights.
void ExpertsCall::choose(Index row) const {
  const ExpertsConfig& config = experts_.config;
  const Index k = config.experts_per_token, num_experts = experts_.num_experts();
  Index* const chosen = at<Index>(sized_.chosen_at_) + row * k;
  // The best so far, best first. An expert moves past those that are not as good; of NaN none is found to be better.
  for (Index expert = 0; expert < num_experts; ++expert) {
    Index place = std::min(expert, k);
    const double own = score(row, expert);
    if (place == k && !(own > score(row, chosen[k - 1]))) continue;
    if (place == k) --place;
    for (; place > 0 && own > score(row, chosen[place - 1]); --place) chosen[place] = chosen[place - 1];
    chosen[place] = expert;
  }

  const std::byte* const logits = at<std::byte>(sized_.logits_at_);
  const auto logit = [&](Index expert) { return number(logits, row * num_experts + expert); };
  const double largest = logit(chosen[0]);  // of softmax
  const auto weight = [&](Index expert) {
    return config.is_sigmoid ? 1 / (1 + std::exp(-logit(expert))) : std::exp(logit(expert) - largest);
  };
  std::sort(chosen, chosen + k);
  double sum = config.is_sigmoid && !config.normalizes ? 1 : 0;
  if (config.normalizes)
    for (Index j = 0; j < k; ++j) sum += weight(chosen[j]);
  else if (!config.is_sigmoid)
    for (Index expert = 0; expert < num_experts; ++expert) sum += weight(expert);
  const Index terms = terms_of(experts_);
  for (Index j = 0; j < k; ++j) set_factor(row * terms + j, weight(chosen[j]) / sum * config.scale);
  if (!experts_.shared) return;
  const double gate = experts_.shared_gate ? number(at<std::byte>(sized_.shared_logit_at_), row) : 0;
  set_factor(row * terms + k, experts_.shared_gate ? 1 / (1 + std::exp(-gate)) : 1);
}

/// Gives each row its slots, by counting, and cuts the slots of each expert in blocks.
void ExpertsCall::group() const {
  const Index k = experts_.config.experts_per_token, num_experts = experts_.num_experts(), terms = terms_of(experts_);
  const Index* const chosen = at<Index>(sized_.chosen_at_);
  Index *const starts = at<Index>(sized_.starts_at_), *const rows = at<Index>(sized_.rows_at_);
  auto* const slot_of = at<std::int64_t>(sized_.slots_at_);
  // First starts[e + 2] counts the slots of expert e, then starts[e + 1] is its next slot.
  std::fill_n(starts, num_experts + 2, Index{0});
  for (Index i = 0; i < slots(); ++i) ++starts[chosen[i] + 2];
  for (Index expert = 2; expert <= num_experts; ++expert) starts[expert] += starts[expert - 1];
  for (Index row = 0; row < count_; ++row) {
    for (Index j = 0; j < k; ++j) {
      const Index slot = starts[chosen[row * k + j] + 1]++;
      rows[slot] = row;
      slot_of[row * terms + j] = slot;
    }
    if (experts_.shared) slot_of[row * terms + k] = slots() + row;
  }
  ExpertBlock *block = at<ExpertBlock>(sized_.blocks_at_), *const end = block + most_blocks(experts_, slots());
  for (Index expert = 0; expert < num_experts; ++expert) {
    const Index first = starts[expert], count = starts[expert + 1] - first;
    const Index blocks = ceil_div(count, kProjectionBlockRows);
    for (Index b = 0; b < blocks; ++b) {
      const Index from = first_row_of(b, count, blocks);
      *block++ = {experts_.experts[static_cast<std::size_t>(expert)], first + from,
                  first_row_of(b + 1, count, blocks) - from};
    }
  }
  std::fill(block, end, ExpertBlock());
}

/// Copies the rows of slots [first, last) to where they are multiplied from.
void ExpertsCall::gather(Index first, Index last) const {
  const Index* const rows = at<Index>(sized_.rows_at_);
  const Index bytes = x_.columns * size_of(experts_.dtype());
  for (Index slot = first; slot < last; ++slot)
    std::memcpy(memory_ + sized_.results_at_ + static_cast<std::size_t>(slot * bytes),
                x_.data + (first_ + rows[slot]) * x_.row_bytes, static_cast<std::size_t>(bytes));
}

/// One task of the products into the hidden features, or out of them.
void ExpertsCall::multiply(const Products& products, bool is_down, Index task, int worker) const {
  const Index size = size_of(experts_.dtype()), bytes = experts_.embed_dim() * size;
  std::byte* const results = memory_ + sized_.results_at_;
  if (task < products.tasks) {
    const ExpertBlock& block = at<ExpertBlock>(sized_.blocks_at_)[task / products.tasks_of_block];
    if (!block.expert) return;
    const Index panel = task % products.tasks_of_block * products.panels_of_task;
    const Index hidden_bytes = experts_.feedforward_dim() * size;
    std::byte *const outer = results + block.first * bytes, *const hidden = memory_ + sized_.hidden_at_ +
                                                                            block.first * hidden_bytes;
    return project(*block.expert, is_down, is_down ? hidden : outer, is_down ? hidden_bytes : bytes,
                   is_down ? outer : hidden, block.rows, panel, products.panels_of_task, worker);
  }
  task -= products.tasks;
  const Index b = task / products.shared_tasks_of_block;
  const Index panel = task % products.shared_tasks_of_block * products.shared_panels_of_task;
  const Index first = first_row_of(b, count_, products.shared_blocks);
  const Index rows = first_row_of(b + 1, count_, products.shared_blocks) - first;
  const Index hidden_bytes = experts_.shared_dim() * size;
  std::byte* const hidden = memory_ + sized_.shared_hidden_at_ + first * hidden_bytes;
  if (is_down)
    project(*experts_.shared, true, hidden, hidden_bytes, results + (slots() + first) * bytes, rows, panel,
            products.shared_panels_of_task, worker);
  else
    project(*experts_.shared, false, x_.data + (first_ + first) * x_.row_bytes, x_.row_bytes, hidden, rows, panel,
            products.shared_panels_of_task, worker);
}

/// Panels [panel, panel + panels) of an expert, as far as it has them.
void ExpertsCall::project(const PackedFeedForward& expert, bool is_down, const std::byte* x, Index x_row_bytes,
                          std::byte* out, Index rows, Index panel, Index panels, int worker) const {
  const PackedLinear& linear = is_down ? expert.down : expert.up;
  const Index row_bytes = linear.segment_columns() * size_of(experts_.dtype());
  const Projection projection{&linear,
                              &sized_.kernels_,
                              1,
                              rows,
                              {x, 0, 0, x_row_bytes, 1},
                              {out, 0, 0, row_bytes, 1},
                              is_down ? Activation::none : expert.activation,
                              !is_down && expert.gate ? &*expert.gate : nullptr};
  project_rows(&projection, panel, std::min(panels, linear.panels() - panel), 0, 0, rows, workers_.scratch_of(worker));
}

/// The sum of the weighted results of a row.
void ExpertsCall::add_up(Index row) const {
  const Index terms = terms_of(experts_);
  const Index factor_bytes = size_of(accumulator_of(experts_.dtype()));
  const RowSelection selection{terms,
                               experts_.embed_dim(),
                               memory_ + sized_.results_at_,
                               experts_.embed_dim(),
                               at<std::int64_t>(sized_.slots_at_) + row * terms,
                               out_.data + (first_ + row) * out_.row_bytes,
                               memory_ + sized_.factors_at_ + row * terms * factor_bytes};
  sized_.kernels_.rows.sum_rows(selection);
}

void ExpertsCall::run_route(const void* context, Index, int) {
  const ExpertsCall& call = *static_cast<const ExpertsCall*>(context);
  for (Index row = 0; row < call.count_; ++row) call.choose(row);
  call.group();
  call.gather(0, call.slots());
}

void ExpertsCall::run_choose(const void* context, Index task, int) {
  const ExpertsCall& call = *static_cast<const ExpertsCall*>(context);
  for (Index row = task * kTaskRows; row < std::min((task + 1) * kTaskRows, call.count_); ++row) call.choose(row);
}

void ExpertsCall::run_group(const void* context, Index, int) { static_cast<const ExpertsCall*>(context)->group(); }

void ExpertsCall::run_gather(const void* context, Index task, int) {
  const ExpertsCall& call = *static_cast<const ExpertsCall*>(context);
  call.gather(task * kTaskRows, std::min((task + 1) * kTaskRows, call.slots()));
}

void ExpertsCall::run_up(const void* context, Index task, int worker) {
  const ExpertsCall& call = *static_cast<const ExpertsCall*>(context);
  call.multiply(call.up_, false, task, worker);
}

void ExpertsCall::run_down(const void* context, Index task, int worker) {
  const ExpertsCall& call = *static_cast<const ExpertsCall*>(context);
  call.multiply(call.down_, true, task, worker);
}

void ExpertsCall::run_add(const void* context, Index task, int) {
  const ExpertsCall& call = *static_cast<const ExpertsCall*>(context);
  for (Index row = task * kTaskRows; row < std::min((task + 1) * kTaskRows, call.count_); ++row) call.add_up(row);
}

}  // namespace mha
