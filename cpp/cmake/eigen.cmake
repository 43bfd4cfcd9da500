# Finds Eigen 3.4 to 5: where CMake was pointed at, else in the Python package cmeel-eigen, else on the system.
# find_package is given no version: Eigen 3 and 5 each refuse a request that names the other.
find_package(Python COMPONENTS Interpreter QUIET)
if(Python_Interpreter_FOUND)
  execute_process(
    COMMAND ${Python_EXECUTABLE} -c
      "import os, sys; print(*(p for d in sys.path if os.path.isdir(p := os.path.join(d, 'cmeel.prefix'))), sep=';')"
    OUTPUT_VARIABLE cmeel_prefix OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
  list(APPEND CMAKE_PREFIX_PATH ${cmeel_prefix})
endif()

find_package(Eigen3 CONFIG QUIET)
if(NOT Eigen3_FOUND)
  message(FATAL_ERROR "Eigen was not found: pip install cmeel-eigen, or give -DEigen3_ROOT=<prefix>")
elseif(Eigen3_VERSION VERSION_LESS 3.4 OR Eigen3_VERSION VERSION_GREATER_EQUAL 6)
  message(FATAL_ERROR "Eigen 3.4 to 5 is needed; ${Eigen3_DIR} holds ${Eigen3_VERSION}")
endif()
message(STATUS "Eigen ${Eigen3_VERSION}: ${Eigen3_DIR}")
