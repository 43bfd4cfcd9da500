// The score options of a call: a dict of Python's keyword arguments -> AttentionOptions.
#pragma once

#include <mha/attention.hpp>

#include <algorithm>
#include <array>
#include <cstdint>
#include <forward_list>
#include <vector>

#include "array_view.hpp"
#include "scalars.hpp"

namespace mha::bindings {

/// The rows of attention_options.def, each under the name of its field.
namespace option {
enum : int {
#define MHA_OPTION(field, type, argument, reading) field,
#include <mha/attention_options.def>
#undef MHA_OPTION
  kCount
};
}  // namespace option

/// The keyword argument of each row.
constexpr const char* kOptionNames[] = {
#define MHA_OPTION(field, type, argument, reading) #argument,
#include <mha/attention_options.def>
#undef MHA_OPTION
};

/// The score options that a caller in Python gave; the others have their defaults.
class GivenOptions {
 public:
  /// `options` has the names of score options as keys. It must outlive this object and not change. `names`, one for
  /// each row, are for messages. @throws py::type_error for a key that is no score option
  GivenOptions(const char* function, const py::dict& options, const char* const* names = kOptionNames);

  const char* function() const { return function_; }
  /// Whether there is any.
  explicit operator bool() const { return is_any_; }
  const char* name(int row) const { return names_[row]; }
  bool has(int row) const { return values_[row] != nullptr; }
  py::handle operator[](int row) const { return values_[row]; }
  /// Writes one argument for each row: its value, or None where no array is given or expected.
  void write_arrays(Argument* arguments) const;

 private:
  const char* function_;
  const char* const* names_;
  PyObject* values_[option::kCount] = {};  // null: not given
  bool is_any_ = false;
};

/// The array arguments of a call: its own, then the arrays of the options, if there are options.
template <std::size_t count>
class ArgumentList {
 public:
  ArgumentList(const GivenOptions& given, const Argument (&own)[count]) : size_(given ? all_.size() : count) {
    Argument* const next = std::copy_n(own, count, all_.data());
    if (given) given.write_arrays(next);
  }

  const Argument* data() const { return all_.data(); }
  std::size_t size() const { return size_; }

 private:
  std::array<Argument, count + option::kCount> all_;
  std::size_t size_;
};

template <std::size_t count>
ArgumentList<count> with_options(const GivenOptions& given, const Argument (&own)[count]) {
  return {given, own};
}

/// The options of a call, with the buffers that they point to.
class ScoreOptions : public AttentionOptions {
 public:
  /// `arrays` are from with_options(), with `first` arguments of the call's own; `batch_size` is B; `rows` are [B, T,
  /// E] or [T, E], of a call whose rows may have positions.
  ScoreOptions(const GivenOptions& given, const ArrayArguments& arrays, int first, py::handle given_threads,
               Index batch_size, const TensorView& rows = {});

 private:
  std::forward_list<std::vector<std::int64_t>> buffers_;
  std::optional<ThreadsArgument> threads_;
};

}  // namespace mha::bindings
