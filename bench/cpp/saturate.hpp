// An instruction that the library uses for int8 weights, run flat out. Only for a processor that has it.
#pragma once

namespace mha::bench {

/// Independent VPDPBUSD (AVX512-VNNI): `rounds` rounds of 24 of them, as many as hide the latency on two pipes and leave
/// registers for the operands. Returns the operations done, two for each product.
double saturate_int8(long rounds);

}  // namespace mha::bench
