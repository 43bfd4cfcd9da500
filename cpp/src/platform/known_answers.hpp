// Whether instructions that no kernel of ours was written on compute what they are supposed to.
#pragma once

#include "kernels/kernel_table.hpp"

namespace mha {

/// Whether tiles multiply with the bits that kernels and their model count on: two products of bf16, with roundings,
/// cancellation and subnormal numbers, and one of bytes. Takes about 2 us, on a thread in the state of
/// FloatingPointState.
bool gives_known_answers(const TileInstructions& tiles);

}  // namespace mha
