#include "weights/rotary_table.hpp"

#include "views/copy_elements.hpp"

namespace mha {

RotaryTable::RotaryTable(const TensorView& cosines, const TensorView& sines, RotaryPairs turned_together)
    : dtype(cosines.dtype),
      max_positions(cosines.extents[0]),
      num_pairs(cosines.extents[1]),
      pairs(turned_together),
      data(static_cast<std::size_t>(max_positions * row() * size_of(dtype))) {
  const auto part = [&](Index from) {
    return MutableTensorView(data.data() + from * size_of(dtype), dtype, {max_positions, num_pairs}, {row(), 1});
  };
  copy_elements(cosines, part(0));
  copy_elements(sines, part(num_pairs));
}

}  // namespace mha
