# What MHA_THREADS asks for. MHA_THREAD_LIBRARIES are the libraries that a static mha_native makes its users link, by
# name: the tree stays movable, and find_package(OpenMP) in their build would ask for a compiler that has OpenMP, and
# could find the runtime of another one.
set(MHA_THREAD_LIBRARIES "")
if(MHA_THREADS STREQUAL "openmp")
  find_package(OpenMP REQUIRED COMPONENTS CXX)
  set(MHA_THREAD_LIBRARIES ${OpenMP_CXX_LIB_NAMES})
  target_link_libraries(mha PRIVATE $<BUILD_INTERFACE:OpenMP::OpenMP_CXX>)
elseif(MHA_THREADS STREQUAL "std")
  set(THREADS_PREFER_PTHREAD_FLAG OFF)
  find_package(Threads REQUIRED)
  set(MHA_THREAD_LIBRARIES ${CMAKE_THREAD_LIBS_INIT})
  target_link_libraries(mha PRIVATE $<BUILD_INTERFACE:Threads::Threads>)
  target_compile_definitions(mha PRIVATE MHA_THREADS_STD)
endif()
if(BUILD_SHARED_LIBS AND NOT MHA_THREADS STREQUAL "serial")
  # The threads of its pool wait inside it until the process ends.
  target_link_options(mha PRIVATE LINKER:-z,nodelete)
endif()
if(NOT BUILD_SHARED_LIBS)
  foreach(library IN LISTS MHA_THREAD_LIBRARIES)
    target_link_libraries(mha INTERFACE $<INSTALL_INTERFACE:$<LINK_ONLY:${library}>>)
  endforeach()
endif()
