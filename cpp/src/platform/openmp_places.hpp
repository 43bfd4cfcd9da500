// Where OpenMP has bound its threads.
#pragma once

namespace mha {

/// On how many processors OpenMP's threads run if OMP_PROC_BIND, OMP_PLACES or GOMP_CPU_AFFINITY bind them; 0 if they are
/// not bound, or if this build has no OpenMP. Of a process's affinity mask libgomp takes a copy when it is loaded, and
/// then binds the thread that loads it to one place. From there on the mask of that thread, and of all threads that it
/// starts, says no longer where the process may run.
int processors_of_openmp_places();

}  // namespace mha
