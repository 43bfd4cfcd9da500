# The installed tree: headers, the library, and how CMake and pkg-config find them. It can be moved as a whole.
# In a wheel it lies inside the Python package, beside the extension module.
if(SKBUILD)
  set(CMAKE_INSTALL_INCLUDEDIR mha_native/include)
  set(CMAKE_INSTALL_LIBDIR mha_native/lib)
endif()
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)
set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/mha_native)

install(TARGETS mha EXPORT mha_native
  INCLUDES DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}
  ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT development
  LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT runtime NAMELINK_COMPONENT development
  RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR} COMPONENT runtime)
install(DIRECTORY include/mha ${CMAKE_CURRENT_BINARY_DIR}/generated/mha
  DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} COMPONENT development
  FILES_MATCHING PATTERN "*.hpp" PATTERN "*.h" PATTERN "*.def")

# Until 1.0 a minor version may change the interface.
configure_package_config_file(cmake/mha_native-config.cmake.in mha_native-config.cmake INSTALL_DESTINATION ${package_dir})
write_basic_package_version_file(mha_native-config-version.cmake COMPATIBILITY SameMinorVersion)
install(FILES
  ${CMAKE_CURRENT_BINARY_DIR}/mha_native-config.cmake ${CMAKE_CURRENT_BINARY_DIR}/mha_native-config-version.cmake
  DESTINATION ${package_dir} COMPONENT development)
install(EXPORT mha_native FILE mha_native-targets.cmake NAMESPACE mha_native:: DESTINATION ${package_dir}
  COMPONENT development)

# A static library does not say what it needs in turn: its threads, and for a caller in C the runtime of C++.
set(pkgconfig_libraries "")
if(NOT BUILD_SHARED_LIBS)
  set(runtime ${CMAKE_CXX_IMPLICIT_LINK_LIBRARIES})
  list(FILTER runtime EXCLUDE REGEX "gcc|^c$")
  foreach(library IN LISTS MHA_THREAD_LIBRARIES runtime)
    string(REGEX REPLACE "^([^-/].*)" "-l\\1" option ${library})
    string(APPEND pkgconfig_libraries " ${option}")
  endforeach()
endif()
# From the folder of mha_native.pc, wherever that is.
file(RELATIVE_PATH pkgconfig_to_include /${CMAKE_INSTALL_LIBDIR}/pkgconfig /${CMAKE_INSTALL_INCLUDEDIR})
configure_file(cmake/mha_native.pc.in mha_native.pc @ONLY)
install(FILES ${CMAKE_CURRENT_BINARY_DIR}/mha_native.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig
  COMPONENT development)
