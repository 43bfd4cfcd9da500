// The table of rotary positions, and rotation by it.
#include "mha/rotary.hpp"

#include <limits>

#include "checks/rotary.hpp"
#include "execute/dense_rows.hpp"
#include "execute/head_rows.hpp"
#include "platform/dispatch.hpp"
#include "platform/floating_point_state.hpp"
#include "platform/layout.hpp"
#include "platform/parallel.hpp"
#include "views/copy_elements.hpp"
#include "views/leading_axes.hpp"

namespace mha {
namespace {

/// Multiply-adds that the time of an element is worth: memory, twice.
constexpr double kWorkPerElement = 16;

}  // namespace

RotaryEmbedding::RotaryEmbedding(const TensorView& cos, const TensorView& sin, RotaryPairs pairs) {
  validate_rotary(cos, sin);
  table_ = std::make_shared<const RotaryTable>(cos, sin, pairs);
}

void RotaryEmbedding::rotate(const TensorView& x, const std::int64_t* positions, const MutableTensorView& out,
                             bool backwards, int num_threads) const {
  const FloatingPointState state;
  validate_rotate(*table_, x, positions, out, backwards);
  if (!has_elements(x)) return;
  Layout layout;
  const DenseOutput result(out, layout);
  double elements = 1;
  for (int axis = 0; axis < x.rank; ++axis) elements *= double(x.extents[axis]);
  const int threads = threads_for(num_threads, std::numeric_limits<Index>::max(), elements * kWorkPerElement);
  const CallMemory memory(layout, threads, HeadRowsRun::scratch_bytes(x.dtype, x.extents[x.rank - 1]));

  HeadRows heads;
  heads.steps.rotary = table_.get();
  heads.is_backwards = backwards;
  heads.rows = with_axes_of(result.rows(memory.data()), out);
  if (heads.rows.data != x.data) copy_elements(x, heads.rows);
  add_leading_axes(heads.rows, kMaxRank);
  heads.positions = positions;
  HeadRowsRun run(active_kernels(), memory.workers());
  run.add(heads);
  const Phase phase = run.phase();
  run_phases(&phase, 1, threads);
  result.scatter(memory.data());
}

Index RotaryEmbedding::max_positions() const { return table_->max_positions; }
Index RotaryEmbedding::rotary_dim() const { return 2 * table_->num_pairs; }
RotaryPairs RotaryEmbedding::pairs() const { return table_->pairs; }
DType RotaryEmbedding::dtype() const { return table_->dtype; }
TensorView RotaryEmbedding::cos() const { return table_->cos(); }
TensorView RotaryEmbedding::sin() const { return table_->sin(); }

}  // namespace mha
