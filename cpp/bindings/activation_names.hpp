// Activations by their names in Python.
#pragma once

#include <utility>

#include <pybind11/pybind11.h>
#include <mha/activation.hpp>

#include "scalars.hpp"

namespace mha::bindings {

namespace py = pybind11;

constexpr std::pair<const char*, Activation> kActivations[] = {{"relu", Activation::relu},
                                                               {"gelu", Activation::gelu},
                                                               {"gelu_tanh", Activation::gelu_tanh},
                                                               {"silu", Activation::silu},
                                                               {"swiglu_oai", Activation::swiglu_oai},
                                                               {"quick_gelu", Activation::quick_gelu}};

inline Activation activation_called(const char* function, py::handle name) {
  const char* const rule = "'relu', 'gelu', 'gelu_tanh', 'silu', 'swiglu_oai' or 'quick_gelu'";
  if (!PyUnicode_Check(name.ptr())) throw py::type_error(describe(function, "activation", rule, name));
  for (const auto& [known, activation] : kActivations)
    if (PyUnicode_CompareWithASCIIString(name.ptr(), known) == 0) return activation;
  throw py::value_error(describe(function, "activation", rule, name));
}

inline const char* name_of(Activation activation) {
  for (const auto& [name, known] : kActivations)
    if (known == activation) return name;
  return "none";
}

}  // namespace mha::bindings
