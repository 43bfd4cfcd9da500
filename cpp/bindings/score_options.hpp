// What becomes of scores, from the arguments of Python.
#pragma once

#include <mha/attention.hpp>

#include <algorithm>
#include <array>
#include <vector>

#include "array_view.hpp"
#include "scalars.hpp"

namespace mha::bindings {

/// The options of attention as Python passes them, one tuple: attn_mask, key_mask, is_causal, query_offset, key_lengths,
/// window, scale, softcap, alibi_slopes, sinks. A function without one of them has None there.
class OptionTuple {
 public:
  explicit OptionTuple(const py::tuple& entries) : entries_(entries.ptr()) {
    if (PyTuple_GET_SIZE(entries_) != 10) throw py::type_error("options must be a tuple of 10");
  }

  py::handle attn_mask() const { return entry(0); }
  py::handle key_mask() const { return entry(1); }
  py::handle is_causal() const { return entry(2); }
  py::handle query_offset() const { return entry(3); }
  /// query_offset if it is an array, else None: a number is not an array argument.
  py::handle query_offsets() const { return is_array(entry(3)) ? entry(3) : py::handle(Py_None); }
  py::handle key_lengths() const { return entry(4); }
  py::handle window() const { return entry(5); }
  py::handle scale() const { return entry(6); }
  py::handle softcap() const { return entry(7); }
  py::handle alibi_slopes() const { return entry(8); }
  py::handle sinks() const { return entry(9); }

 private:
  py::handle entry(Py_ssize_t i) const { return PyTuple_GET_ITEM(entries_, i); }

  PyObject* entries_;
};

/// Their names in messages.
struct OptionNames {
  const char *attn_mask = "attn_mask", *key_mask = "key_mask", *query_offset = "query_offset",
             *key_lengths = "key_lengths", *alibi_slopes = "alibi_slopes", *sinks = "sinks";
};

/// The array arguments of a call: its own, and behind them those of the options.
template <std::size_t count>
std::array<Argument, count + 6> with_options(const OptionTuple& options, const Argument (&own)[count],
                                             const OptionNames& names = {}) {
  std::array<Argument, count + 6> all;
  Argument* const next = std::copy_n(own, count, all.data());
  const Argument of_options[] = {
      {names.attn_mask, options.attn_mask()},        {names.key_mask, options.key_mask()},
      {names.query_offset, options.query_offsets()}, {names.key_lengths, options.key_lengths()},
      {names.alibi_slopes, options.alibi_slopes()},  {names.sinks, options.sinks()}};
  std::copy_n(of_options, 6, next);
  return all;
}

/// The options of a call, with the buffers that they point to.
struct ScoreOptions : AttentionOptions {
  /// `arrays` are from with_options(), with `first` arguments of the call's own; `batch_size` is B.
  ScoreOptions(const char* function, const ArrayArguments& arrays, int first, const OptionTuple& given,
               py::handle given_threads, Index batch_size) {
    attn_mask = arrays.mask(first, true);
    key_mask = arrays.mask(first + 1, false);
    is_causal = boolean(function, "is_causal", given.is_causal());
    if (arrays.given(first + 2)) {
      query_offset_buffer_ = arrays.integers(first + 2, batch_size);
      query_offsets = query_offset_buffer_.data();
    } else {
      query_offset = integer(function, "query_offset", given.query_offset(), "an integer or an integer array [B]");
    }
    if (arrays.given(first + 3)) {
      key_length_buffer_ = arrays.integers(first + 3, batch_size);
      key_lengths = key_length_buffer_.data();
    }
    if (!given.window().is_none()) set_window(function, given.window());
    scale = real(function, "scale", given.scale(), scale);
    softcap = positive_real(function, "softcap", given.softcap(), softcap);
    if (arrays.given(first + 4)) alibi_slopes = arrays.score_vector(first + 4);
    if (arrays.given(first + 5)) sinks = arrays.score_vector(first + 5);
    num_threads = positive(function, "num_threads", given_threads, num_threads);
  }

 private:
  void set_window(const char* function, py::handle window) {
    const bool is_pair = (PyTuple_Check(window.ptr()) || PyList_Check(window.ptr())) && py::len(window) == 2;
    if (!is_pair) throw py::type_error(describe(function, "window", "None or a pair (left, right)", window));
    window_left = integer(function, "window[0]", py::object(window[py::int_(0)]));
    window_right = integer(function, "window[1]", py::object(window[py::int_(1)]));
  }

  std::vector<std::int64_t> query_offset_buffer_, key_length_buffer_;
};

}  // namespace mha::bindings
