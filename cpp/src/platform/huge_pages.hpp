// Huge pages, for memory that is read from its begin to its end.
#pragma once

#include <cstddef>

namespace mha {

/// The size of a huge page of x86 processors, for systems that give huge pages to memory that asks for them.
constexpr std::size_t kHugePage = std::size_t{2} << 20;

/// Asks Linux for huge pages where `memory` fills them, in vain where it has none. Such memory is taken by 2 MiB where
/// it is first touched.
void ask_for_huge_pages(void* memory, std::size_t bytes);

}  // namespace mha
