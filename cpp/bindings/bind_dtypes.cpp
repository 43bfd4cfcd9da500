// Element types by their names, and conversion of arrays from one type to another. NumPy can do this for all types but
// bfloat16.
#include <mha/half_precision.hpp>
#include <mha/linear.hpp>
#include <mha/weight_format.hpp>

#include <pybind11/numpy.h>

#include <algorithm>
#include <string>

#include "array_view.hpp"
#include "bindings.hpp"
#include "layer.hpp"
#include "numpy_dtypes.hpp"
#include "scalars.hpp"
#include "without_gil.hpp"

namespace mha::bindings {
namespace {

/// Calls visit(an element of the C++ type of `dtype`).
template <class Visit>
void with_element_of(DType dtype, Visit visit) {
  switch (dtype) {
#define MHA_DTYPE(name, scalar, accumulator) \
  case DType::name:                          \
    return visit(scalar{});
#include <mha/dtypes.def>
#undef MHA_DTYPE
    case DType::boolean:
    case DType::int8:
      break;
  }
}

// Copies the elements from `axis` on to dense memory, each rounded once. Returns the place after the last one. A view
// has at most kMaxRank axes; without the comparison GCC inlines the recursion beyond them and warns.
template <class From, class To>
To* copy_rounded(const From* from, const TensorView& view, int axis, To* to) {
  for (Index i = 0; i < view.extents[axis]; ++i, from += view.strides[axis]) {
    if (axis + 1 < view.rank && axis + 1 < kMaxRank)
      to = copy_rounded(from, view, axis + 1, to);
    else
      *to++ = from_double<To>(to_double(*from));
  }
  return to;
}

py::object convert(py::handle array, py::handle dtype) {
  const Argument list[] = {{"array", array}};
  const ArrayArguments arrays("convert", list);
  const TensorView view = arrays.tensor(0, 1, kMaxRank);
  const NewArray result = new_array(dtype_from("convert", dtype), view.rank, view.extents);
  with_element_of(view.dtype, [&](auto from) {
    with_element_of(result.view.dtype, [&](auto to) {
      copy_rounded(static_cast<const decltype(from)*>(view.data), view, 0,
                   static_cast<decltype(to)*>(result.view.data));
    });
  });
  return result.array;
}

py::dict weight_formats() {
  py::dict formats;
  for (int i = 1; i < kNumWeightFormats; ++i) {  // but for `plain`, which has the name of a dtype
    const auto format = static_cast<WeightFormat>(i);
    if (!has_blocks(format) && !is_removed(format)) formats[name_of(format)] = has_scales(format);
  }
  return formats;
}

py::dict block_formats() {
  py::dict formats;
  for (int i = 1; i < kNumWeightFormats; ++i) {
    const auto format = static_cast<WeightFormat>(i);
    if (has_blocks(format)) formats[name_of(format)] = py::make_tuple(block_features(format), block_bytes(format));
  }
  return formats;
}

Index weight_bytes(const std::string& name, Index in_features) {
  const WeightFormat format = format_called(name);
  const Index together = std::max({block_features(format), group_features(format), features_of(format)});
  return Index(double((in_features + together - 1) / together * together) * bits_of(format) / 8);
}

py::object dequantize(py::handle blocks, const std::string& format, py::handle num_threads) {
  const char* const function = "dequantize";
  const Argument list[] = {{"blocks", blocks}};
  const ArrayArguments arrays(function, list, DType::f32);
  const TensorView bytes = arrays.int8_tensor(0, 2, 2);
  const LinearWeights weights(bytes, {}, {}, format_called(format));
  const Index extents[] = {bytes.extents[0], weights.in_features()};
  const ThreadsArgument threads(function, num_threads);
  const NewArray result = arrays.new_array(DType::f32, 2, extents);
  warn_if_forked();
  without_gil([&] { dequantize(weights, result.view, threads); });
  return result.array;
}

}  // namespace

void bind_dtypes(py::module_& m) {
  m.def("bfloat16", &bfloat16_dtype, "() -> the dtype of ml_dtypes, or what stands in for it without that package");
  m.def(
      "dtype_name", [](const py::dtype& dtype) { return name_of_dtype(dtype); },
      "(dtype) -> str(dtype), also of what stands in for bfloat16");
  m.def("weight_formats", &weight_formats,
        "() -> {name: whether matrices have scales}, the formats of weights that a layer in float32 accepts");
  m.def("block_formats", &block_formats,
        "() -> {name: (weights of a block, its bytes)}, the formats of weights that lie in blocks");
  m.def("weight_bytes", &weight_bytes,
        "(format, in_features) -> the bytes in memory of the weights of an output feature");
  m.def("dequantize", &dequantize, "(blocks, format, num_threads) -> float32 [out_features, in_features]");
  m.def("convert", &convert, "(array, dtype) -> array, every number rounded once");
}

}  // namespace mha::bindings
