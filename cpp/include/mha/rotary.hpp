// Rotary positions: pairs of features of each query and key are turned by angles that depend on where their row stands.
#pragma once

#include <cstdint>
#include <memory>

#include "mha/errors.hpp"
#include "mha/export.h"
#include "mha/tensor_view.hpp"

namespace mha {

/// Which of the first R features of a head are turned together.
enum class RotaryPairs {
  halves,      // features i and R / 2 + i
  neighbours,  // features 2 i and 2 i + 1
};

struct RotaryTable;  // of the library itself

/// The pair i of features (a, b) of a row at position p becomes
///
///   (a cos[p, i] - b sin[p, i],  a sin[p, i] + b cos[p, i])
///
/// in the first R features of each head of query and key; the others stay as they are. With the angle p * base^(-2 i / R)
/// a score depends on how far two rows are apart. The caller computes the table, in which every rule that scales angles
/// has its place. Immutable; copies share the table.
class MHA_API RotaryEmbedding {
 public:
  /// @param cos,sin [P, R / 2], of positions 0 to P - 1, f32; f64 for layers of f64. They are copied
  /// @throws std::invalid_argument, DTypeError
  RotaryEmbedding(const TensorView& cos, const TensorView& sin, RotaryPairs pairs = RotaryPairs::halves);

  /// Rotates rows as a layer rotates the rows of a head. `backwards` rotates by minus the angles, which turns the
  /// gradient by rotated rows into the gradient by the rows.
  ///
  /// @param x         [B, H, T, D], or without leading axes; D at least R. Of f16 and bf16 with a table in f32, else of
  ///                  the dtype of the table
  /// @param positions [B, T], each in [0, P), or null: 0 to T - 1
  /// @param out       the shape of x; x itself, or memory that x does not overlap
  /// @throws std::invalid_argument, DTypeError, AllocationError before anything is written
  void rotate(const TensorView& x, const std::int64_t* positions, const MutableTensorView& out, bool backwards = false,
              int num_threads = 0) const;

  Index max_positions() const;  // P
  Index rotary_dim() const;     // R
  RotaryPairs pairs() const;
  DType dtype() const;
  /// [P, R / 2], as long as the table lives; so is sin().
  TensorView cos() const;
  TensorView sin() const;

  /// For the layers that turn rows by it.
  const RotaryTable& table() const { return *table_; }

 private:
  std::shared_ptr<const RotaryTable> table_;
};

}  // namespace mha
