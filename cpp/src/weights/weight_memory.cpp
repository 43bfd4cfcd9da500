#include "weights/weight_memory.hpp"

#include <cstring>

#include "mha/errors.hpp"

#ifdef __linux__
#include <sys/mman.h>
#endif

namespace mha {

WeightMemory allocate_weights(std::size_t bytes) {
  const std::align_val_t alignment{bytes < kHugePage ? 64 : kHugePage};
  WeightMemory memory(new (alignment, std::nothrow) std::byte[bytes], {alignment});
  if (!memory) throw AllocationError(bytes);
#ifdef MADV_HUGEPAGE
  // The rest behind the last whole page stays as it is, so that no memory is taken that was not asked for.
  if (bytes >= kHugePage) madvise(memory.get(), bytes / kHugePage * kHugePage, MADV_HUGEPAGE);
#endif
  std::memset(memory.get(), 0, bytes);
  return memory;
}

}  // namespace mha
