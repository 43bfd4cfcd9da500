// The memory of packed weights.
#pragma once

#include <cstddef>
#include <memory>
#include <new>

namespace mha {

struct FreeWeights {
  std::align_val_t alignment{64};
  void operator()(std::byte* data) const { ::operator delete[](data, alignment); }
};
using WeightMemory = std::unique_ptr<std::byte[], FreeWeights>;

/// What an x86 processor maps at once where the system has huge pages for memory that asks for them.
constexpr std::size_t kHugePage = std::size_t{2} << 20;

/// `bytes` zeros, aligned to 64 bytes, or from kHugePage on to kHugePage. Those of them that fill huge pages ask Linux
/// for such pages, in vain where it has none. A token reads all weights once: with pages of 4 KiB it waits for their
/// addresses, 512 times as many.
/// @throws AllocationError
WeightMemory allocate_weights(std::size_t bytes);

}  // namespace mha
