// Arrays of a benchmark: of either element type, with standard normal numbers, the same on each run.
#pragma once

#include <algorithm>
#include <initializer_list>
#include <iterator>
#include <random>
#include <vector>

#include "mha/tensor_view.hpp"

namespace mha::bench {

/// A dense array that owns its memory; pages are its own, so that a copy is cold.
class Tensor {
 public:
  Tensor(DType dtype, std::initializer_list<Index> shape, unsigned seed, double deviation = 1)
      : view_(nullptr, dtype, shape) {
    std::size_t size = 1;
    for (Index extent : shape) size *= std::size_t(extent);
    std::mt19937 generator(seed);
    std::normal_distribution<float> normal(0, float(deviation));
    const auto next = [&] { return normal(generator); };
    if (dtype == DType::f64)
      std::generate_n(std::back_inserter(f64_), size, next);
    else
      std::generate_n(std::back_inserter(f32_), size, next);
    point();
  }
  Tensor(const Tensor& other) : f32_(other.f32_), f64_(other.f64_), view_(other.view_) { point(); }
  Tensor(Tensor&&) noexcept = default;  // the elements stay where they are
  Tensor& operator=(const Tensor&) = delete;
  Tensor& operator=(Tensor&&) = delete;

  const MutableTensorView& view() const { return view_; }
  std::size_t bytes() const { return f32_.size() * sizeof(float) + f64_.size() * sizeof(double); }
  void set(Index i, double value) {
    if (f64_.empty())
      f32_[std::size_t(i)] = float(value);
    else
      f64_[std::size_t(i)] = value;
  }
  double operator[](Index i) const { return f64_.empty() ? double(f32_[std::size_t(i)]) : f64_[std::size_t(i)]; }

 private:
  void point() { view_.data = f64_.empty() ? static_cast<void*>(f32_.data()) : f64_.data(); }

  std::vector<float> f32_;
  std::vector<double> f64_;
  MutableTensorView view_;
};

}  // namespace mha::bench
