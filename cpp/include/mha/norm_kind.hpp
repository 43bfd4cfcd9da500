// Kinds of norms.
#pragma once

namespace mha {

/// `layer` is LayerNorm, `rms` RMSNorm; `rms_unit_offset` is RMSNorm that multiplies by 1 + weight.
enum class NormKind : unsigned char { layer, rms, rms_unit_offset };

}  // namespace mha
