// The blocks of GGUF files, as they lie in a file, in a panel (BlockPanel of kernels/kernel_table.hpp), and as numbers.
#pragma once

#include <cstddef>
#include <cstdint>

#include "mha/tensor_view.hpp"
#include "mha/weight_format.hpp"

namespace mha {

/// No block of a file has more bytes.
constexpr int kMostBlockBytes = 256;

/// Brings a block of a file to its place in a panel: `unit` is its BlockPanel, `column` its column there. No bit is lost.
void pack_block(WeightFormat format, const std::byte* block, std::byte* unit, Index column);
/// The inverse: the bytes of the file.
void unpack_block(WeightFormat format, const std::byte* unit, Index column, std::byte* block);

/// The weights of `count` blocks that follow one another, each rounded to f32 as the reader of GGUF files does it.
void dequantize_blocks(WeightFormat format, const std::byte* blocks, Index count, float* weights);

}  // namespace mha
