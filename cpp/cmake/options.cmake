# Every option of the build.
set(is_wheel_build OFF)
if(SKBUILD)  # scikit-build-core sets it to a number, which option() would read as off
  set(is_wheel_build ON)
endif()
set(is_top_level OFF)  # and not a part of somebody else's build
if(CMAKE_SOURCE_DIR STREQUAL PROJECT_SOURCE_DIR)
  set(is_top_level ON)
endif()

option(BUILD_SHARED_LIBS "Build a shared library, not a static one" OFF)
option(MHA_BUILD_PYTHON "Build the extension module of the Python package" ${is_wheel_build})
option(MHA_BUILD_TESTS "Build the C++ tests" OFF)
option(MHA_BUILD_FUZZER "Build, with the C++ tests and by Clang, the fuzzer of the C interface for libFuzzer" OFF)
option(MHA_BUILD_BENCHMARKS "Build the benchmarks in C++" OFF)
option(MHA_INSTALL "Install the library, its headers and its packages for CMake and pkg-config" ${is_top_level})
option(MHA_NATIVE "Add kernels compiled with -march=native; the build is then for this machine alone" OFF)
set(MHA_ISAS "" CACHE STRING "Instruction sets to build kernels for, of those in isa.cmake, such as baseline;avx2; empty: all")
set(MHA_AMX_MODEL "" CACHE STRING
  "Add the instruction set amx_model, a model of Intel's matrix units for tests, on top of avx2 or avx512bf16; empty: none")
set_property(CACHE MHA_AMX_MODEL PROPERTY STRINGS "" avx2 avx512bf16)
option(MHA_WERROR "Treat warnings as errors" OFF)
set(MHA_THREADS openmp CACHE STRING "What computes on several threads: openmp, std (a pool of std::thread) or serial")
set_property(CACHE MHA_THREADS PROPERTY STRINGS openmp std serial)
set(MHA_SANITIZE "" CACHE STRING "Sanitizers to build with, such as address;undefined")

if(NOT MHA_THREADS MATCHES "^(openmp|std|serial)$")
  message(FATAL_ERROR "MHA_THREADS: expected openmp, std or serial; got ${MHA_THREADS}")
endif()
if(BUILD_SHARED_LIBS AND (MHA_BUILD_TESTS OR MHA_BUILD_BENCHMARKS OR MHA_BUILD_PYTHON))
  message(FATAL_ERROR "Tests and benchmarks reach below the public headers and the Python package holds one file: all "
                      "want BUILD_SHARED_LIBS=OFF")
endif()
if(is_top_level AND NOT CMAKE_BUILD_TYPE AND NOT CMAKE_CONFIGURATION_TYPES)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "Kind of build" FORCE)
endif()
