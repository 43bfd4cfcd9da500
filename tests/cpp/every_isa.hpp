// Tests on every instruction set of this machine.
#pragma once

#include <gtest/gtest.h>

#include "mha/runtime.hpp"

namespace mha::testing {

/// Calls check() for each instruction set that this machine runs, while calls of the library compute on it.
template <class Check>
void on_every_isa(Check check) {
  const struct Restore {
    ~Restore() { set_isa(nullptr); }
  } restore;
  int supported = 0;
  for (int index = 0; index < num_built_isas(); ++index) {
    if (!isa_supported(index)) continue;
    ++supported;
    SCOPED_TRACE(built_isa(index));
    set_isa(built_isa(index));
    check();
  }
  EXPECT_GT(supported, 0);
}

}  // namespace mha::testing
