// The number of keys that attention takes at a time.
#pragma once

#include "kernels/kernel_table.hpp"

namespace mha::MHA_ISA {
namespace {

/// Keys in a block. S^T takes 16 KB (f32, AVX-512), as do a block of K or V at D = 64 and Q^T: level 1 (32 KB on Zen 4,
/// 48 KB on Zen 5) holds what a product works on. As many keys as a tile has queries, so that under a causal mask one
/// block in a tile is cut, not two. 96 and 128 keys are no faster without a mask and 2 to 3 % slower with one at T =
/// 512: docs/decisions/0003.
constexpr Index kKeyBlock = 64;
static_assert(kSpanKeys % kKeyBlock == 0);

}  // namespace
}  // namespace mha::MHA_ISA
