// The binary interface by which XLA, the compiler of JAX, calls functions of others: the part of its foreign function
// interface (xla/ffi/api/c_api.h, which comes with jaxlib) that a function over buffers needs. Layouts and numbers are
// not ours to choose. XLA adds fields after these, and says in `struct_size` how many bytes it knows of.
#pragma once

#include <cstddef>
#include <cstdint>

namespace mha::bindings::xla {

constexpr int kMajorVersion = 0;  // another one may have other layouts
constexpr int kOldestMinorVersion = 1;
constexpr int kMinorVersion = 3;  // the newest that is known here; later ones add fields, and go on to call this one

/// Elements of buffers and attributes.
enum class DataType : int { boolean = 1, s32 = 4, s64 = 5, f16 = 10, f32 = 11, f64 = 12, bf16 = 16 };

enum class ErrorCode : int { invalid_argument = 3, resource_exhausted = 8, unimplemented = 12, internal = 13 };

constexpr int kMetadataExtension = 1;
constexpr int kBufferArgument = 1;
constexpr int kScalarAttribute = 3;
constexpr int kExecuteStage = 3;

struct Error;  // belongs to XLA, as do these
struct Context;
struct Future;

struct Extension {
  std::size_t struct_size;
  int type;
  Extension* next;
};

struct Version {
  std::size_t struct_size;
  Extension* extensions;
  int major, minor;
};

struct Metadata {
  std::size_t struct_size;
  Version version;
  std::uint32_t traits;
};

/// Comes with a call that asks for a description of the function, and must not compute.
struct MetadataExtension {
  Extension base;
  Metadata* metadata;
};

/// Dense, in the order of its axes.
struct Buffer {
  std::size_t struct_size;
  Extension* extensions;
  DataType dtype;
  void* data;
  std::int64_t rank;
  std::int64_t* extents;
};

/// Arguments, or results.
struct Operands {
  std::size_t struct_size;
  Extension* extensions;
  std::int64_t size;
  int* types;
  void** values;
};

struct Text {
  const char* data;
  std::size_t size;
};

struct Scalar {
  DataType dtype;
  void* value;
};

struct Attributes {
  std::size_t struct_size;
  Extension* extensions;
  std::int64_t size;
  int* types;
  Text** names;
  void** values;
};

struct CreateError {
  std::size_t struct_size;
  Extension* extensions;
  const char* message;
  ErrorCode code;
};

struct DestroyError {
  std::size_t struct_size;
  Extension* extensions;
  Error* error;
};

/// Asks the threads of XLA to call task(data) once, at some time: perhaps after the function has returned.
struct Schedule {
  std::size_t struct_size;
  Extension* extensions;
  Context* context;
  void (*task)(void* data);
  void* data;
};

struct CountThreads {
  std::size_t struct_size;
  Extension* extensions;
  Context* context;
  std::int64_t* count;
};

/// The functions of XLA. Those that are not called here have no type.
struct Api {
  std::size_t struct_size;
  Extension* extensions;
  Version version;
  const void* internals;
  Error* (*create_error)(CreateError*);
  void (*get_message)();
  void (*destroy_error)(DestroyError*);
  void (*not_called[8])();  // handlers, streams, types, states, and memory of devices
  Error* (*schedule)(Schedule*);
  Error* (*count_threads)(CountThreads*);
};

/// One call of a function.
struct CallFrame {
  std::size_t struct_size;
  Extension* extensions;
  const Api* api;
  Context* context;
  int stage;
  Operands arguments, results;
  Attributes attributes;
};

/// Whether the struct that `object` points to reaches to the end of `field`, by its own word.
#define MHA_XLA_HAS(object, Type, field) ((object)->struct_size >= offsetof(Type, field) + sizeof(Type::field))

}  // namespace mha::bindings::xla
