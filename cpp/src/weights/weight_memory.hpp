// The memory of packed weights.
#pragma once

#include <cstddef>
#include <memory>

#include "platform/huge_pages.hpp"

namespace mha {

using WeightMemory = std::shared_ptr<std::byte[]>;

/// The fewest bytes that lie in huge pages.
constexpr std::size_t kLeastInHugePages = kHugePage / 32;

/// `bytes` without values, aligned to 64 bytes.
///
/// From kLeastInHugePages on they are a part of an area that asks for huge pages. A token reads all weights once: with
/// pages of 4 KiB it waits for their addresses, 512 times as many, and processors fetch ahead no further than to the
/// end of a page. Many weights do not fill a huge page, so they lie one after another in areas of 32 MiB. An area is
/// taken as far as weights have filled it, to the end of a huge page, and is freed with the last of them.
/// docs/decisions/0023 has measurements.
/// @throws AllocationError
WeightMemory allocate_weights(std::size_t bytes);

}  // namespace mha
