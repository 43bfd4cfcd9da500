// The fuzzer with libFuzzer, which looks for bytes that reach code nobody has reached before.
#include <cstdlib>
#include <iostream>

#include "../cpp/allocator.hpp"
#include "calls.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  mha::testing::refuse_allocations_above(std::size_t{256} << 20);
  mha::fuzz::Choices choices(data, size);
  mha::fuzz::Tally tally;
  try {
    mha::fuzz::fuzz(choices, tally);
  } catch (const mha::fuzz::Finding& finding) {
    std::cerr << finding.what() << '\n';
    std::abort();
  }
  return 0;
}
