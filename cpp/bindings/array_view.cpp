#include "array_view.hpp"

#include <algorithm>
#include <cstring>
#include <string>

#include <pybind11/numpy.h>

#include "scalars.hpp"

namespace mha::bindings {
namespace {

using py::detail::npy_api;

constexpr char kNotAnArray[] = "must be a NumPy array, or a CPU tensor that speaks DLPack";

// The fields of an array, read where they are: the accessors of py::array are slower, since they call back into Python
// or count references.
const py::detail::PyArray_Proxy& fields_of(py::handle array) { return *py::detail::array_proxy(array.ptr()); }

const py::detail::PyArrayDescr_Proxy& dtype_fields_of(py::handle array) {
  return *py::detail::array_descriptor_proxy(fields_of(array).descr);
}

// Sets `dtype` to the dtype of the array, if the core has it.
bool find_dtype_of(py::handle array, DType* dtype) { return find_dtype(fields_of(array).descr, dtype); }

bool is_native(py::handle array) {
  const std::uint16_t one = 1;
  unsigned char first_byte;
  std::memcpy(&first_byte, &one, 1);
  return dtype_fields_of(array).byteorder != (first_byte == 1 ? '>' : '<');
}

std::string shape_of(py::handle array) {
  std::string text = "[";
  for (int axis = 0; axis < fields_of(array).nd; ++axis) {
    if (axis > 0) text += ", ";
    text += std::to_string(fields_of(array).dimensions[axis]);
  }
  return text + "]";
}

py::object new_array_of(py::object dtype, int rank, const Index* extents) {
  const npy_api& numpy = npy_api::get();
  // NumPy takes over the reference to the descriptor.
  py::object array = py::reinterpret_steal<py::object>(numpy.PyArray_NewFromDescr_(
      numpy.PyArray_Type_, dtype.release().ptr(), rank, extents, nullptr, nullptr, 0, nullptr));
  if (!array) {
    if (PyErr_ExceptionMatches(PyExc_ValueError)) {  // more bytes than have addresses, in NumPy's words
      PyErr_Clear();
      PyErr_SetString(PyExc_MemoryError,
                      "mha_native: could not allocate an array with more bytes than memory can have");
    }
    throw py::error_already_set();
  }
  return array;
}

// Copies an integer array of one or two axes to int64; false if an element does not fit.
template <class T>
bool copy_integers(py::handle array, std::int64_t* values) {
  const py::detail::PyArray_Proxy& fields = fields_of(array);
  const int last = fields.nd - 1;
  for (Index row = 0; row < (last == 0 ? 1 : fields.dimensions[0]); ++row)
    for (Index i = 0; i < fields.dimensions[last]; ++i) {
      T element;
      std::memcpy(&element, fields.data + (last == 0 ? 0 : row * fields.strides[0]) + i * fields.strides[last],
                  sizeof element);
      *values = static_cast<std::int64_t>(element);
      if (element > T{} && *values < 0) return false;
      ++values;
    }
  return true;
}

}  // namespace

void ArrayArguments::type_error(int i, const std::string& rule) const {
  std::string message = std::string(function_) + ": " + arguments_[i].name + " " + rule + "; got ";
  const char* separator = "";
  for (int each = 0; each < count_; ++each) {
    if (!given(each) && each != i) continue;
    const py::handle array = arguments_[each].array;
    message += separator + std::string(arguments_[each].name) + " " +
               (is_array(array) ? name_of_dtype(fields_of(array).descr) : name_of_type(array));
    separator = ", ";
  }
  throw py::type_error(message);
}

std::string ArrayArguments::with_shapes(const std::string& rule) const {
  std::string message = std::string(function_) + ": " + rule + "; got ";
  const char* separator = "";
  for (int each = 0; each < count_; ++each) {
    if (!given(each) || !is_array(arguments_[each].array)) continue;
    message += separator + std::string(arguments_[each].name) + " " + shape_of(arguments_[each].array);
    separator = ", ";
  }
  return message;
}

void ArrayArguments::shape_error(int i, const std::string& rule) const {
  throw py::value_error(with_shapes(arguments_[i].name + (" " + rule)));
}

NewArray ArrayArguments::new_array(DType dtype, int rank, const Index* extents) const {
  try {
    return bindings::new_array(dtype, rank, extents);
  } catch (const py::error_already_set& error) {
    if (!error.matches(PyExc_MemoryError)) throw;
  }
  PyErr_SetString(PyExc_MemoryError, with_shapes("could not allocate an array for the result").c_str());
  throw py::error_already_set();
}

// The dtype of an argument that must be an array of floating-point numbers.
DType ArrayArguments::dtype_of(int i) const {
  const py::handle array = arguments_[i].array;
  if (!is_array(array)) type_error(i, kNotAnArray);
  DType dtype = DType::boolean;
  if (!find_dtype_of(array, &dtype) || static_cast<int>(dtype) >= kNumDTypes)
    type_error(i, "must be " + accepted_dtypes());
  return dtype;
}

TensorView ArrayArguments::view(int i, Accept accept, int min_rank, int max_rank) const {
  const py::handle array = arguments_[i].array;
  if (!is_array(array)) type_error(i, kNotAnArray);

  TensorView view;
  const bool known = find_dtype_of(array, &view.dtype);
  const bool is_boolean = known && view.dtype == DType::boolean;
  if (accept == Accept::boolean && !is_boolean) type_error(i, "must be bool");
  if (accept == Accept::int8 && !(known && view.dtype == DType::int8)) type_error(i, "must be int8");
  const bool may_be_boolean = accept == Accept::boolean || accept == Accept::boolean_or_call_dtype;
  const bool may_be_either = accept == Accept::score_or_call_dtype;
  const bool is_score = accept == Accept::score_dtype || may_be_either;
  const DType expected = is_score ? accumulator_of(dtype_) : accept == Accept::int8 ? DType::int8 : dtype_;
  const bool is_expected = known && (view.dtype == expected || (may_be_either && view.dtype == dtype_));
  if (!(is_boolean && may_be_boolean) && !is_expected)
    type_error(
        i, std::string(may_be_boolean ? "must be bool or" : "must be") + " of the dtype of " +
               (!is_score                                  ? same_dtype_as_
                : std::string(arguments_[i].name) == "lse" ? "scores"
                                                           : "lse") +
               ", " + name_of(expected) +
               (may_be_either && dtype_ != expected ? std::string(", or of ") + same_dtype_as_ + ", " + name_of(dtype_)
                                                    : ""));
  if (!is_native(array)) type_error(i, "must be in native byte order");

  const py::detail::PyArray_Proxy& fields = fields_of(array);
  if ((fields.flags & npy_api::NPY_ARRAY_ALIGNED_) == 0) type_error(i, "must be aligned in memory");
  if (fields.nd < min_rank || fields.nd > max_rank) {
    const std::string span = min_rank == max_rank ? "" : std::to_string(min_rank) + " to ";
    shape_error(i, "must have " + span + std::to_string(max_rank) + (max_rank == 1 ? " axis" : " axes"));
  }
  if (fields.base != nullptr) check_owner(i);
  view.data = fields.data;
  view.rank = fields.nd;
  const Index item = size_of(view.dtype);
  for (int axis = 0; axis < fields.nd; ++axis) {
    view.extents[axis] = fields.dimensions[axis];
    view.strides[axis] = fields.strides[axis] / item;
    if (fields.strides[axis] % item != 0 && view.extents[axis] > 1)
      type_error(i, "must have strides that are multiples of its item size");
  }
  return view;
}

TensorView ArrayArguments::tensor(int i, int min_rank, int max_rank) const {
  return view(i, Accept::call_dtype, min_rank, max_rank);
}

TensorView ArrayArguments::int8_tensor(int i, int min_rank, int max_rank) const {
  return view(i, Accept::int8, min_rank, max_rank);
}

TensorView ArrayArguments::optional_tensor(int i, int min_rank, int max_rank) const {
  return given(i) ? tensor(i, min_rank, max_rank) : TensorView{};
}

TensorView ArrayArguments::mask(int i, bool may_add) const {
  if (!given(i)) return {};
  TensorView mask = view(i, may_add ? Accept::boolean_or_call_dtype : Accept::boolean, 0, kMaxRank);
  if (mask.rank == 0) {
    mask.rank = 1;
    mask.extents[0] = 1;
  }
  return mask;
}

TensorView ArrayArguments::scores(int i, int min_rank, int max_rank) const {
  return view(i, Accept::score_dtype, min_rank, max_rank);
}

TensorView ArrayArguments::scores_or_tensor(int i, int min_rank, int max_rank) const {
  return view(i, Accept::score_or_call_dtype, min_rank, max_rank);
}

MutableTensorView ArrayArguments::output(int i, int min_rank, int max_rank) const {
  return writable(i, tensor(i, min_rank, max_rank));
}

MutableTensorView ArrayArguments::score_output(int i, int rank) const {
  return writable(i, view(i, Accept::score_dtype, rank, rank));
}

MutableTensorView ArrayArguments::writable(int i, const TensorView& view) const {
  const py::detail::PyArray_Proxy& fields = fields_of(arguments_[i].array);
  if ((fields.flags & npy_api::NPY_ARRAY_WRITEABLE_) == 0) shape_error(i, "must be writable");
  MutableTensorView output;
  output.data = fields.data;
  output.dtype = view.dtype;
  output.rank = view.rank;
  for (int axis = 0; axis < view.rank; ++axis) {
    output.extents[axis] = view.extents[axis];
    output.strides[axis] = view.strides[axis];
  }
  return output;
}

void ArrayArguments::check_integers(int i) const {
  const py::handle array = arguments_[i].array;
  const int number = is_array(array) ? dtype_fields_of(array).type_num : -1;
  if (number < npy_api::NPY_BYTE_ || number > npy_api::NPY_ULONGLONG_) type_error(i, "must be an integer array");
  if (!is_native(array)) type_error(i, "must be in native byte order");
  if (fields_of(array).base != nullptr) check_owner(i);
}

void ArrayArguments::check_owner(int i) const {
  const py::handle array = arguments_[i].array;
  py::handle owner = fields_of(array).base;
  while (owner && is_array(owner)) owner = fields_of(owner).base;
  if (owner && !PyCapsule_CheckExact(owner.ptr()) && !is_in_storage(array, owner))
    type_error(i, "must lie in the storage of its tensor, which was shrunk");
}

Index ArrayArguments::count_integers(int i) const {
  check_integers(i);
  if (fields_of(arguments_[i].array).nd != 1) shape_error(i, "must have 1 axis");
  return fields_of(arguments_[i].array).dimensions[0];
}

std::vector<std::int64_t> ArrayArguments::integers_of_rows(int i, const TensorView& rows) const {
  check_integers(i);
  const py::detail::PyArray_Proxy& fields = fields_of(arguments_[i].array);
  const bool has_batch = rows.rank == 3;
  const Index length = has_batch ? rows.extents[1] : rows.extents[0], batch = has_batch ? rows.extents[0] : 1;
  const bool is_whole = has_batch && fields.nd == 2 && fields.dimensions[0] == batch;
  if (!(is_whole || fields.nd == 1) || fields.dimensions[fields.nd - 1] != length)
    shape_error(i, "must have one entry for each row, [" + std::to_string(length) + "]" +
                       (has_batch ? " or [" + std::to_string(batch) + ", " + std::to_string(length) + "]" : ""));
  std::vector<std::int64_t> values = copied_integers(i);
  if (is_whole) return values;
  values.resize(static_cast<std::size_t>(batch * length));
  for (Index b = 1; b < batch; ++b) std::copy_n(values.data(), length, values.data() + b * length);
  return values;
}

std::vector<std::int64_t> ArrayArguments::integers(int i, Index length, const char* rule) const {
  if (count_integers(i) != length) shape_error(i, rule + (", " + std::to_string(length)));
  return integers(i);
}

std::vector<std::int64_t> ArrayArguments::offsets(int i) const {
  if (count_integers(i) == 0) shape_error(i, "must have at least one entry");
  return integers(i);
}

IntegerRows ArrayArguments::integer_rows(int i, Index rows) const {
  check_integers(i);
  const py::detail::PyArray_Proxy& fields = fields_of(arguments_[i].array);
  if (fields.nd != 2 || fields.dimensions[0] != rows)
    shape_error(i, "must have two axes and one row for each batch element, " + std::to_string(rows));
  return {copied_integers(i), fields.dimensions[1]};
}

std::vector<std::int64_t> ArrayArguments::integers(int i) const {
  count_integers(i);
  return copied_integers(i);
}

std::vector<std::int64_t> ArrayArguments::copied_integers(int i) const {
  const py::handle array = arguments_[i].array;
  const py::detail::PyArray_Proxy& fields = fields_of(array);
  std::vector<std::int64_t> values(
      static_cast<std::size_t>(fields.dimensions[0] * (fields.nd == 1 ? 1 : fields.dimensions[1])));
  bool fits = true;
  switch (dtype_fields_of(array).type_num) {
#define MHA_INTEGER(number, type)                     \
  case npy_api::number:                               \
    fits = copy_integers<type>(array, values.data()); \
    break;
    MHA_INTEGER(NPY_BYTE_, signed char)
    MHA_INTEGER(NPY_UBYTE_, unsigned char)
    MHA_INTEGER(NPY_SHORT_, short)
    MHA_INTEGER(NPY_USHORT_, unsigned short)
    MHA_INTEGER(NPY_INT_, int)
    MHA_INTEGER(NPY_UINT_, unsigned int)
    MHA_INTEGER(NPY_LONG_, long)
    MHA_INTEGER(NPY_ULONG_, unsigned long)
    MHA_INTEGER(NPY_LONGLONG_, long long)
    MHA_INTEGER(NPY_ULONGLONG_, unsigned long long)
#undef MHA_INTEGER
    default:
      break;
  }
  if (!fits) shape_error(i, "must hold integers of at most 63 bits");
  return values;
}

bool is_in_storage(py::handle array, py::handle owner) {
  static PyObject* const untyped_storage = PyUnicode_InternFromString("untyped_storage");
  static PyObject* const data_ptr = PyUnicode_InternFromString("data_ptr");
  const auto storage = py::reinterpret_steal<py::object>(PyObject_CallMethodNoArgs(owner.ptr(), untyped_storage));
  if (!storage) {  // not a tensor of torch
    PyErr_Clear();
    return true;
  }
  const Py_ssize_t bytes = PyObject_Size(storage.ptr());
  const auto address = py::reinterpret_steal<py::object>(PyObject_CallMethodNoArgs(storage.ptr(), data_ptr));
  if (bytes < 0 || !address) throw py::error_already_set();
  const py::detail::PyArray_Proxy& fields = fields_of(array);
  auto first = reinterpret_cast<std::uintptr_t>(fields.data);
  std::uintptr_t end = first + static_cast<std::uintptr_t>(py::reinterpret_borrow<py::array>(array).itemsize());
  for (int axis = 0; axis < fields.nd; ++axis) {
    if (fields.dimensions[axis] == 0) return true;
    const Index span = (fields.dimensions[axis] - 1) * fields.strides[axis];
    (span < 0 ? first : end) += static_cast<std::uintptr_t>(span);
  }
  const auto begin = address.cast<std::uintptr_t>();
  return begin <= first && end <= begin + static_cast<std::uintptr_t>(bytes);
}

bool is_array(py::handle object) { return npy_api::get().PyArray_Check_(object.ptr()); }

NewArray new_array(DType dtype, int rank, const Index* extents) {
  NewArray result;
  result.array = new_array_of(numpy_dtype(dtype), rank, extents);
  result.view.data = fields_of(result.array).data;
  result.view.dtype = dtype;
  result.view.rank = rank;
  Index stride = 1;
  for (int axis = rank - 1; axis >= 0; --axis) {
    result.view.extents[axis] = extents[axis];
    result.view.strides[axis] = stride;
    stride *= extents[axis];
  }
  return result;
}

NewArray output_or_new(const ArrayArguments& arrays, int i, py::handle out, int least_rank, int most_rank,
                       const TensorView& view, Index last_extent) {
  if (arrays.given(i)) return {py::reinterpret_borrow<py::object>(out), arrays.output(i, least_rank, most_rank)};
  Index extents[kMaxRank];
  for (int axis = 0; axis < view.rank; ++axis) extents[axis] = view.extents[axis];
  extents[view.rank - 1] = last_extent;
  return arrays.new_array(view.dtype, view.rank, extents);
}

NewIntegers new_integers(int rank, const Index* extents) {
  const py::object array = new_array_of(py::dtype::of<std::int64_t>(), rank, extents);
  return {array, reinterpret_cast<std::int64_t*>(fields_of(array).data)};
}

py::object array_over(const TensorView& view, py::handle owner) {
  Index strides[kMaxRank];
  for (int axis = 0; axis < view.rank; ++axis) strides[axis] = view.strides[axis] * size_of(view.dtype);
  const npy_api& numpy = npy_api::get();
  // NumPy takes over the references to the descriptor and to the owner. The flags lack NPY_ARRAY_WRITEABLE, so the
  // array is read-only.
  py::object array = py::reinterpret_steal<py::object>(
      numpy.PyArray_NewFromDescr_(numpy.PyArray_Type_, numpy_dtype(view.dtype).release().ptr(), view.rank, view.extents,
                                  strides, const_cast<void*>(view.data), npy_api::NPY_ARRAY_ALIGNED_, nullptr));
  if (!array) throw py::error_already_set();
  if (numpy.PyArray_SetBaseObject_(array.ptr(), owner.inc_ref().ptr()) < 0) throw py::error_already_set();
  return array;
}

}  // namespace mha::bindings
