// The hint that a loop which waits for another thread gives to the processor.
#pragma once

namespace mha {

/// Pauses this hardware thread for some dozens of cycles, so that the other one of the same core has more of the core
/// to itself. Does nothing on architectures without such an instruction.
inline void cpu_pause() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  __asm__ volatile("yield");
#endif
}

}  // namespace mha
