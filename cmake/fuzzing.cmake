# rlk_fuzz_target(name SOURCES a.cc): one libFuzzer program over the parsers, with the address and
# undefined-behaviour sanitizers. `rlk_fuzz` builds them all.
#
# The parsers are compiled a second time, instrumented, into one library: the kernels, which no
# outside byte reaches unchecked, need not be compiled for fuzzing.
if(NOT CMAKE_CXX_COMPILER_ID STREQUAL "Clang")
  message(FATAL_ERROR "RLK_FUZZ needs clang (libFuzzer): cmake --preset fuzz")
endif()

set(RLK_FUZZ_FLAGS -fsanitize=address,undefined -fno-sanitize-recover=all -fno-omit-frame-pointer)
add_custom_target(rlk_fuzz)

# The sources of `targets` whose file names match `pattern`, as absolute paths.
function(rlk_sources_of result pattern)
  set(found "")
  foreach(target ${ARGN})
    get_target_property(sources ${target} SOURCES)
    get_target_property(folder ${target} SOURCE_DIR)
    foreach(source ${sources})
      if(source MATCHES "^(${pattern})[.]cc$")
        cmake_path(ABSOLUTE_PATH source BASE_DIRECTORY ${folder} OUTPUT_VARIABLE path)
        list(APPEND found ${path})
      endif()
    endforeach()
  endforeach()
  set(${result} ${found} PARENT_SCOPE)
endfunction()

function(rlk_fuzz_target name)
  cmake_parse_arguments(ARG "" "" "SOURCES" ${ARGN})
  add_executable(${name} EXCLUDE_FROM_ALL ${ARG_SOURCES})
  target_link_libraries(${name} PRIVATE rlk_parsers)
  target_compile_options(${name} PRIVATE -fsanitize=fuzzer ${RLK_FUZZ_FLAGS})
  target_link_options(${name} PRIVATE -fsanitize=fuzzer ${RLK_FUZZ_FLAGS})
  set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/fuzz)
  add_dependencies(rlk_fuzz ${name})
endfunction()
