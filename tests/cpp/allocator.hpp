// The allocator of test programs, in place of that of the library's language: it counts, and it fails when told to.
#pragma once

#include <cstddef>

namespace mha::testing {

/// The allocations of the whole process so far, those on other threads included.
long allocations();

/// Lets the n-th allocation from now on fail, counted from 1, and no other; 0: none.
void fail_allocation(long n);

/// Lets all fail that are larger than so many bytes.
void refuse_allocations_above(std::size_t bytes);

}  // namespace mha::testing
