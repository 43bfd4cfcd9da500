// What becomes of scores, from the arguments of Python.
#pragma once

#include <mha/attention.hpp>

#include <vector>

#include "array_view.hpp"
#include "scalars.hpp"

namespace mha::bindings {

/// What attention takes besides tensors, as Python passed it.
struct ScoreArguments {
  py::handle is_causal, query_offset, window, scale, softcap, num_threads;
};

/// The options of a call, with the buffers that they point to.
struct ScoreOptions : AttentionOptions {
  /// `arrays` holds attn_mask, query_offset (None if it is one number), key_lengths, alibi_slopes and sinks from
  /// position `first` on; `batch_size` is B.
  ScoreOptions(const char* function, const ArrayArguments& arrays, int first, const ScoreArguments& given,
               Index batch_size) {
    attn_mask = arrays.mask(first, true);
    is_causal = boolean(function, "is_causal", given.is_causal);
    if (arrays.given(first + 1)) {
      query_offset_buffer_ = arrays.integers(first + 1, batch_size);
      query_offsets = query_offset_buffer_.data();
    } else {
      query_offset = integer(function, "query_offset", given.query_offset, "an integer or an integer array [B]");
    }
    if (arrays.given(first + 2)) {
      key_length_buffer_ = arrays.integers(first + 2, batch_size);
      key_lengths = key_length_buffer_.data();
    }
    if (!given.window.is_none()) set_window(function, given.window);
    scale = real(function, "scale", given.scale, scale);
    softcap = positive_real(function, "softcap", given.softcap, softcap);
    if (arrays.given(first + 3)) alibi_slopes = arrays.score_vector(first + 3);
    if (arrays.given(first + 4)) sinks = arrays.score_vector(first + 4);
    num_threads = positive(function, "num_threads", given.num_threads, num_threads);
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

/// `query_offset` if it is an array, else None: a number is not an array argument.
inline py::handle offsets_in(py::handle query_offset) {
  return is_array(query_offset) ? query_offset : py::handle(Py_None);
}

}  // namespace mha::bindings
