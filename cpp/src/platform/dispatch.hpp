// Chooses the kernel table: set_isa() > MHA_NATIVE_ISA > the best that this machine runs.
#pragma once

#include "kernels/kernel_table.hpp"

namespace mha {

/// The table that this call computes with; ask once per call and keep it. Records the choice for last_used_isa().
/// @throws std::invalid_argument if MHA_NATIVE_ISA asks for what is unknown or cannot run here
const KernelTable& active_kernels();

}  // namespace mha
