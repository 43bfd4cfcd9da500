// Values that are computed once in the life of a process.
#pragma once

#include <atomic>

namespace mha {

/// The first result of find(). Threads that ask before that look for it side by side. A static object would be simpler,
/// but of that one thread is the maker, and a child that is forked meanwhile would wait for that thread for ever.
template <class T, T (*find)()>
const T& found_once() {
  static std::atomic<const T*> found{nullptr};
  const T* known = found.load(std::memory_order_acquire);
  if (known != nullptr) return *known;
  const T* mine = new T(find());
  if (found.compare_exchange_strong(known, mine, std::memory_order_acq_rel, std::memory_order_acquire)) return *mine;
  delete mine;
  return *known;
}

}  // namespace mha
