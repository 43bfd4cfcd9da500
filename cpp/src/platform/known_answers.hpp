// Whether tiles give the bits that the kernels count on, which were written without a processor that has any.
#pragma once

#include "kernels/kernel_table.hpp"

namespace mha {

/// Whether tiles multiply with the bits that kernels and their model count on: two products of bf16, with roundings,
/// cancellation and subnormal numbers, and one of bytes. Takes about 2 us, on a thread in the state of
/// FloatingPointState.
bool gives_known_answers(const TileInstructions& tiles);

}  // namespace mha
