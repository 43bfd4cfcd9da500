# Every option of the build.
set(is_wheel_build OFF)
if(SKBUILD)  # scikit-build-core sets it to a number, which option() would read as off
  set(is_wheel_build ON)
endif()
option(MHA_BUILD_PYTHON "Build the extension module of the Python package" ${is_wheel_build})
option(MHA_BUILD_TESTS "Build the C++ tests" OFF)
option(MHA_OPENMP "Compute on several threads, with OpenMP" ON)
option(MHA_NATIVE "Add kernels compiled with -march=native; the build is then for this machine alone" OFF)
option(MHA_WERROR "Treat warnings as errors" OFF)
set(MHA_SANITIZE "" CACHE STRING "Sanitizers to build with, such as address;undefined")

if(NOT CMAKE_BUILD_TYPE AND NOT CMAKE_CONFIGURATION_TYPES)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "Kind of build" FORCE)
endif()
