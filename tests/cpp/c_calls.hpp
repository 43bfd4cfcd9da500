// Shared by the tests of mha/mha.h: arrays as C tensors, and checks of statuses.
#pragma once

#include <gtest/gtest.h>

#include <initializer_list>
#include <memory>

#include "arrays.hpp"
#include "mha/mha.h"

#define EXPECT_OK(call) EXPECT_EQ(call, MHA_OK) << mha_last_error()

namespace mha::testing {

template <class T>
mha_tensor c_tensor(const Array<T>& array) {
  const MutableTensorView& view = array.view();
  return mha_dense(view.data, static_cast<mha_dtype>(view.dtype), view.rank, view.extents);
}

inline void expect_failure(mha_status expected, mha_status actual, std::initializer_list<const char*> words) {
  EXPECT_EQ(actual, expected);
  expect_words(mha_last_error(), words);
}

/// A handle that is destroyed with its scope.
template <class Handle>
using Owned = std::unique_ptr<Handle, void (*)(Handle*)>;

}  // namespace mha::testing
