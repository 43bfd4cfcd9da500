// Shapes, dtypes and numbers as words, for error messages.
#pragma once

#include <string>
#include <utility>

#include "mha/tensor_view.hpp"

namespace mha {

/// "[2, 8, 16, 64]"
std::string shape_of(const TensorView& view);
/// "float32"
const char* name_of(DType dtype);
/// "-1e+300"
std::string text_of(double number);
/// "query [2, 8, 16, 64], key [2, 8, 16, 32]": the views that were given, in order.
std::string shapes_of(std::initializer_list<std::pair<const char*, TensorView>> views);
/// "query float32, key float64", likewise.
std::string dtypes_of(std::initializer_list<std::pair<const char*, TensorView>> views);

}  // namespace mha
