#include "platform/thread_count.hpp"

#include <charconv>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <string_view>
#include <thread>

#include "platform/cgroup_quota.hpp"
#include "platform/parallel.hpp"

#ifdef __linux__
#include <sched.h>
#endif

namespace mha {
namespace {

/// The first entry of a list such as "4,2", in which OpenMP gives the number of threads for each level of nesting; 0 if
/// that entry is not a positive integer.
int first_entry(std::string_view list) {
  list = list.substr(0, list.find(','));
  const auto first = list.find_first_not_of(" \t");
  if (first == std::string_view::npos) return 0;
  list = list.substr(first, list.find_last_not_of(" \t") - first + 1);
  int value = 0;
  const auto [end, error] = std::from_chars(list.data(), list.data() + list.size(), value);
  return error == std::errc() && end == list.data() + list.size() && value > 0 ? value : 0;
}

int available_processors() {
#ifdef __linux__
  // The kernel refuses a set with fewer bits than its own has. There is no way to ask how many those are, so sizes are
  // tried in turn.
  for (int size = 1024; size <= 1 << 20; size *= 4) {
    cpu_set_t* set = CPU_ALLOC(size);
    if (set == nullptr) break;
    const std::size_t bytes = CPU_ALLOC_SIZE(size);
    const int count = sched_getaffinity(0, bytes, set) == 0 ? CPU_COUNT_S(bytes, set) : 0;
    CPU_FREE(set);
    if (count > 0) return count;
  }
#endif
  return static_cast<int>(std::thread::hardware_concurrency());
}

}  // namespace

ThreadCount choose_thread_count(const char* omp_num_threads, int processors, double quota, const char* source) {
  const int requested = omp_num_threads == nullptr ? 0 : first_entry(omp_num_threads);
  if (requested > 0) return {requested, std::string("OMP_NUM_THREADS is ") + omp_num_threads};

  if (std::ceil(quota) < processors) {
    char text[64];
    std::snprintf(text, sizeof text, "the cgroup CPU quota is %.4g processors", quota);
    return {quota > 1 ? static_cast<int>(std::ceil(quota)) : 1, text};
  }
  if (processors < 1) return {1, "the number of processors is unknown"};
  return {processors, std::string(source) + " has " + std::to_string(processors) +
                          (processors == 1 ? " processor" : " processors") + ", and no CPU quota is lower"};
}

ThreadCount default_thread_count() {
  const char* const from_environment = std::getenv("OMP_NUM_THREADS");  // NOLINT(concurrency-mt-unsafe): as in dispatch
  if (const int processors = processors_of_openmp_places(); processors > 0)
    return choose_thread_count(from_environment, processors, cgroup_cpu_quota(), "the list of OpenMP places");
  return choose_thread_count(from_environment, available_processors(), cgroup_cpu_quota());
}

}  // namespace mha
