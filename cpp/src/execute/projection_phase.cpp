#include "execute/projection_phase.hpp"

#include <algorithm>
#include <cstring>
#include <utility>

#include "platform/cancellation.hpp"
#include "platform/fetch_evidence.hpp"

namespace mha {
namespace {

const ProjectionKernel& kernel_of(const DTypeKernels& kernels, const PackedLinear& linear) {
  return kernels.project[static_cast<int>(linear.format())];
}
const ProjectionKernel& kernel_of(const Projection& p) { return kernel_of(*p.kernels, *p.linear); }

/// Whether both read the same rows, in the same form.
bool same_rows(const Projection& a, const Projection& b) {
  return kernel_of(a).read == kernel_of(b).read && a.x.data == b.x.data && a.batch == b.batch && a.rows == b.rows &&
         a.x.batch == b.x.batch && a.x.row == b.x.row && a.x.step == b.x.step &&
         a.linear->in_features() == b.linear->in_features();
}

// Scratch of a worker: sums of a panel, the results of one on the way to their places, rows as they are read.
std::size_t staged_at(const DTypeKernels& kernels) { return padded(kernels.projection_scratch(kProjectionBlockRows)); }
std::size_t rows_at(const DTypeKernels& kernels) {
  return staged_at(kernels) + std::size_t{kProjectionBlockRows * kPanelBytes};
}

/// Whether the second panel of a gate has another format, and so another kernel.
bool has_gate_apart(const Projection& p) { return p.gate && p.gate->format() != p.linear->format(); }

/// Where the rows for the kernel of a gate apart lie, after the results of the gate.
std::size_t gate_at(const DTypeKernels& kernels, Index in_features) {
  std::size_t most = 0;
  for (const ProjectionKernel& kernel : kernels.project)
    if (kernel.read_bytes) most = std::max(most, kernel.read_bytes(kProjectionBlockRows, in_features));
  return padded(rows_at(kernels) + most);
}
std::size_t gate_rows_at(const DTypeKernels& kernels, Index in_features) {
  return gate_at(kernels, in_features) + std::size_t{kProjectionBlockRows * kPanelBytes};
}

/// Rows of x as a kernel reads them.
void read_rows(const Projection& p, const ProjectionKernel& kernel, Index batch, Index first, ProjectionTile& tile,
               std::byte* memory) {
  tile.in_features = p.linear->in_features();
  tile.x = p.x.at(batch, 0, first);
  tile.x_row = p.x.row / size_of(p.linear->dtype());
  tile.x_step = p.x.step;
  kernel.read(tile, memory);
}

/// Projects rows that go to places of their own. `tile.out` says where row 0 of batch element 0 goes; `row` is the
/// tile's first row among all.
///
/// Rows of one batch element lie together there, too, but for pages. Rows of several, and rows to be rounded, are
/// projected into scratch and copied to their places one by one, so that they still share the cost of loading a panel:
/// the steps of a batch of decoders.
void project_and_place(const Projection& p, ProjectionTile tile, Index row, std::byte* scratch) {
  constexpr int kGroups = kPanelBytes / kVectorBytes;
  const auto wanted = [&](Index b) { return p.row_counts ? Index(p.row_counts[b]) : p.length; };
  const auto place = [&](Index b, Index t) {
    return b * p.out.batch + p.tables.row_of(b, p.first_rows[b] + t) * p.out.row;
  };
  const auto lie_together = [&](Index b, Index t) {
    return t + tile.rows <= p.length && p.tables.run_of(b, p.first_rows[b] + t, tile.rows) == tile.rows;
  };
  if (const Index b = row / p.length, t = row % p.length; !p.round && lie_together(b, t)) {
    tile.rows = std::min(tile.rows, wanted(b) - t);
    for (int g = 0; g < kGroups; ++g)
      if (tile.group_columns[g] > 0) tile.out[g] = static_cast<std::byte*>(tile.out[g]) + place(b, t);
    if (tile.rows > 0) kernel_of(p).run(tile, scratch);
    return;
  }

  struct Piece {  // of a row: columns that lie together where they go
    std::byte* to;
    Index at, columns;  // in a row of scratch: bytes from its begin; how many
  } pieces[kGroups];
  std::byte* const staged = scratch + staged_at(*p.kernels);
  const Index size = size_of(p.linear->dtype()), group_columns = kVectorBytes / column_bytes(p.linear->dtype());
  const Index row_bytes = kGroups * group_columns * size;
  int count = 0;
  for (Index g = 0; g < kGroups; ++g) {
    if (tile.group_columns[g] == 0) continue;
    std::byte* const to = static_cast<std::byte*>(tile.out[g]);
    const Index at = g * group_columns * size, columns = tile.group_columns[g];
    const auto continues = [&](const Piece& last) {
      return to == last.to + last.columns * p.out_size() && at == last.at + last.columns * size;
    };
    if (count > 0 && continues(pieces[count - 1]))
      pieces[count - 1].columns += columns;
    else
      pieces[count++] = {to, at, columns};
    tile.group_columns[g] = group_columns;
    tile.out[g] = staged + at;
  }
  tile.out_row = kGroups * group_columns;
  tile.out_step = 1;
  kernel_of(p).run(tile, scratch);

  for (Index r = 0; r < tile.rows; ++r) {
    const Index b = (row + r) / p.length, t = (row + r) % p.length;
    if (t >= wanted(b)) continue;
    for (int i = 0; i < count; ++i) {
      const Piece& piece = pieces[i];
      std::byte *const from = staged + r * row_bytes + piece.at, *const to = piece.to + place(b, t);
      if (p.round)
        p.round(from, to, piece.columns);
      else
        std::memcpy(to, from, static_cast<std::size_t>(piece.columns * size));
    }
  }
}

/// Projects f32 rows by two panels of different formats, each by its kernel, and applies the activation to the results.
/// `gate` has the rows as the kernel of the gate reads them.
void project_with_gate_apart(const Projection& p, const ProjectionTile& tile, ProjectionTile gate, std::byte* scratch) {
  constexpr Index kGroup = kVectorBytes / Index{sizeof(float)}, kColumns = kPanelBytes / Index{sizeof(float)};
  ProjectionTile product = tile;
  gate.panel = std::exchange(product.gate_panel, nullptr);
  gate.bias = std::exchange(product.gate_bias, nullptr);
  gate.activation = product.activation = Activation::none;
  auto* const results = reinterpret_cast<float*>(scratch + staged_at(*p.kernels));
  auto* const factors = reinterpret_cast<float*>(scratch + gate_at(*p.kernels, p.linear->in_features()));
  for (Index g = 0; g < kColumns / kGroup; ++g) {
    product.out[g] = results + g * kGroup;
    gate.out[g] = factors + g * kGroup;
    product.group_columns[g] = gate.group_columns[g] = kGroup;  // padding included
  }
  product.out_row = gate.out_row = kColumns;
  product.out_step = gate.out_step = 1;
  kernel_of(*p.kernels, *p.gate).run(gate, scratch);
  kernel_of(p).run(product, scratch);
  // It may change the product, too, as swiglu_oai does.
  p.kernels->rows.activate({p.activation, tile.rows * kColumns, factors, results, nullptr, factors, nullptr});
  for (Index g = 0; g < kColumns / kGroup; ++g)
    for (Index r = 0; tile.group_columns[g] > 0 && r < tile.rows; ++r) {
      float* const to = static_cast<float*>(tile.out[g]) + r * tile.out_row;
      for (Index c = 0; c < tile.group_columns[g]; ++c) to[c * tile.out_step] = factors[r * kColumns + g * kGroup + c];
    }
}

/// `rows` times one panel; `gate` has the rows as the kernel of a gate apart reads them.
void project_panel(const Projection& projection, Index panel, Index batch, Index first, ProjectionTile tile,
                   const ProjectionTile& gate, std::byte* scratch) {
  const PackedLinear& linear = *projection.linear;
  const Index size = projection.out_size();
  tile.panel = linear.panel(panel);
  tile.bias = linear.bias(panel);
  if (projection.gate) {
    tile.gate_panel = projection.gate->panel(panel);
    tile.gate_bias = projection.gate->bias(panel);
  }
  tile.activation = projection.activation;
  tile.out_row = projection.out.row / size;
  tile.out_step = projection.out.step;
  const Index group_columns = kVectorBytes / column_bytes(linear.dtype());
  for (Index g = 0; g < kPanelBytes / kVectorBytes; ++g) {
    const Index column = (panel * (kPanelBytes / kVectorBytes) + g) * group_columns;
    const Index segment = column / linear.padded_segment_columns(), within = column % linear.padded_segment_columns();
    if (segment >= linear.segments()) break;
    tile.group_columns[g] = std::clamp<Index>(linear.segment_columns() - within, 0, group_columns);
    tile.out[g] =
        (projection.first_rows ? projection.out.at(0, segment, 0) : projection.out.at(batch, segment, first)) +
        within * projection.out.step * size;
  }
  if (projection.first_rows)
    project_and_place(projection, tile, batch * projection.rows + first, scratch);
  else if (has_gate_apart(projection))
    project_with_gate_apart(projection, tile, gate, scratch);
  else
    kernel_of(projection).run(tile, scratch);
}

void run_task(const ProjectionGroup& group, Index task, std::byte* scratch) {
  const Index panel = task % group.tasks_of_block() * group.panels_of_task;
  const Index count = std::min(group.panels_of_task, group.panels - panel);
  const Index row_block = task / group.tasks_of_block();
  const Index block = row_block % group.blocks, batch = row_block / group.blocks, rows = group.projections[0].rows;
  project_rows(group.projections, panel, count, batch, first_row_of(block, rows, group.blocks),
               first_row_of(block + 1, rows, group.blocks), scratch);
}

void run_phase_task(const void* context, Index task, int worker) {
  const ProjectionRun& run = *static_cast<const ProjectionRun*>(context);
  const ProjectionGroup* group = run.groups;
  while (task >= group->tasks()) task -= (group++)->tasks();
  run_task(*group, task, run.workers.scratch_of(worker));
}

}  // namespace

Index projection_blocks(Index rows, Index panels, int threads) {
  // Rows of a block share the cost of loading a panel: a block of fewer than 24 gains nothing.
  constexpr Index kLeastRows = 24, kTasksPerThread = 3;
  const auto ceil_div = [](Index n, Index by) { return (n + by - 1) / by; };
  const Index enough = ceil_div(kTasksPerThread * threads, panels);
  return std::max(ceil_div(rows, kProjectionBlockRows), threads == 1 ? 0 : std::min(enough, rows / kLeastRows));
}

Index projection_panels_of_task(WeightFormat format, Index panels, Index blocks, int threads) {
  constexpr Index kTasksPerThread = 3;
  if (format == WeightFormat::plain || format == WeightFormat::bf16) return 1;  // rows are read as they lie
  return threads == 1 ? panels : std::max<Index>(1, panels * blocks / (kTasksPerThread * threads));
}

void project_rows(const Projection* projections, Index panel, Index count, Index batch, Index first, Index last,
                  std::byte* scratch) {
  ProjectionTile rows{};
  rows.rows = last - first;
  rows.fetches_ahead = fetches_few_rows_ahead();
  ProjectionTile gate = rows;
  const DTypeKernels& kernels = *projections->kernels;
  read_rows(*projections, kernel_of(*projections), batch, first, rows, scratch + rows_at(kernels));
  if (has_gate_apart(*projections))
    read_rows(*projections, kernel_of(kernels, *projections->gate), batch, first, gate,
              scratch + gate_rows_at(kernels, projections->linear->in_features()));
  Cancellation& cancellation = Cancellation::of_this_thread();  // all panels of a wide matrix may take a second
  for (; count > 0 && !cancellation.is_set(); --count, ++panel) {
    while (panel >= projections->linear->panels()) panel -= (projections++)->linear->panels();
    project_panel(*projections, panel, batch, first, rows, gate, scratch);
  }
}

std::size_t projection_scratch(const DTypeKernels& kernels, const PackedLinear& linear, const PackedLinear* gate) {
  const ProjectionKernel& kernel = kernel_of(kernels, linear);
  const Index features = linear.in_features();
  if (gate && gate->format() != linear.format())
    return gate_rows_at(kernels, features) + kernel_of(kernels, *gate).read_bytes(kProjectionBlockRows, features);
  return rows_at(kernels) + kernel.read_bytes(kProjectionBlockRows, features);
}

void ProjectionRun::add(Projection p) {
  p.length = p.rows;
  // Batch elements that follow one another without a gap are one long run of rows: a strip may span them. So are those
  // of one row each, whatever lies between.
  if (p.rows == 1) {
    p.x.row = p.x.batch;
    if (!p.first_rows) p.out.row = p.out.batch;
  }
  if (p.x.batch == p.rows * p.x.row && (p.first_rows || p.out.batch == p.rows * p.out.row)) {
    p.rows *= p.batch;
    p.batch = 1;
  }
  if (count == 0 || !same_rows(groups[count - 1].projections[0], p))
    groups[count++] = {{}, 0, projection_blocks(p.rows, p.linear->panels(), workers.threads), 0, 1};
  ProjectionGroup& group = groups[count - 1];
  group.projections[group.count++] = p;
  group.panels += p.linear->panels();
  group.panels_of_task =
      projection_panels_of_task(p.linear->format(), group.panels, p.batch * group.blocks, workers.threads);
}

Phase projection_phase(const ProjectionRun& run) {
  Index tasks = 0;
  for (int g = 0; g < run.count; ++g) tasks += run.groups[g].tasks();
  return {tasks, &run_phase_task, &run};
}

}  // namespace mha
