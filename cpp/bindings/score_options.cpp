#include "score_options.hpp"

#include <string>

#include "scalars.hpp"

namespace mha::bindings {
namespace {

enum class Reading {
  // Of an array.
  mask_or_bias,
  mask,
  score_vectors,
  score_matrix,
  vector_of_either_dtype,
  integers,
  integers_of_rows,
  integers_if_array,
  // Of another object.
  integer_unless_array,
  integer,
  flag,
  left,
  right,
  real,
  positive_real
};

constexpr Reading kReadings[] = {
#define MHA_OPTION(field, type, argument, reading) Reading::reading,
#include <mha/attention_options.def>
#undef MHA_OPTION
};

// Whether None stands for the default.
constexpr bool may_be_none(Reading reading) { return reading != Reading::flag; }

bool reads_array(Reading reading, py::handle value) {
  return reading == Reading::integers_if_array ? is_array(value) : reading < Reading::integers_if_array;
}

// The argument of each row as an interned string: in Python's source code and keyword arguments, equal names are the same
// object, so that comparing pointers nearly always finds them.
class ArgumentNames {
 public:
  ArgumentNames() {
    for (int row = 0; row < option::kCount; ++row) names_[row] = PyUnicode_InternFromString(kOptionNames[row]);
  }

  // The first row of the argument `name`, or kCount if there is none. Options tend to come in the order of the rows, so
  // the search begins at row `from`.
  int first_row(PyObject* name, int from) const {
    for (int row = from; row < option::kCount; ++row)
      if (names_[row] == name) return row;
    for (int row = 0; row < from; ++row)
      if (names_[row] == name) return row;
    if (!PyUnicode_Check(name)) return option::kCount;
    int row = 0;
    while (row < option::kCount && PyUnicode_CompareWithASCIIString(name, kOptionNames[row]) != 0) ++row;
    return row;
  }

  bool is_same(int row, int other) const { return other < option::kCount && names_[other] == names_[row]; }

 private:
  PyObject* names_[option::kCount];  // never released
};

// One function for each reading: the field of a row, from a value that was given.
class Reader {
 public:
  Reader(const GivenOptions& given, const ArrayArguments& arrays, int first, Index batch_size, const TensorView& rows,
         std::forward_list<std::vector<std::int64_t>>& buffers)
      : given_(given), arrays_(arrays), first_(first), batch_size_(batch_size), rows_(rows), buffers_(buffers) {}

  TensorView mask_or_bias(int row) const { return arrays_.mask(first_ + row, true); }
  TensorView mask(int row) const { return arrays_.mask(first_ + row, false); }
  TensorView score_vectors(int row) const { return arrays_.scores(first_ + row, 1, 2); }
  TensorView score_matrix(int row) const { return arrays_.scores(first_ + row, 2, 2); }
  TensorView vector_of_either_dtype(int row) const { return arrays_.scores_or_tensor(first_ + row, 1, 1); }
  const std::int64_t* integers(int row) const {
    buffers_.push_front(arrays_.integers(first_ + row, batch_size_));
    return buffers_.front().data();
  }
  const std::int64_t* integers_of_rows(int row) const {
    buffers_.push_front(arrays_.integers_of_rows(first_ + row, rows_));
    return buffers_.front().data();
  }
  const std::int64_t* integers_if_array(int row) const { return is_array(given_[row]) ? integers(row) : nullptr; }
  std::int64_t integer_unless_array(int row) const {
    if (is_array(given_[row])) return 0;
    return bindings::integer(given_.function(), given_.name(row), given_[row], "an integer or an integer array [B]");
  }
  std::int64_t integer(int row) const { return bindings::integer(given_.function(), given_.name(row), given_[row]); }
  bool flag(int row) const { return boolean(given_.function(), given_.name(row), given_[row]); }
  std::int64_t left(int row) const { return of_pair(row, 0); }
  std::int64_t right(int row) const { return of_pair(row, 1); }
  double real(int row) const { return bindings::real(given_.function(), given_.name(row), given_[row], 0); }
  double positive_real(int row) const {
    return bindings::positive_real(given_.function(), given_.name(row), given_[row], 0);
  }

 private:
  std::int64_t of_pair(int row, int side) const {
    PyObject* const pair = given_[row].ptr();
    if (!(PyTuple_Check(pair) || PyList_Check(pair)) || PySequence_Fast_GET_SIZE(pair) != 2)
      throw py::type_error(describe(given_.function(), given_.name(row), "None or a pair (left, right)", pair));
    const std::string name = std::string(given_.name(row)) + (side == 0 ? "[0]" : "[1]");
    return bindings::integer(given_.function(), name.c_str(),
                             py::reinterpret_borrow<py::object>(PySequence_Fast_GET_ITEM(pair, side)));
  }

  const GivenOptions& given_;
  const ArrayArguments& arrays_;
  const int first_;
  const Index batch_size_;
  const TensorView& rows_;
  std::forward_list<std::vector<std::int64_t>>& buffers_;
};

}  // namespace

GivenOptions::GivenOptions(const char* function, const py::dict& options, const char* const* names)
    : function_(function), names_(names) {
  static const ArgumentNames known;
  PyObject *key, *value;
  int row = 0;
  for (Py_ssize_t position = 0; PyDict_Next(options.ptr(), &position, &key, &value);) {
    row = known.first_row(key, row);
    if (row == option::kCount)
      throw py::type_error(std::string(function) + ": " + py::cast<std::string>(py::repr(key)) + " is no score option");
    const int first = row;
    is_any_ = true;
    do {
      values_[row] = value == Py_None && may_be_none(kReadings[row]) ? nullptr : value;
    } while (known.is_same(first, ++row));
  }
}

void GivenOptions::write_arrays(Argument* arguments) const {
  for (int row = 0; row < option::kCount; ++row) {
    arguments[row] = {names_[row], has(row) && reads_array(kReadings[row], values_[row]) ? values_[row] : Py_None};
  }
}

ScoreOptions::ScoreOptions(const GivenOptions& given, const ArrayArguments& arrays, int first, py::handle given_threads,
                           Index batch_size, const TensorView& rows) {
  const Reader read(given, arrays, first, batch_size, rows, buffers_);
#define MHA_OPTION(field, type, argument, reading) \
  if (given.has(option::field)) field = read.reading(option::field);
#include <mha/attention_options.def>
#undef MHA_OPTION
  num_threads = threads_.emplace(given.function(), given_threads);
}

}  // namespace mha::bindings
