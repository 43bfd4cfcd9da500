# The registry of instruction sets: one line for each, in rising rank. A line makes an object library of
# src/kernels/kernels.cpp compiled with FLAGS, and a row of the generated isa_list.inc: MHA_ISA(name, required). Dispatch
# takes the last row that the processor runs and that pays on it (src/platform/isa_evidence.cpp).
#
# What EXTENDS another instruction set has kernels of its own for the families that it OVERRIDES (isa_families; what is in
# them src/kernels/kernels.cpp says). Only these are compiled; the others are those of the set that it extends, with the
# same bits. REQUIRES and FLAGS are then what comes on top.
#
# REQUIRES lists all that FLAGS let the compiler emit, in the names that GCC and Clang have for it. Each becomes a row of the
# generated feature_list.inc, MHA_FEATURE(identifier, name); src/platform/processor.cpp knows how to ask for it, and for the
# registers that the operating system saves.
#
# MHA_ISAS leaves lines out: a library for machines that are known, or a quick build while kernels are being written.
#
# Common code is compiled for the compiler's default, so that dispatch itself runs everywhere and an old machine gets an
# error instead of an illegal instruction.

set(MHA_ISA_LIST "")
set(MHA_ISA_NAMES "")
set(isa_features "")
set(isa_families bf16 int8)

function(mha_register_isa)
  cmake_parse_arguments(isa "" "NAME;EXTENDS" "OVERRIDES;REQUIRES;FLAGS" ${ARGN})
  if(MHA_ISAS AND NOT isa_NAME IN_LIST MHA_ISAS)
    return()
  endif()
  if(isa_EXTENDS)
    if(NOT isa_EXTENDS IN_LIST MHA_ISA_NAMES)
      message(FATAL_ERROR "MHA_ISAS: ${isa_NAME} extends ${isa_EXTENDS}, which must be in the list, too")
    endif()
    get_target_property(base_requires mha_kernels_${isa_EXTENDS} MHA_REQUIRES)
    get_target_property(base_flags mha_kernels_${isa_EXTENDS} MHA_FLAGS)
    list(PREPEND isa_REQUIRES ${base_requires})
    list(PREPEND isa_FLAGS ${base_flags})
  endif()

  set(required "0")
  foreach(feature IN LISTS isa_REQUIRES)
    string(MAKE_C_IDENTIFIER ${feature} identifier)
    string(APPEND required " | features::${identifier}")
  endforeach()
  set(MHA_ISA_LIST "${MHA_ISA_LIST}MHA_ISA(${isa_NAME}, ${required})\n" PARENT_SCOPE)
  set(MHA_ISA_NAMES ${MHA_ISA_NAMES} ${isa_NAME} PARENT_SCOPE)
  list(APPEND isa_features ${isa_REQUIRES})
  list(REMOVE_DUPLICATES isa_features)
  set(isa_features ${isa_features} PARENT_SCOPE)

  add_library(mha_kernels_${isa_NAME} OBJECT ${CMAKE_CURRENT_SOURCE_DIR}/src/kernels/kernels.cpp)
  mha_configure_target(mha_kernels_${isa_NAME})
  target_include_directories(mha_kernels_${isa_NAME} PRIVATE include src)
  target_link_libraries(mha_kernels_${isa_NAME} PRIVATE Eigen3::Eigen)
  target_compile_definitions(mha_kernels_${isa_NAME} PRIVATE MHA_ISA=${isa_NAME})
  set_target_properties(mha_kernels_${isa_NAME} PROPERTIES MHA_REQUIRES "${isa_REQUIRES}" MHA_FLAGS "${isa_FLAGS}")
  if(isa_EXTENDS)
    target_compile_definitions(mha_kernels_${isa_NAME} PRIVATE MHA_BASE_ISA=${isa_EXTENDS})
  endif()
  foreach(family IN LISTS isa_OVERRIDES)
    if(NOT family IN_LIST isa_families)
      message(FATAL_ERROR "${isa_NAME} OVERRIDES ${family}: expected some of ${isa_families}")
    endif()
    string(TOUPPER ${family} family)
    target_compile_definitions(mha_kernels_${isa_NAME} PRIVATE MHA_OVERRIDES_${family})
  endforeach()
  # Products are rounded unless the source says pmadd. GCC would fuse them with sums where it can, which depends on what
  # it has inlined: two kernels that share a line of source could round it differently.
  target_compile_options(mha_kernels_${isa_NAME} PRIVATE ${isa_FLAGS} -ffp-contract=off)
  # Nothing is thrown in a kernel or through one, so nobody has to unwind its stack: with all instruction sets, tables for
  # that would take 135 KiB.
  target_compile_options(mha_kernels_${isa_NAME} PRIVATE
    -fno-exceptions -fno-asynchronous-unwind-tables -fno-unwind-tables)
  # clang-tidy takes twice as long as the compiler, and sees the same templates in every set: it reads a set without the
  # macros of extensions, and one with all of them.
  if(NOT isa_NAME MATCHES "^(baseline|amx|neon|neonbf16)$")
    set_target_properties(mha_kernels_${isa_NAME} PROPERTIES CXX_CLANG_TIDY "")
  endif()
  # A packet type as a template argument loses its alignment attribute, which no template here relies on.
  target_compile_options(mha_kernels_${isa_NAME} PRIVATE -Wno-ignored-attributes)
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 13)
    # Its AVX-512 intrinsics warn about their own undefined operands (GCC bug 105593).
    target_compile_options(mha_kernels_${isa_NAME} PRIVATE -Wno-uninitialized -Wno-maybe-uninitialized)
  endif()
endfunction()

if(CMAKE_SYSTEM_PROCESSOR MATCHES "^(x86_64|AMD64|amd64)$")
  set(v2 sse3 ssse3 sse4.1 sse4.2 popcnt)
  set(v3 ${v2} avx avx2 bmi bmi2 f16c fma lzcnt movbe)
  set(v4 ${v3} avx512f avx512bw avx512cd avx512dq avx512vl)
  mha_register_isa(NAME baseline REQUIRES ${v2} FLAGS -march=x86-64-v2)
  mha_register_isa(NAME avx2 REQUIRES ${v3} FLAGS -march=x86-64-v3)
  mha_register_isa(NAME avxvnni EXTENDS avx2 OVERRIDES int8 REQUIRES avxvnni FLAGS -mavxvnni)
  mha_register_isa(NAME avx512 REQUIRES ${v4} FLAGS -march=x86-64-v4 -mprefer-vector-width=512)
  mha_register_isa(NAME avx512vnni EXTENDS avx512 OVERRIDES int8 REQUIRES avx512vnni FLAGS -mavx512vnni)
  mha_register_isa(NAME avx512bf16 EXTENDS avx512vnni OVERRIDES bf16 REQUIRES avx512bf16 FLAGS -mavx512bf16)
  mha_register_isa(NAME amx EXTENDS avx512bf16 OVERRIDES bf16 int8
    REQUIRES amx-tile amx-bf16 amx-int8 FLAGS -mamx-tile -mamx-bf16 -mamx-int8 -DMHA_TILES=HardwareTiles)
  if(MHA_AMX_MODEL)  # the kernels of amx over a model of its instructions (src/kernels/products/tiles.hpp), for tests
    mha_register_isa(NAME amx_model EXTENDS ${MHA_AMX_MODEL} OVERRIDES bf16 int8 FLAGS -DMHA_TILES=ModelTiles)
  endif()
elseif(CMAKE_SYSTEM_PROCESSOR MATCHES "^(aarch64|arm64)$")
  mha_register_isa(NAME neon)  # a part of every 64-bit Arm processor
  if(CMAKE_SYSTEM_NAME STREQUAL "Linux")  # src/platform/processor.cpp asks it what the processor has, and no other system
    # crc, lse and rdma are in armv8.2-a.
    mha_register_isa(NAME neondot EXTENDS neon OVERRIDES int8
      REQUIRES dotprod crc lse rdma FLAGS -march=armv8.2-a+dotprod)
    mha_register_isa(NAME neonbf16 EXTENDS neondot OVERRIDES bf16 REQUIRES bf16 FLAGS -march=armv8.2-a+dotprod+bf16)
  endif()
else()
  message(FATAL_ERROR "No kernels are registered for ${CMAKE_SYSTEM_PROCESSOR}")
endif()
if(MHA_NATIVE)
  mha_register_isa(NAME native FLAGS -march=native)
endif()

if(NOT MHA_ISA_NAMES)
  message(FATAL_ERROR "MHA_ISAS: no instruction set of this processor family is in '${MHA_ISAS}'")
endif()

set(feature_list "")
foreach(feature IN LISTS isa_features)
  string(MAKE_C_IDENTIFIER ${feature} identifier)
  string(APPEND feature_list "MHA_FEATURE(${identifier}, \"${feature}\")\n")
endforeach()

file(CONFIGURE OUTPUT ${CMAKE_CURRENT_BINARY_DIR}/generated/isa_list.inc CONTENT "${MHA_ISA_LIST}" @ONLY)
file(CONFIGURE OUTPUT ${CMAKE_CURRENT_BINARY_DIR}/generated/feature_list.inc CONTENT "${feature_list}" @ONLY)
