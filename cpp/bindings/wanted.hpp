// The argument `wrt` of gradients.
#pragma once

#include <string>

#include <pybind11/pybind11.h>

#include "array_view.hpp"
#include "scalars.hpp"

namespace mha::bindings {

namespace py = pybind11;

/// Which arguments a gradient is wanted of: `wrt`, a tuple of some of `names`.
template <int kNames>
class Wanted {
 public:
  Wanted(const char* function, const char* const (&names)[kNames], py::handle wrt)
      : function_(function), names_(names) {
    std::string rule = "a tuple of names of arguments: ";
    for (int i = 0; i < kNames; ++i) rule += (i == 0 ? "'" : ", '") + std::string(names[i]) + "'";
    if (!PyTuple_Check(wrt.ptr())) throw py::type_error(describe(function, "wrt", rule.c_str(), wrt));
    for (const py::handle name : wrt) {
      int i = 0;
      if (!PyUnicode_Check(name.ptr())) throw py::type_error(describe(function, "wrt", rule.c_str(), wrt));
      while (i < kNames && PyUnicode_CompareWithASCIIString(name.ptr(), names[i]) != 0) ++i;
      if (i == kNames) throw py::value_error(describe(function, "wrt", rule.c_str(), wrt));
      is_wanted_[i] = true;
    }
  }

  bool has(int i) const { return is_wanted_[i]; }
  bool has_any() const {
    for (const bool is_wanted : is_wanted_)
      if (is_wanted) return true;
    return false;
  }

  /// A new array of the shape of `view`, argument i, for its gradient; None and an empty view if it is not wanted.
  NewArray gradient(const ArrayArguments& arrays, int i, const TensorView& view, DType dtype) const {
    if (!is_wanted_[i]) return {py::none(), {}};
    if (!view) throw py::value_error(std::string(function_) + ": wrt names " + names_[i] + ", which is not given");
    return arrays.new_array(dtype, view.rank, view.extents);
  }

 private:
  const char* function_;
  const char* const (&names_)[kNames];
  bool is_wanted_[kNames] = {};
};

}  // namespace mha::bindings
