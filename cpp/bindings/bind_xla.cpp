// scaled_dot_product_attention and its gradient as XLA calls them: buffers in, buffers out, without Python. interop/jax
// calls them, and checks all that is known at the time of tracing.
#include <algorithm>
#include <forward_list>
#include <new>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <mha/attention.hpp>
#include <mha/attention_gradient.hpp>
#include <mha/runtime.hpp>

#include "bindings.hpp"
#include "xla_ffi.hpp"
#include "xla_threads.hpp"

namespace mha::bindings {
namespace {

constexpr char kAttend[] = "scaled_dot_product_attention";

/// The error of a call, for XLA.
struct Refusal {
  xla::ErrorCode code;
  std::string message;
};

[[noreturn]] void refuse_call(const std::string& rule) {
  throw Refusal{xla::ErrorCode::invalid_argument, std::string(kAttend) + ": " + rule};
}

DType dtype_of_buffer(xla::DataType dtype, const std::string& name) {
  switch (dtype) {
    case xla::DataType::boolean:
      return DType::boolean;
    case xla::DataType::f16:
      return DType::f16;
    case xla::DataType::f32:
      return DType::f32;
    case xla::DataType::f64:
      return DType::f64;
    case xla::DataType::bf16:
      return DType::bf16;
    default:
      refuse_call(name + " is of XLA's element type " + std::to_string(static_cast<int>(dtype)) +
                  ", which attention does not compute in");
  }
}

/// Buffer `i` of `operands`; `name` for messages.
const xla::Buffer& buffer_of(const xla::Operands& operands, std::int64_t i, const std::string& name) {
  if (i < 0 || i >= operands.size || operands.types[i] != xla::kBufferArgument)
    refuse_call(name + " is no buffer of the call");
  const auto& buffer = *static_cast<const xla::Buffer*>(operands.values[i]);
  if (!MHA_XLA_HAS(&buffer, xla::Buffer, extents)) refuse_call(name + " is a buffer of an unknown layout");
  return buffer;
}

template <class Pointer>
BasicTensorView<Pointer> view_of_buffer(const xla::Buffer& buffer, const std::string& name) {
  if (buffer.rank > kMaxRank) refuse_call(name + " has " + std::to_string(buffer.rank) + " axes, at most 4 are known");
  BasicTensorView<Pointer> view;
  view.data = buffer.data;
  view.dtype = dtype_of_buffer(buffer.dtype, name);
  view.rank = static_cast<int>(buffer.rank);
  Index stride = 1;
  for (int axis = view.rank - 1; axis >= 0; --axis) {
    view.extents[axis] = static_cast<Index>(buffer.extents[axis]);
    view.strides[axis] = stride;
    stride = saturated_product(stride, view.extents[axis]);
  }
  return view;
}

/// [B, T, H, D] as [B, H, T, D], and [B, T, H] as [B, H, T].
template <class... Views>
void put_heads_first(Views&... views) {
  (std::swap(views.extents[1], views.extents[2]), ...);
  (std::swap(views.strides[1], views.strides[2]), ...);
}

/// A query that serves every batch element of the keys.
void repeat_query(TensorView& query, Index batch_size) {
  if (query.rank != kMaxRank || query.extents[0] != 1 || batch_size == 1) return;
  query.extents[0] = batch_size;
  query.strides[0] = 0;
}

/// The attributes of a call: options by the names of the rows of attention_options.def. An array is an attribute, too:
/// the place of its buffer among the arguments.
class CallAttributes {
 public:
  explicit CallAttributes(const xla::CallFrame& frame) : arguments_(frame.arguments), attributes_(frame.attributes) {}

  void read(const char* name, bool& field) { read_scalar(name, xla::DataType::boolean, field); }
  void read(const char* name, double& field) { read_scalar(name, xla::DataType::f64, field); }
  void read(const char* name, std::int64_t& field) { read_scalar(name, xla::DataType::s64, field); }
  void read(const char* name, TensorView& field) {
    if (const auto place = argument(name))
      field = view_of_buffer<const void*>(buffer_of(arguments_, *place, name), name);
  }
  void read(const char* name, const std::int64_t*& field) {
    const auto place = argument(name);
    if (!place) return;
    const xla::Buffer& buffer = buffer_of(arguments_, *place, name);
    if (buffer.rank != 1 || buffer.extents[0] != batch_size_)
      refuse_call(std::string(name) + " must have one entry for each batch element");
    if (buffer.dtype == xla::DataType::s64) {
      field = static_cast<const std::int64_t*>(buffer.data);
    } else if (buffer.dtype == xla::DataType::s32) {
      const auto* const numbers = static_cast<const std::int32_t*>(buffer.data);
      field = copies_.emplace_front(numbers, numbers + batch_size_).data();
    } else {
      refuse_call(std::string(name) + " must be of int32 or int64");
    }
  }

  /// Must be known before integers are read: they have no length of their own.
  void set_batch_size(Index batch_size) { batch_size_ = batch_size; }
  AttentionOptions options() {
    AttentionOptions options;
#define MHA_OPTION(field, type, argument, reading) read(#field, options.field);
#include <mha/attention_options.def>
#undef MHA_OPTION
    return options;
  }
  void require_all_read() const {
    if (read_ != attributes_.size) refuse_call("has an attribute that is no option of attention");
  }

 private:
  std::optional<std::int64_t> argument(const char* name) {
    std::int64_t place = -1;
    read(name, place);
    return place < 0 ? std::nullopt : std::optional(place);
  }

  template <class T>
  void read_scalar(const char* name, xla::DataType dtype, T& field) {
    for (std::int64_t i = 0; i < attributes_.size; ++i) {
      if (std::string_view(attributes_.names[i]->data, attributes_.names[i]->size) != name) continue;
      const auto* const scalar = static_cast<const xla::Scalar*>(attributes_.values[i]);
      if (attributes_.types[i] != xla::kScalarAttribute || scalar->dtype != dtype)
        refuse_call(std::string(name) + " is an attribute of another type");
      field = *static_cast<const T*>(scalar->value);
      ++read_;
    }
  }

  const xla::Operands& arguments_;
  const xla::Attributes& attributes_;
  Index batch_size_ = 0;
  std::int64_t read_ = 0;
  std::forward_list<std::vector<std::int64_t>> copies_;
};

/// Runs a call of the library on threads of XLA.
template <class Call>
void run_in_xla(const xla::CallFrame& frame, Call call) {
  xla::Threads threads(frame);
  std::optional<ExecutorScope> scope;
  if (const int count = threads.count()) scope.emplace(threads.executor(std::min(count, num_threads())));
  call();
}

/// query, key, value and arrays of options -> out, or out and lse.
void attend_in_xla(const xla::CallFrame& frame) {
  const auto input = [&](std::int64_t i, const char* name) {
    return view_of_buffer<const void*>(buffer_of(frame.arguments, i, name), name);
  };
  const auto output = [&](std::int64_t i, const char* name) {
    return view_of_buffer<void*>(buffer_of(frame.results, i, name), name);
  };
  TensorView query = input(0, "query"), key = input(1, "key"), value = input(2, "value");
  MutableTensorView out = output(0, "out"), lse = frame.results.size > 1 ? output(1, "lse") : MutableTensorView{};
  if (out.rank != kMaxRank) refuse_call("out must have 4 axes");

  CallAttributes attributes(frame);
  attributes.set_batch_size(out.extents[0]);
  const AttentionOptions options = attributes.options();
  bool tokens_first = false;  // [B, T, H, D], all but masks; lse is [B, T, H]
  attributes.read("tokens_first", tokens_first);
  attributes.require_all_read();
  if (tokens_first) put_heads_first(query, key, value, out, lse);
  repeat_query(query, out.extents[0]);
  run_in_xla(frame, [&] { scaled_dot_product_attention(query, key, value, out, lse, options); });
}

/// query, key, value, out, lse, dout, dlse and arrays of options -> gradients by query, key and value, with the batch
/// size of the call, and by options. For the gradient by an option, the attribute "d" with its name is its place among
/// the results.
void differentiate_in_xla(const xla::CallFrame& frame) {
  const auto input = [&](std::int64_t i, const char* name) {
    TensorView view = view_of_buffer<const void*>(buffer_of(frame.arguments, i, name), name);
    if (view.rank < kMaxRank - 1) refuse_call(std::string(name) + " has too few axes");
    return view;
  };
  const auto output = [&](std::int64_t i, const char* name) {
    return view_of_buffer<void*>(buffer_of(frame.results, i, name), name);
  };
  TensorView query = input(0, "query"), key = input(1, "key"), value = input(2, "value"), out = input(3, "out"),
             lse = input(4, "lse"), dout = input(5, "dout"), dlse = input(6, "dlse");
  AttentionGradients gradients;
  gradients.query = output(0, "the gradient by query");
  gradients.key = output(1, "the gradient by key");
  gradients.value = output(2, "the gradient by value");

  CallAttributes attributes(frame);
  attributes.set_batch_size(out.extents[0]);
  const AttentionOptions options = attributes.options();
  const auto read_place = [&](const char* name, MutableTensorView& gradient) {
    std::int64_t place = -1;
    attributes.read(name, place);
    if (place >= 0) gradient = output(place, name);
  };
  read_place("dattn_mask", gradients.attn_mask);
  read_place("dalibi_slopes", gradients.alibi_slopes);
  read_place("dposition_bias", gradients.position_bias);
  read_place("dsinks", gradients.sinks);
  bool tokens_first = false;
  attributes.read("tokens_first", tokens_first);
  attributes.require_all_read();
  if (tokens_first)
    put_heads_first(query, key, value, out, lse, dout, dlse, gradients.query, gradients.key, gradients.value);
  repeat_query(query, out.extents[0]);
  run_in_xla(frame, [&] { attention_gradient(query, key, value, out, lse, dout, gradients, options, dlse); });
}

xla::Error* error_in_xla(const xla::Api& api, const Refusal& refusal) {
  xla::CreateError arguments{sizeof(xla::CreateError), nullptr, refusal.message.c_str(), refusal.code};
  return api.create_error(&arguments);
}

/// Says which version of the interface this is. XLA asks when the function is registered, and takes no other answer
/// than one that it knows: its own version, if that is not newer than the version of this file.
void describe_to_xla(const xla::CallFrame& frame) {
  xla::Version theirs{sizeof(xla::Version), nullptr, xla::kMajorVersion, xla::kOldestMinorVersion};
  if (frame.api != nullptr) theirs = frame.api->version;  // XLA does not say it up to jaxlib 0.6
  if (theirs.major != xla::kMajorVersion)
    throw Refusal{xla::ErrorCode::unimplemented,
                  "mha_native: this XLA has version " + std::to_string(theirs.major) + "." +
                      std::to_string(theirs.minor) + " of its foreign function interface, and only versions " +
                      std::to_string(xla::kMajorVersion) + ".x are known; a newer mha_native may know it"};
  auto* const metadata = reinterpret_cast<xla::MetadataExtension*>(frame.extensions)->metadata;
  metadata->version.major = xla::kMajorVersion;
  metadata->version.minor = std::min(theirs.minor, xla::kMinorVersion);
  metadata->traits = 0;
}

/// A function that XLA calls. It must not throw.
template <void (*run)(const xla::CallFrame&)>
xla::Error* in_xla(xla::CallFrame* frame) {
  try {
    if (frame->extensions != nullptr && frame->extensions->type == xla::kMetadataExtension) {
      describe_to_xla(*frame);
      return nullptr;
    }
    if (!MHA_XLA_HAS(frame, xla::CallFrame, attributes) || frame->stage != xla::kExecuteStage)
      throw Refusal{xla::ErrorCode::unimplemented, "mha_native: this version of XLA calls functions in an unknown way"};
    run(*frame);
    return nullptr;
  } catch (const Refusal& refusal) {
    return error_in_xla(*frame->api, refusal);
  } catch (const std::invalid_argument& error) {
    return error_in_xla(*frame->api, {xla::ErrorCode::invalid_argument, error.what()});
  } catch (const std::bad_alloc& error) {
    return error_in_xla(*frame->api, {xla::ErrorCode::resource_exhausted, error.what()});
  } catch (const std::exception& error) {
    return error_in_xla(*frame->api, {xla::ErrorCode::internal, error.what()});
  }
}

}  // namespace

void bind_xla(py::module_& m) {
  m.def(
      "xla_attention", [] { return py::capsule(reinterpret_cast<void*>(&in_xla<attend_in_xla>)); },
      "() -> the address of scaled_dot_product_attention as XLA calls it, in a capsule");
  m.def(
      "xla_attention_gradient", [] { return py::capsule(reinterpret_cast<void*>(&in_xla<differentiate_in_xla>)); },
      "() -> the address of attention_gradient as XLA calls it, in a capsule");
}

}  // namespace mha::bindings
