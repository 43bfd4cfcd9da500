// What Linux knows of the pages of an address.
#pragma once

#include <cstdint>
#include <cstdio>
#include <fstream>
#include <string>

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

/// Whether this system has huge pages for memory that asks for them, and says what asks.
inline bool can_ask_for_huge_pages() {
  return bool(std::ifstream("/sys/kernel/mm/transparent_hugepage/enabled")) && bool(std::ifstream("/proc/self/smaps"));
}

}  // namespace mha::testing
