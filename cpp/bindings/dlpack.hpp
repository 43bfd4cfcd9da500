// The binary interface of DLPack: structs that libraries pass to each other in a capsule, from its specification
// (https://dmlc.github.io/dlpack/latest/c_api.html). Names and layouts are not ours to choose.
#pragma once

#include <cstdint>

namespace mha::bindings::dlpack {

enum TypeCode : std::uint8_t { kInt = 0, kUInt = 1, kFloat = 2, kBfloat = 4, kComplex = 5, kBool = 6 };

constexpr std::int32_t kCpu = 1, kCudaHost = 3, kRocmHost = 11;  // memory that the CPU reads like its own
constexpr std::uint32_t kMajorVersion = 1;                       // another one may have other layouts
constexpr std::uint64_t kReadOnly = 1, kIsCopied = 2;

struct Device {
  std::int32_t type, id;
};

struct DataType {
  std::uint8_t code, bits;
  std::uint16_t lanes;
};

struct Tensor {
  void* data;
  Device device;
  std::int32_t rank;
  DataType dtype;
  std::int64_t* extents;
  std::int64_t* strides;  // in elements; null: dense
  std::uint64_t byte_offset;
};

/// Before version 1. Whether it may be written to is not said.
struct ManagedTensor {
  static constexpr char kName[] = "dltensor", kUsedName[] = "used_dltensor";

  Tensor tensor;
  void* context;
  void (*deleter)(ManagedTensor*);
};

struct ManagedTensorVersioned {
  static constexpr char kName[] = "dltensor_versioned", kUsedName[] = "used_dltensor_versioned";

  std::uint32_t major, minor;
  void* context;
  void (*deleter)(ManagedTensorVersioned*);
  std::uint64_t flags;
  Tensor tensor;
};

/// The __dlpack_c_exchange_api__ of a type of tensors, in a capsule: functions that take and give tensors without
/// a call of Python. They return 0, or -1 with an exception of Python raised. Functions that are not called here have
/// no type.
struct ExchangeApi {
  static constexpr char kName[] = "dlpack_exchange_api";

  std::uint32_t major, minor;
  ExchangeApi* older;
  void (*new_tensor)();
  int (*export_tensor)(void* object, ManagedTensorVersioned** tensor);
  int (*import_tensor)(ManagedTensorVersioned* tensor, void** object);
  void (*borrow_tensor)();
  void (*current_stream)();
};

}  // namespace mha::bindings::dlpack
