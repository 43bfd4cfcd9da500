// Chooses the kernels of a call: those of set_isa(), else of MHA_NATIVE_ISA, else the best that this machine runs.
#pragma once

#include "kernels/kernel_table.hpp"

namespace mha {

/// The kernels that a call computes with. To be asked once for each call, since set_isa() may change the answer.
/// Records the choice for last_used_isa().
/// @throws std::invalid_argument if MHA_NATIVE_ISA names an instruction set that is unknown or cannot run here
const KernelTable& active_kernels();

}  // namespace mha
