# What every target of ours is compiled with.
function(mha_configure_target target)
  target_compile_features(${target} PRIVATE cxx_std_17)
  set_target_properties(${target} PROPERTIES
    CXX_EXTENSIONS OFF
    CXX_VISIBILITY_PRESET hidden
    VISIBILITY_INLINES_HIDDEN ON
    POSITION_INDEPENDENT_CODE ON)
  target_compile_options(${target} PRIVATE -Wall -Wextra -Wshadow -Wconversion)
  # A build of somebody else that this is a part of may state no kind of build.
  target_compile_options(${target} PRIVATE $<$<CONFIG:>:-O3>)
  if(MHA_WERROR)
    target_compile_options(${target} PRIVATE -Werror)
  endif()
  if(MHA_SANITIZE)
    string(REPLACE ";" "," sanitizers "${MHA_SANITIZE}")
    target_compile_options(${target} PRIVATE
      -fsanitize=${sanitizers} -fno-sanitize-recover=all -fno-omit-frame-pointer)
    target_link_options(${target} PRIVATE -fsanitize=${sanitizers})
  endif()
endfunction()
