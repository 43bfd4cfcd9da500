#include "views/describe.hpp"

#include <algorithm>
#include <cstdio>

namespace mha {

std::string shape_of(const TensorView& view) {
  std::string text = "[";
  for (int axis = 0; axis < std::min(view.rank, kMaxRank); ++axis)
    text += (axis ? ", " : "") + std::to_string(view.extents[axis]);
  return text + "]";
}

const char* name_of(DType dtype) {
  switch (dtype) {
    case DType::f32:
      return "float32";
    case DType::f64:
      return "float64";
    case DType::f16:
      return "float16";
    case DType::bf16:
      return "bfloat16";
    case DType::boolean:
      return "bool";
    case DType::int8:
      return "int8";
  }
  return "unknown";
}

std::string text_of(double number) {
  char text[32];  // std::to_string() would write 300 digits of 1e300
  std::snprintf(text, sizeof text, "%g", number);
  return text;
}

namespace {
template <class Word>
std::string list(std::initializer_list<std::pair<const char*, TensorView>> views, Word word) {
  std::string text;
  for (const auto& [name, view] : views)
    if (view) text += (text.empty() ? "" : ", ") + std::string(name) + " " + word(view);
  return text;
}
}  // namespace

std::string shapes_of(std::initializer_list<std::pair<const char*, TensorView>> views) {
  return list(views, [](const TensorView& view) { return shape_of(view); });
}

std::string dtypes_of(std::initializer_list<std::pair<const char*, TensorView>> views) {
  return list(views, [](const TensorView& view) { return std::string(name_of(view.dtype)); });
}

}  // namespace mha
