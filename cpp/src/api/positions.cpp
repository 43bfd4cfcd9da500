#include "mha/positions.hpp"

#include <cmath>
#include <limits>

#include "checks/rules.hpp"
#include "mha/half_precision.hpp"
#include "platform/cancellation.hpp"
#include "platform/floating_point_state.hpp"
#include "views/sizes.hpp"

namespace mha {
namespace {

/// The sines and cosines of mha/positions.hpp, computed in double precision and rounded once.
template <class T>
void fill(const MutableTensorView& out, std::int64_t first_position) {
  const Index length = out.extents[0], width = out.extents[1];
  T* const data = static_cast<T*>(out.data);
  Cancellation& cancellation = Cancellation::of_this_thread();
  for (Index e = 0; e < width; e += 2) {
    const double wavelength = std::pow(10000.0, double(e) / double(width));
    for (Index t = 0; t < length; ++t) {
      if (t % 1024 == 0 && cancellation.is_set()) cancellation.end_call_if_set();
      const double angle = double(first_position + t) / wavelength;
      T* const row = data + t * out.strides[0];
      row[e * out.strides[1]] = from_double<T>(std::sin(angle));
      if (e + 1 < width) row[(e + 1) * out.strides[1]] = from_double<T>(std::cos(angle));
    }
  }
}

}  // namespace

void sinusoidal_positions(const MutableTensorView& out, std::int64_t first_position) {
  const FloatingPointState state;
  const char* f = "sinusoidal_positions";
  check_rank(f, "out", out, 2, 2, {{"out", out}});
  check_dtypes(f, out.dtype, {{"out", out}});
  check_output(f, "out", out, {});
  if (!has_elements(out)) return;
  constexpr std::int64_t kLast = std::numeric_limits<std::int64_t>::max();
  if (first_position > kLast - out.extents[0])
    fail(f, "first_position + T must fit 64 bits, and first_position is " + std::to_string(first_position),
         {{"out", out}});
  switch (out.dtype) {
#define MHA_DTYPE(name, scalar, accumulator) \
  case DType::name:                          \
    return fill<scalar>(out, first_position);
#include "mha/dtypes.def"
#undef MHA_DTYPE
    case DType::boolean:
    case DType::int8:
      break;
  }
}

}  // namespace mha
