// Arrays of a benchmark: of any element type, with standard normal numbers, the same on each run.
#pragma once

#include <cstddef>
#include <initializer_list>
#include <random>
#include <vector>

#include "mha/half_precision.hpp"
#include "mha/tensor_view.hpp"

namespace mha::bench {

/// A dense array that owns its memory; pages are its own, so that a copy is cold.
class Tensor {
 public:
  Tensor(DType dtype, std::initializer_list<Index> shape, unsigned seed, double deviation = 1)
      : view_(nullptr, dtype, shape) {
    allocate();
    std::mt19937 generator(seed);
    std::normal_distribution<float> normal(0, float(deviation));
    for (Index i = 0; i < size_; ++i) set(i, double(normal(generator)));
  }
  /// The same numbers as another type.
  Tensor(const Tensor& other, DType dtype) : view_(other.view_) {
    view_.dtype = dtype;
    allocate();
    for (Index i = 0; i < size_; ++i) set(i, other[i]);
  }
  Tensor(const Tensor& other) : memory_(other.memory_), size_(other.size_), view_(other.view_) { point(); }
  Tensor(Tensor&&) noexcept = default;  // the elements stay where they are
  Tensor& operator=(const Tensor&) = delete;
  Tensor& operator=(Tensor&&) = delete;

  const MutableTensorView& view() const { return view_; }
  std::size_t bytes() const { return memory_.size(); }

  void set(Index i, double value) {
    switch (view_.dtype) {
#define MHA_DTYPE(name, scalar, accumulator)                          \
  case DType::name:                                                   \
    static_cast<scalar*>(view_.data)[i] = from_double<scalar>(value); \
    break;
#include "mha/dtypes.def"
#undef MHA_DTYPE
      case DType::boolean:
      case DType::int8:
        break;  // no array here is of one
    }
  }
  double operator[](Index i) const {
    switch (view_.dtype) {
#define MHA_DTYPE(name, scalar, accumulator) \
  case DType::name:                          \
    return to_double(static_cast<const scalar*>(view_.data)[i]);
#include "mha/dtypes.def"
#undef MHA_DTYPE
      case DType::boolean:
      case DType::int8:
        break;
    }
    return 0;
  }

 private:
  void allocate() {
    size_ = 1;
    for (int axis = 0; axis < view_.rank; ++axis) size_ *= view_.extents[axis];
    memory_.resize(std::size_t(size_ * size_of(view_.dtype)));
    point();
  }
  void point() { view_.data = memory_.data(); }

  std::vector<std::byte> memory_;
  Index size_ = 0;
  MutableTensorView view_;
};

}  // namespace mha::bench
