// A look in a loop that waits for another thread: tells the processor so, which leaves more to what shares its core.
#pragma once

namespace mha {

inline void relax() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  __asm__ volatile("yield");
#endif
}

}  // namespace mha
