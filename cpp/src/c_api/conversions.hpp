// Building blocks of the functions of mha/mha.h: handles, conversions, and the translation of exceptions.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "mha/mha.h"
#include "mha/mha.hpp"

namespace mha::c_api {

/// MHA_OK, and no sentence in mha_last_error().
mha_status success() noexcept;
/// The status of the exception that is being handled; sets its sentence in mha_last_error(). `function` is the name in
/// C, for errors before the call of the C++ API, which names its own function.
mha_status failure(const char* function) noexcept;

template <class Call>
mha_status guarded(const char* function, Call call) noexcept {
  try {
    call();
    return success();
  } catch (...) {
    return failure(function);
  }
}

/// The result of `call`, or `otherwise` if it throws.
template <class Value, class Call>
auto value_or(const char* function, Value otherwise, Call call) noexcept {
  decltype(call()) value = otherwise;
  guarded(function, [&] { value = call(); });
  return value;
}

/// An argument that the C++ API cannot be called with: the status, and the sentence without the function.
struct Refusal {
  mha_status status;
  std::string sentence;
};

/// @throws Refusal
[[noreturn]] void refuse_null(const std::string& name);

/// A number of the enumeration `type` of C as an enumerator of C++. @throws Refusal, unless it is in [0, count)
template <class Enum>
Enum enumerator(const char* name, const char* type, int number, int count, mha_status status = MHA_INVALID_ARGUMENT) {
  if (number < 0 || number >= count)
    throw Refusal{status, std::string(name) + ": expected an " + type + (count == 2 ? ", 0 or " : ", 0 to ") +
                              std::to_string(count - 1) + "; got " + std::to_string(number)};
  return static_cast<Enum>(number);
}

template <class T>
T& given(T* pointer, const char* name) {
  if (pointer == nullptr) refuse_null(name);
  return *pointer;
}

// A handle is the address of an object of the C++ API under another name, so that the parts of an object have handles,
// too.
template <class Handle>
struct Behind;
template <>
struct Behind<mha_cache> {
  using Type = KVCache;
};
template <>
struct Behind<mha_layer> {
  using Type = MultiHeadAttention;
};
template <>
struct Behind<mha_rotary> {
  using Type = RotaryEmbedding;
};
template <>
struct Behind<mha_norm> {
  using Type = Norm;
};
template <>
struct Behind<mha_linear> {
  using Type = Linear;
};
template <>
struct Behind<mha_feed_forward> {
  using Type = FeedForward;
};
template <>
struct Behind<mha_experts> {
  using Type = Experts;
};
template <>
struct Behind<mha_transformer> {
  using Type = TransformerStack;
};
template <class Handle>
struct Behind<const Handle> {
  using Type = const typename Behind<Handle>::Type;
};
template <class Handle>
using Object = typename Behind<Handle>::Type;

/// The object of a handle that is known to be there.
template <class Handle>
Object<Handle>& object(Handle& handle) {
  return reinterpret_cast<Object<Handle>&>(handle);
}
template <class Handle>
Object<Handle>& object(Handle* handle, const char* name) {
  return object(given(handle, name));
}
template <class Handle>
const Handle* handle_of(const Object<Handle>& object) {
  return reinterpret_cast<const Handle*>(&object);
}

/// A part that may be missing.
template <class Handle>
auto optional_part(const Handle* handle) {
  using Part = std::optional<Object<Handle>>;
  return handle == nullptr ? Part() : Part(object(*handle));
}
template <class Handle, class Part>
const Handle* handle_or_null(const std::optional<Part>& part) {
  return part ? handle_of<Handle>(*part) : nullptr;
}

template <class Handle, class... Arguments>
void create(Handle** handle, const char* name, const Arguments&... arguments) {
  Handle*& result = given(handle, name);
  result = reinterpret_cast<Handle*>(new Object<Handle>(arguments...));
}
template <class Handle>
void destroy(Handle* handle) noexcept {
  delete reinterpret_cast<Object<Handle>*>(handle);
}

/// The objects of an array of handles, none of which may be null; data() is null if there is no array.
template <class Handle>
class Objects {
 public:
  Objects(Handle* const* handles, Index count, const char* name) {
    if (handles == nullptr) return;
    Object<Handle>** const objects =
        count <= kFew ? few_ : (many_.resize(static_cast<std::size_t>(count)), many_.data());
    for (Index i = 0; i < count; ++i) {
      if (handles[i] == nullptr) refuse_null(std::string(name) + "[" + std::to_string(i) + "]");
      objects[i] = &object(*handles[i]);
    }
    data_ = objects;
  }
  Objects(const Objects&) = delete;
  Objects& operator=(const Objects&) = delete;

  Object<Handle>* const* data() const { return data_; }

 private:
  // As many as most models have layers: a step over their caches allocates nothing.
  static constexpr Index kFew = 96;
  Object<Handle>* few_[kFew];
  std::vector<Object<Handle>*> many_;
  Object<Handle>* const* data_ = nullptr;
};

inline DType dtype_of(const char* name, mha_dtype dtype) {
  return enumerator<DType>(name, "mha_dtype", dtype, MHA_DTYPE_int8 + 1, MHA_DTYPE_ERROR);
}
/// Empty for null. `name` is the name of the argument or field in messages, here and below.
MutableTensorView view(const mha_tensor* tensor, const char* name);
/// One for each of `count` tensors; none, if `tensors` is null.
template <class View>
std::vector<View> views_of(const mha_tensor* tensors, Index count, const char* name) {
  std::vector<View> views;
  for (Index i = 0; tensors != nullptr && i < count; ++i) views.push_back(view(&tensors[i], name));
  return views;
}
template <class View>
BasicLinearWeights<View> linear_of(const mha_linear_weights& from, const char* name) {
  return {view(from.weight, name), view(from.bias, name), view(from.scale, name),
          enumerator<WeightFormat>("block_format", "mha_weight_format", from.block_format, kNumWeightFormats)};
}
/// A tensor of C does not say whether it may be written to.
mha_tensor tensor_of(const TensorView& view);
AttentionStatistics statistics_of(const mha_statistics* results);
AttentionGradients gradients_of(const mha_attention_gradients* gradients);
RaggedBatch batch_of(const mha_ragged_batch* batch);
/// The defaults for null.
AttentionOptions options_of(const mha_attention_options* from);

}  // namespace mha::c_api
