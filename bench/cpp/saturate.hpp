// Instructions that the library does not use (yet), run flat out: what narrower types would be worth here. Only for a
// processor that has them.
#pragma once

namespace mha::bench {

/// Independent VDPBF16PS (AVX512-BF16), resp. VPDPBUSD (AVX512-VNNI): `rounds` rounds of 24 of them, as many as hide
/// the latency on two pipes and leave registers for the operands. Returns the operations done, two for each product.
double saturate_bf16(long rounds);
double saturate_int8(long rounds);

}  // namespace mha::bench
