// What a fuzzer decides: a string of bytes, read as choices. The same bytes are the same calls.
#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <random>

namespace mha::fuzz {

class Choices {
 public:
  Choices(const std::uint8_t* data, std::size_t size) : next_(data), end_(data + size) {}

  /// 0 behind the last byte.
  std::uint8_t byte() { return next_ < end_ ? *next_++ : std::uint8_t{0}; }
  /// In [0, count), count at most 65536.
  std::ptrdiff_t below(std::ptrdiff_t count) {
    const int low = byte(), high = count > 256 ? byte() : 0;
    return (low + 256 * high) % count;
  }
  std::ptrdiff_t between(std::ptrdiff_t least, std::ptrdiff_t most) { return least + below(most - least + 1); }
  /// True once in `times` times; never behind the last byte.
  bool once_in(int times) { return byte() % times == times - 1; }
  template <class T>
  T one_of(std::initializer_list<T> words) {
    return words.begin()[below(std::ptrdiff_t(words.size()))];
  }
  /// Contents of arrays, which nobody wants to mutate byte by byte, come from a generator with a seed of two bytes.
  std::mt19937 contents() { return std::mt19937(unsigned(below(65536)) + 1); }

 private:
  const std::uint8_t *next_, *end_;
};

}  // namespace mha::fuzz
