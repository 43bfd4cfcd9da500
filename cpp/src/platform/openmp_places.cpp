#include "platform/openmp_places.hpp"

#ifdef _OPENMP
#include <omp.h>

#include <algorithm>
#include <set>
#include <vector>
#endif

namespace mha {

int processors_of_openmp_places() {
#ifdef _OPENMP
  if (omp_get_proc_bind() == omp_proc_bind_false) return 0;
  std::set<int> processors;  // places may overlap
  for (int place = 0; place < omp_get_num_places(); ++place) {
    const int count = omp_get_place_num_procs(place);
    if (count < 1) continue;
    std::vector<int> numbers(static_cast<std::size_t>(count));
    omp_get_place_proc_ids(place, numbers.data());
    processors.insert(numbers.begin(), numbers.end());
  }
  // A list in GOMP_CPU_AFFINITY may name processors outside of the affinity mask; omp_get_num_procs() counts the mask as
  // it was before threads were bound.
  return std::min(static_cast<int>(processors.size()), omp_get_num_procs());
#else
  return 0;
#endif
}

}  // namespace mha
