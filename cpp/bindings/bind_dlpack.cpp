// Tensors of other libraries as NumPy arrays over the same memory, and back, by DLPack. NumPy can do this for all types
// but bfloat16.
#include <algorithm>
#include <memory>
#include <string>
#include <type_traits>
#include <vector>

#include <pybind11/numpy.h>

#include <mha/tensor_view.hpp>

#include "array_view.hpp"
#include "bindings.hpp"
#include "dlpack.hpp"
#include "numpy_dtypes.hpp"

namespace mha::bindings {
namespace {

using namespace dlpack;
using py::detail::npy_api;

struct ElementType {
  std::uint8_t code, bits;
  int number;  // the type number of NumPy
};

// The types that DLPack and NumPy have in common, except bfloat16, whose type number is not fixed. The table has
// types that the core does not compute with, so that its error messages can name them.
constexpr ElementType kElementTypes[] = {
    {kFloat, 32, npy_api::NPY_FLOAT_},    {kFloat, 64, npy_api::NPY_DOUBLE_},     {kFloat, 16, kNumpyHalf},
    {kInt, 64, npy_api::NPY_INT64_},      {kInt, 32, npy_api::NPY_INT32_},        {kInt, 16, npy_api::NPY_INT16_},
    {kInt, 8, npy_api::NPY_INT8_},        {kUInt, 64, npy_api::NPY_UINT64_},      {kUInt, 32, npy_api::NPY_UINT32_},
    {kUInt, 16, npy_api::NPY_UINT16_},    {kUInt, 8, npy_api::NPY_UINT8_},        {kBool, 8, npy_api::NPY_BOOL_},
    {kComplex, 64, npy_api::NPY_CFLOAT_}, {kComplex, 128, npy_api::NPY_CDOUBLE_},
};

py::object numpy_dtype_of(const DataType& dtype) {
  if (dtype.code == kBfloat && dtype.bits == 16 && dtype.lanes == 1) return numpy_dtype(DType::bf16);
  for (const ElementType& type : kElementTypes)
    if (dtype.code == type.code && dtype.bits == type.bits && dtype.lanes == 1)
      return py::reinterpret_steal<py::object>(npy_api::get().PyArray_DescrFromType_(type.number));
  throw py::type_error("NumPy has no such elements (DLPack type " + std::to_string(dtype.code) + " of " +
                       std::to_string(dtype.bits) + " bits, " + std::to_string(dtype.lanes) + " lanes)");
}

DataType data_type_of(py::handle numpy_dtype) {
  DType found = DType::boolean;
  if (find_dtype(numpy_dtype, &found) && found == DType::bf16) return {kBfloat, 16, 1};
  const int number = py::detail::array_descriptor_proxy(numpy_dtype.ptr())->type_num;
  for (const ElementType& type : kElementTypes)
    if (number == type.number) return {type.code, type.bits, 1};
  throw py::type_error("DLPack has no elements of type " + name_of_dtype(numpy_dtype));
}

// Throws if the memory of a tensor cannot be read here, whatever its library said of it. Without an address NumPy would
// make an array over new memory, with any numbers in it.
void check_memory(const Tensor& tensor) {
  if (tensor.device.type != kCpu && tensor.device.type != kCudaHost && tensor.device.type != kRocmHost)
    throw py::type_error("its memory is on a device, DLPack type " + std::to_string(tensor.device.type));
  const auto is_empty = [](std::int64_t extent) { return extent == 0; };
  if (!tensor.data && std::none_of(tensor.extents, tensor.extents + tensor.rank, is_empty))
    throw py::type_error("it has no memory, as a fake tensor or one whose storage was freed");
}

// An array over the memory of `source`, whose capsule this is. The capsule counts as used from then on. The array calls
// the deleter of the capsule's tensor when it is destroyed.
template <class Managed>
py::object import_tensor(py::handle capsule, py::handle source) {
  auto* const managed = static_cast<Managed*>(PyCapsule_GetPointer(capsule.ptr(), Managed::kName));
  if (!managed) throw py::error_already_set();
  int flags = npy_api::NPY_ARRAY_ALIGNED_;
  if constexpr (std::is_same_v<Managed, ManagedTensorVersioned>) {
    if (managed->major != kMajorVersion)
      throw py::type_error("its version of DLPack is " + std::to_string(managed->major) + ", not " +
                           std::to_string(kMajorVersion));
    // An array over a copy is read-only, too: writes would not reach the tensor.
    if ((managed->flags & (kReadOnly | kIsCopied)) == 0) flags |= npy_api::NPY_ARRAY_WRITEABLE_;
  }
  const Tensor& tensor = managed->tensor;
  py::object dtype = numpy_dtype_of(tensor.dtype);
  check_memory(tensor);

  PyObject* const owner_or_null = PyCapsule_New(managed, nullptr, [](PyObject* owner) {
    // The array may be destroyed while an exception is being raised, which the deleter must neither see nor clear.
    const py::error_scope raised;
    auto* const owned = static_cast<Managed*>(PyCapsule_GetPointer(owner, nullptr));
    if (owned->deleter) owned->deleter(owned);
  });
  if (!owner_or_null) throw py::error_already_set();
  py::object owner = py::reinterpret_steal<py::object>(owner_or_null);
  PyCapsule_SetName(capsule.ptr(), Managed::kUsedName);

  const Index item = tensor.dtype.bits / 8;
  std::vector<Index> extents(tensor.extents, tensor.extents + tensor.rank), strides(extents.size());
  Index dense = item;
  for (std::size_t axis = extents.size(); axis-- > 0; dense *= extents[axis])
    strides[axis] = tensor.strides ? static_cast<Index>(tensor.strides[axis]) * item : dense;
  void* const data = tensor.data ? static_cast<std::byte*>(tensor.data) + tensor.byte_offset : nullptr;

  const npy_api& numpy = npy_api::get();
  // NumPy takes over the references to the descriptor and to the owner.
  py::object array = py::reinterpret_steal<py::object>(numpy.PyArray_NewFromDescr_(
      numpy.PyArray_Type_, dtype.release().ptr(), tensor.rank, extents.data(), strides.data(), data, flags, nullptr));
  if (!array) throw py::error_already_set();
  if (numpy.PyArray_SetBaseObject_(array.ptr(), owner.release().ptr()) < 0) throw py::error_already_set();
  if (!is_in_storage(array, source)) throw py::type_error("its storage was shrunk, and ends before its elements do");
  return array;
}

py::object from_dlpack(py::handle capsule, py::handle source) {
  if (PyCapsule_IsValid(capsule.ptr(), ManagedTensorVersioned::kName))
    return import_tensor<ManagedTensorVersioned>(capsule, source);
  return import_tensor<ManagedTensor>(capsule, source);
}

// The owner of an array that another library has as a tensor.
template <class Managed>
struct Export {
  Managed managed = {};
  std::vector<std::int64_t> extents, strides;
  py::object array;
};

// The tensor as a capsule, which calls the deleter of the tensor unless a library takes it.
template <class Managed>
py::object capsule_of(Managed* managed) {
  PyObject* const capsule = PyCapsule_New(managed, Managed::kName, [](PyObject* self) {
    if (!PyCapsule_IsValid(self, Managed::kName)) return;  // a library has taken the tensor
    auto* const unused = static_cast<Managed*>(PyCapsule_GetPointer(self, Managed::kName));
    if (unused->deleter) unused->deleter(unused);
  });
  if (!capsule) throw py::error_already_set();
  return py::reinterpret_steal<py::object>(capsule);
}

template <class Managed>
std::unique_ptr<Export<Managed>> export_array(const py::array& array) {
  auto exported = std::make_unique<Export<Managed>>();
  Managed& managed = exported->managed;
  const Index item = array.itemsize();
  for (Index axis = 0; axis < array.ndim(); ++axis) {
    exported->extents.push_back(array.shape(axis));
    exported->strides.push_back(array.strides(axis) / item);
  }
  managed.tensor = {const_cast<void*>(array.data()),
                    {kCpu, 0},
                    static_cast<std::int32_t>(array.ndim()),
                    data_type_of(array.dtype()),
                    exported->extents.data(),
                    exported->strides.data(),
                    0};
  if constexpr (std::is_same_v<Managed, ManagedTensorVersioned>) managed.major = kMajorVersion;
  exported->array = array;
  managed.context = exported.get();
  managed.deleter = [](Managed* done) {
    // This may be called from any thread, and after the interpreter has ended, when nothing can be released any more.
    if (!Py_IsInitialized()) return;
    const py::gil_scoped_acquire locked;
    delete static_cast<Export<Managed>*>(done->context);
  };
  return exported;
}

template <class Managed>
py::object export_to_capsule(const py::array& array) {
  auto exported = export_array<Managed>(array);
  py::object capsule = capsule_of(&exported->managed);
  exported.release();
  return capsule;
}

// The functions of a library, from the capsule that its type of tensors has; null if it has none of this version.
const ExchangeApi* functions_of(py::handle exchange) {
  const auto* api = static_cast<const ExchangeApi*>(PyCapsule_GetPointer(exchange.ptr(), ExchangeApi::kName));
  if (!api) throw py::error_already_set();
  while (api && api->major != kMajorVersion) api = api->older;
  return api;
}

py::object array_of_tensor(py::handle exchange, py::handle tensor) {
  const ExchangeApi* const api = functions_of(exchange);
  if (!api) return py::none();
  ManagedTensorVersioned* managed = nullptr;
  if (api->export_tensor(tensor.ptr(), &managed) != 0) throw py::error_already_set();
  const py::object capsule = capsule_of(managed);
  // Of complex numbers a library may have the conjugates in mind, which only its __dlpack__ says.
  if (managed->tensor.dtype.code == kComplex) throw py::type_error("its elements are complex");
  return import_tensor<ManagedTensorVersioned>(capsule, tensor);
}

py::object tensor_of_array(py::handle exchange, const py::array& array) {
  const ExchangeApi* const api = functions_of(exchange);
  if (!api) return py::none();
  void* tensor = nullptr;
  // The library takes the memory over, whether it succeeds or not.
  if (api->import_tensor(&export_array<ManagedTensorVersioned>(array).release()->managed, &tensor) != 0)
    throw py::error_already_set();
  return py::reinterpret_steal<py::object>(static_cast<PyObject*>(tensor));
}

/// A result that is handed to another library: a new array, writable, with the methods of DLPack.
struct DLPackArray {
  py::array array;

  py::object capsule(py::handle, py::handle max_version, py::handle, py::handle) const {
    const bool is_versioned = PyTuple_Check(max_version.ptr()) && py::len(max_version) > 0 &&
                              py::cast<std::uint32_t>(max_version[py::int_(0)]) >= kMajorVersion;
    return is_versioned ? export_to_capsule<ManagedTensorVersioned>(array) : export_to_capsule<ManagedTensor>(array);
  }
};

}  // namespace

void bind_dlpack(py::module_& m) {
  m.def("from_dlpack", &from_dlpack, py::arg("capsule"), py::arg("tensor") = py::none(),
        "(capsule, tensor or None) -> array over the same memory");
  m.def("array_of_tensor", &array_of_tensor, "(exchange, tensor) -> array over the same memory, or None");
  m.def("tensor_of_array", &tensor_of_array, "(exchange, array) -> tensor over the same memory, or None");
  py::class_<DLPackArray>(m, "DLPackArray")
      .def(py::init([](const py::array& array) { return DLPackArray{array}; }), "(array)")
      .def("__dlpack__", &DLPackArray::capsule, py::kw_only(), py::arg("stream") = py::none(),
           py::arg("max_version") = py::none(), py::arg("dl_device") = py::none(), py::arg("copy") = py::none())
      .def("__dlpack_device__", [](const DLPackArray&) { return py::make_tuple(kCpu, 0); });
}

}  // namespace mha::bindings
