#include "checks/rules.hpp"

#include "views/describe.hpp"
#include "views/memory_overlap.hpp"
#include "views/sizes.hpp"

namespace mha {
namespace {

bool is_same_view(const TensorView& a, const TensorView& b) {
  if (a.data != b.data || a.rank != b.rank) return false;
  for (int axis = 0; axis < a.rank; ++axis)
    if (a.extents[axis] != b.extents[axis] || (a.extents[axis] > 1 && a.strides[axis] != b.strides[axis])) return false;
  return true;
}

}  // namespace

void fail(const char* function, const std::string& rule, Named views) {
  throw std::invalid_argument(std::string(function) + ": " + rule + "; got " + shapes_of(views));
}

bool has_shape(const TensorView& view, std::initializer_list<Index> shape) {
  int axis = 0;
  for (Index extent : shape)
    if (axis >= view.rank || view.extents[axis++] != extent) return false;
  return axis == view.rank;
}

const char* zero_or_normal(DType dtype) {
  return dtype == DType::f64 ? "0, or at least 2.3e-308 in magnitude" : "0, or at least 1.2e-38 in magnitude";
}

void check_tensor(const char* function, const char* name, const TensorView& view) {
  if (view.rank == 0) return;  // not given
  const auto check = [&](bool holds, const char* rule) {
    if (!holds) fail(function, std::string(name) + rule, {{name, view}});
  };
  check(view.rank >= 0 && view.rank <= kMaxRank, " must have at most 4 axes");
  if (view.data != nullptr && is_plainly_addressable(view)) return;
  for (int axis = 0; axis < view.rank; ++axis) check(view.extents[axis] >= 0, " must not have a negative extent");
  check(is_addressable(view), " must not have sizes or strides that exceed what a processor addresses, 2^60 bytes");
  check(view.data != nullptr || !has_elements(view), " must point to its elements, not be a null pointer");
}

void check_rank(const char* function, const char* name, const TensorView& view, int least, int most, Named views) {
  if (view.rank < least || view.rank > most)
    fail(function,
         std::string(name) + " must have " + (least == most ? "" : std::to_string(least) + " to ") +
             std::to_string(most) + " axes",
         views);
  check_tensor(function, name, view);
}

void check_same_shape(const char* function, const char* name, const TensorView& view, const char* other_name,
                      const TensorView& other) {
  bool is_same = view.rank == other.rank;
  for (int axis = 0; axis < other.rank; ++axis) is_same = is_same && view.extents[axis] == other.extents[axis];
  if (!is_same)
    fail(function, std::string(name) + " must have the shape of " + other_name, {{name, view}, {other_name, other}});
}

void check_dtypes(const char* function, DType expected, Named views) {
  for (const auto& [name, view] : views)
    if (view && (view.dtype != expected || static_cast<int>(expected) >= kNumDTypes))
      throw DTypeError(std::string(function) + ": all tensors must have one floating-point dtype; got " +
                       dtypes_of(views));
}

void check_output(const char* function, const char* name, const MutableTensorView& out, Named inputs) {
  const TensorView written = out;
  check_tensor(function, name, written);
  if (may_overlap_itself(written))
    fail(function, std::string(name) + " must not have two indices for one element (a stride of 0)", {{name, out}});
  for (const auto& [input, view] : inputs)
    if (view && may_overlap(written, view))
      fail(function, std::string(name) + " must not overlap " + input + " in memory", {{name, out}, {input, view}});
}

void check_rows_output(const char* f, const TensorView& x, const MutableTensorView& out) {
  bool has_shape_of_x = out.rank == x.rank;
  for (int axis = 0; axis < x.rank; ++axis) has_shape_of_x = has_shape_of_x && out.extents[axis] == x.extents[axis];
  if (!has_shape_of_x) fail(f, "out must have the shape of x", {{"out", out}, {"x", x}});
  if (is_same_view(x, out))
    check_output(f, "out", out, {});
  else
    check_output(f, "out", out, {{"x", x}});
}

void check_copy(const char* function, const char* name, const MutableTensorView& out, DType dtype,
                std::initializer_list<Index> shape) {
  if (!out) return;
  if (out.dtype != dtype)
    throw DTypeError(std::string(function) + ": " + name + " must be " + name_of(dtype) + "; got " +
                     name_of(out.dtype));
  if (!has_shape(out, shape)) {
    std::string extents;
    for (Index extent : shape) extents += (extents.empty() ? "" : ", ") + std::to_string(extent);
    fail(function, std::string(name) + " must be [" + extents + "]", {{name, out}});
  }
  check_output(function, name, out, {});
}

}  // namespace mha
