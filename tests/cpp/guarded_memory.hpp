// Memory between pages that nobody may touch: one byte too far, read or written, ends the program. Vector instructions
// read whole vectors, which no sanitizer of one element at a time shows to be within an array.
#pragma once

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <random>
#include <stdexcept>
#include <vector>

#include "mha/half_precision.hpp"
#include "mha/tensor_view.hpp"

namespace mha::testing {

/// Which edge of an array lies at a page that nobody may touch.
enum class Edge { none, behind, before };

/// Arrays of one call. The same calls of its functions give the same numbers, wherever they lie.
class GuardedMemory {
 public:
  explicit GuardedMemory(Edge edge) : edge_(edge) {}
  GuardedMemory(const GuardedMemory&) = delete;
  GuardedMemory& operator=(const GuardedMemory&) = delete;
  ~GuardedMemory() {
    for (const Mapping& mapping : mappings_) munmap(mapping.begin, mapping.bytes);
  }

  /// Standard normal numbers.
  template <class T>
  TensorView random(std::initializer_list<Index> shape) {
    T* const data = allocate<T>(shape);
    std::normal_distribution<double> normal;
    for (Index i = 0; i < count(shape); ++i) data[i] = from_double<T>(normal(generator_));
    return {data, shape};
  }
  /// An output, which begins as NaN and is a part of results().
  template <class T>
  MutableTensorView output(std::initializer_list<Index> shape) {
    T* const data = allocate<T>(shape);
    const auto bytes = static_cast<std::size_t>(count(shape)) * sizeof(T);
    if (bytes > 0) std::memset(data, 0xff, bytes);
    outputs_.push_back({reinterpret_cast<std::byte*>(data), bytes});
    return {data, shape};
  }
  TensorView mask(std::initializer_list<Index> shape) {
    bool* const data = allocate<bool>(shape);
    for (Index i = 0; i < count(shape); ++i) data[i] = generator_() % 4 != 0;
    return {data, shape};
  }
  const std::int64_t* integers(std::initializer_list<std::int64_t> values) {
    auto* const data = allocate<std::int64_t>({static_cast<Index>(values.size())});
    std::copy(values.begin(), values.end(), data);
    return data;
  }

  std::vector<std::byte> results() const {
    std::vector<std::byte> all;
    for (const Mapping& output : outputs_) all.insert(all.end(), output.begin, output.begin + output.bytes);
    return all;
  }

 private:
  struct Mapping {
    std::byte* begin;
    std::size_t bytes;
  };

  static Index count(std::initializer_list<Index> shape) {
    Index count = 1;
    for (const Index extent : shape) count *= extent;
    return count;
  }

  template <class T>
  T* allocate(std::initializer_list<Index> shape) {
    const auto page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
    const std::size_t bytes = static_cast<std::size_t>(count(shape)) * sizeof(T);
    const std::size_t room = edge_ == Edge::none ? page : 0, inner = (bytes + 2 * room + page - 1) / page * page;
    void* const all = mmap(nullptr, inner + 2 * page, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (all == MAP_FAILED) throw std::runtime_error("mmap");
    std::byte* const begin = static_cast<std::byte*>(all) + page;
    if (inner > 0 && mprotect(begin, inner, PROT_READ | PROT_WRITE) != 0) throw std::runtime_error("mprotect");
    mappings_.push_back({static_cast<std::byte*>(all), inner + 2 * page});
    return reinterpret_cast<T*>(edge_ == Edge::behind ? begin + inner - bytes : begin + room);
  }

  Edge edge_;
  std::mt19937 generator_{1};
  std::vector<Mapping> mappings_, outputs_;
};

/// Runs `call(memory)` in memory with guard pages behind and before every array: it ends well, and has the bits that it
/// has in memory with room around it.
template <class Call>
void expect_nothing_outside(Call call) {
  std::vector<std::byte> expected;
  for (const Edge edge : {Edge::none, Edge::behind, Edge::before}) {
    GuardedMemory memory(edge);
    call(memory);
    if (edge == Edge::none)
      expected = memory.results();
    else
      EXPECT_EQ(memory.results(), expected) << (edge == Edge::behind ? "guarded behind" : "guarded before");
  }
}

}  // namespace mha::testing
