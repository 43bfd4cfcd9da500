// What memory gives: the denominator of every fraction of bandwidth.
#pragma once

#include <cstdint>

#include "kernels/vectors/eigen.hpp"

namespace mha::MHA_ISA {
namespace {

/// XOR of `count` words of eight bytes: one load and one operation for each vector, so that a loop that also computes
/// has nothing to wait for that this one has not. XOR, since no order and no NaN changes it: it proves that all was
/// read. Two to eight streams side by side, and prefetching 1 to 4 KiB ahead, read no faster on a Zen 5 core, hot or
/// cold.
inline std::uint64_t read_words(const void* memory, Index count) {
  using Words = Packet<double>;
  constexpr int kChains = 8;  // eight cache lines with 64-byte vectors
  constexpr Index kLane = kLanes<double>, kStep = kChains * kLane;
  const double* words = static_cast<const double*>(memory);
  Words chains[kChains];
  MHA_UNROLL
  for (int i = 0; i < kChains; ++i) chains[i] = pset1<Words>(0);
  Index word = 0;
  for (; word + kStep <= count; word += kStep) {
    MHA_UNROLL
    for (int i = 0; i < kChains; ++i) chains[i] = pxor(chains[i], ploadu<Words>(words + word + i * kLane));
  }
  MHA_UNROLL
  for (int i = 1; i < kChains; ++i) chains[0] = pxor(chains[0], chains[i]);
  double lanes[kLane];
  pstoreu(lanes, chains[0]);
  std::uint64_t result = 0;
  const auto add = [&result](const double* at) {
    std::uint64_t bits;
    __builtin_memcpy(&bits, at, sizeof bits);
    result ^= bits;
  };
  for (Index lane = 0; lane < kLane; ++lane) add(lanes + lane);
  for (; word < count; ++word) add(words + word);
  return result;
}

}  // namespace
}  // namespace mha::MHA_ISA
