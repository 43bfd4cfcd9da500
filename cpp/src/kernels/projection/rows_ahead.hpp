// How far ahead of the multiply-adds a projection prefetches the rows of a weight panel.
#pragma once

#include <cstddef>

#include "kernels/kernel_table.hpp"
#include "kernels/vectors/eigen.hpp"

namespace mha::MHA_ISA {
namespace {

/// Whether a vector is a line of the cache. One or two rows then are little else than loads, one for each line, and
/// prefetches are as many again.
constexpr bool kVectorIsLine = sizeof(Packet<float>) == 64;

/// The first strip of rows prefetches so many rows of the panel before it reads them: 8 KB. A projection of one strip
/// (6 rows, weights in level 3) then takes 0.65 of the time, of two strips 0.8, of 22 strips (128 rows) 0.98. With 4 KB
/// one strip takes 0.8, two 0.85. A single row reads faster: with 12 KB it takes 0.95 of its time with 8 KB, and eight
/// rows 1.02. One or two rows of lines: 4 KB, and only where ProjectionTile::fetches_ahead says so.
constexpr int panel_rows_ahead(int rows) { return kVectorIsLine && rows <= 2 ? 16 : rows == 1 ? 48 : 32; }

/// The same for weights in fewer bits, which are fewer lines for as many operations. With bf16 weights in level 3 one
/// row takes 1.01 of the time, and two rows 1.05, if they fetch ahead on Zen 5.
constexpr int narrow_rows_ahead(int rows) { return kVectorIsLine && rows <= 2 ? 0 : panel_rows_ahead(rows); }

/// The other strips find the panel in level 2. A prefetch helps there, too, where half a core looks ahead too little,
/// next to a busy hardware thread of an Intel core: a load occupies a register until it completes, a prefetch none.
/// That is simulated only (docs/decisions/0025). On Zen 4 (AVX-512) it takes 0.996 to 1.003 of the time, and spares a
/// second copy of each strip.
constexpr int panel_rows_ahead_later(int rows) { return kVectorIsLine && rows > 2 ? panel_rows_ahead(rows) : 0; }

/// Fetches the numbers of the columns of a panel, ProjectionTile::bias, which the end of the panel reads. They lie far
/// from it: a row that reads weights from memory would wait for them at each panel. One row of int4 weights of 576 inputs
/// then takes 0.82 of its time, of 1536 inputs 0.92 (Zen 5).
inline void prefetch_bias(const ProjectionTile& tile, int rows) {
  const auto* const first = static_cast<const std::byte*>(tile.bias);
  for (int i = 0; i < rows * kPanelBytes; i += kVectorBytes) __builtin_prefetch(first + i);
}

/// Whether the first strip of rows of full-width weights is computed by a function of its own, which prefetches.
inline bool fetches_ahead(const ProjectionTile& tile) { return !kVectorIsLine || tile.rows > 2 || tile.fetches_ahead; }

}  // namespace
}  // namespace mha::MHA_ISA
