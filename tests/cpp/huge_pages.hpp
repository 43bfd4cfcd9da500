// What Linux knows of the pages of an address.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <fstream>
#include <string>

#ifdef __linux__
#include <sys/mman.h>
#endif

namespace mha::testing {

/// Whether the mapping of an address is marked for huge pages: the flag "hg" in /proc/self/smaps.
inline bool asks_for_huge_pages(const void* at) {
  const auto address = reinterpret_cast<std::uintptr_t>(at);
  std::ifstream maps("/proc/self/smaps");
  bool is_here = false;
  for (std::string line; std::getline(maps, line);) {
    unsigned long long from = 0, to = 0;
    if (std::sscanf(line.c_str(), "%llx-%llx ", &from, &to) == 2) is_here = from <= address && address < to;
    if (is_here && line.rfind("VmFlags:", 0) == 0) return (line + ' ').find(" hg ") != std::string::npos;
  }
  return false;
}

/// Whether this system has huge pages for memory that asks for them, and says what asks: memory of our own is tried. To
/// a program that qemu-user runs the files are there, but say nothing of the flag.
inline bool can_ask_for_huge_pages() {
#ifdef MADV_HUGEPAGE
  constexpr std::size_t kBytes = std::size_t{4} << 20;
  if (!std::ifstream("/sys/kernel/mm/transparent_hugepage/enabled")) return false;
  void* const memory = mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) return false;
  const bool says = madvise(memory, kBytes, MADV_HUGEPAGE) == 0 && asks_for_huge_pages(memory);
  munmap(memory, kBytes);
  return says;
#else
  return false;
#endif
}

}  // namespace mha::testing
