// Chooses the kernels of a call: by IsaScope or set_isa(), else by MHA_NATIVE_ISA, else the best that this machine runs.
#pragma once

#include <functional>
#include <string>

#include "kernels/kernel_table.hpp"
#include "platform/processor.hpp"

namespace mha {

/// The kernels that a call computes with. To be asked once for each call, since set_isa() may change the answer.
/// Records the choice for last_used_isa().
/// @throws std::invalid_argument if MHA_NATIVE_ISA names an instruction set that is unknown or cannot run here
const KernelTable& active_kernels();

/// Whether built_isa(index) may be the default on this processor, which may have instructions and be slow at them.
/// @throws std::invalid_argument if there is no such index
bool isa_preferred(int index);

/// This processor with the features that can be trusted: after asking the operating system for lent features, and
/// without features that compute wrong results. Found once, if an instruction set needs a lent feature.
const Processor& trusted_processor();

/// isa_supported(), isa_preferred() and isa_reason() for any processor, and its default; -1 if it runs none.
bool isa_runs_on(int index, const Processor& processor);
bool isa_pays_on(int index, const Processor& processor);
std::string isa_reason_on(int index, const Processor& processor);
int default_isa_on(const Processor& processor);

/// `processor` without the features of instruction sets that run on it and whose kernels are `refused`: those for which
/// gives_known_answers() is false. Features that earlier sets of the registry require, too, it keeps.
Processor without_refused(const Processor& processor, const std::function<bool(int index)>& refused);

/// The index of the default instruction set: the last of `count` that are supported and preferred; -1 if none is.
/// Others than those preferred are not asked about: the answer may take a loan from the operating system.
int default_isa_index(int count, const std::function<bool(int index)>& supported,
                      const std::function<bool(int index)>& preferred);

}  // namespace mha
