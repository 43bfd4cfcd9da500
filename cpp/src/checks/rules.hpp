// Rules that several kinds of calls share. A message is one sentence: function, argument, rule, and what was given.
#pragma once

#include <initializer_list>
#include <string>
#include <utility>

#include "mha/errors.hpp"
#include "mha/tensor_view.hpp"

namespace mha {

using Named = std::initializer_list<std::pair<const char*, TensorView>>;

/// @throws std::invalid_argument that shows the shapes of `views`
[[noreturn]] void fail(const char* function, const std::string& rule, Named views);

bool has_shape(const TensorView& view, std::initializer_list<Index> shape);

void check_rank(const char* function, const char* name, const TensorView& view, int least, int most, Named views);

/// Views that were given have the dtype `expected`. @throws DTypeError
void check_dtypes(const char* function, DType expected, Named views);

/// An output has one place for each index, and none in an input.
void check_output(const char* function, const char* name, const MutableTensorView& out, Named inputs);

/// The same for a copy of what is stored: an output that was given has that dtype and shape, too.
void check_copy(const char* function, const char* name, const MutableTensorView& out, DType dtype,
                std::initializer_list<Index> shape);

}  // namespace mha
