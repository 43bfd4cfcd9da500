// The floating-point state of a thread while it computes: one for all threads, whatever the caller has set.
#pragma once

#include <cstdint>

#if defined(__x86_64__) || defined(_M_X64)
#include <xmmintrin.h>
#endif

namespace mha {

/// The treatment of subnormal numbers, below the smallest normal one of a type: 0, as operand and as result, or kept.
enum class Subnormals { zero, kept };

/// While it lives, this thread rounds to nearest, ties to even, and no operation raises a signal. Afterwards the thread
/// has the state that it had before, the flags of exceptions included.
///
/// Every thread has a state of its own, and a caller may have changed the one of its thread: bits would depend on the
/// thread that computes a number. So each function of api/ that computes begins with this, and so does each worker of
/// run_phases(). Code that converts weights, without products, keeps subnormal numbers. docs/decisions/0013 says why
/// all else does not.
class FloatingPointState {
 public:
  explicit FloatingPointState(Subnormals subnormals = Subnormals::zero) : before_(read()) {
    write(subnormals == Subnormals::zero ? kFlushing : kPlain);
  }
  ~FloatingPointState() { write(before_); }
  FloatingPointState(const FloatingPointState&) = delete;
  FloatingPointState& operator=(const FloatingPointState&) = delete;

 private:
#if defined(__x86_64__) || defined(_M_X64)
  using Registers = unsigned;  // MXCSR: control and flags

  // All six exceptions are masked (bits 7 to 12); results are flushed to zero (15), operands taken for zero (6). No bit
  // for the rounding: to nearest.
  static constexpr Registers kPlain = 0x1f80, kFlushing = kPlain | 0x8000 | 0x0040;

  static Registers read() { return _mm_getcsr(); }
  static void write(Registers registers) { _mm_setcsr(registers); }
#elif defined(__aarch64__)
  struct Registers {
    std::uint64_t control, flags;  // FPCR and FPSR
  };

  // Operands and results are flushed to zero (bit 24 of FPCR). No bit for traps, which are off, nor for the rounding.
  static constexpr Registers kPlain{0, 0}, kFlushing{std::uint64_t{1} << 24, 0};

  static Registers read() {
    Registers registers;
    asm volatile("mrs %0, fpcr\n\tmrs %1, fpsr" : "=r"(registers.control), "=r"(registers.flags)::"memory");
    return registers;
  }
  static void write(const Registers& registers) {
    asm volatile("msr fpcr, %0\n\tmsr fpsr, %1" ::"r"(registers.control), "r"(registers.flags) : "memory");
  }
#else
  struct Registers {};  // unknown: the state does not change
  static constexpr Registers kPlain{}, kFlushing{};
  static Registers read() { return {}; }
  static void write(Registers) {}
#endif

  const Registers before_;
};

}  // namespace mha
