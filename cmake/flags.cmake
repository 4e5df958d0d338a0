# Floating-point and warning flags, set once, on one target that everything links.
set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_C_STANDARD 11)
set(CMAKE_C_STANDARD_REQUIRED ON)
set(CMAKE_C_EXTENSIONS OFF)
if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE Release)
endif()

set(RLK_SANITIZE "" CACHE STRING "Sanitizers, as for -fsanitize= (address,undefined)")

add_library(rlk_flags INTERFACE)
target_compile_features(rlk_flags INTERFACE cxx_std_20)
# The contract says where two roundings become one: only where it writes fma().
set(RLK_FLOAT_FLAGS -ffp-contract=off -fno-fast-math)
set(RLK_WARNING_FLAGS -Wall -Wextra -Wpedantic -Werror)
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 13)
  # g++ 12 sees an overlap in every inlined std::string + (GCC bug 105651).
  list(APPEND RLK_WARNING_FLAGS -Wno-restrict)
endif()
target_compile_options(rlk_flags INTERFACE
  ${RLK_FLOAT_FLAGS} "$<BUILD_INTERFACE:${RLK_WARNING_FLAGS}>")
target_include_directories(rlk_flags INTERFACE
  $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}> $<INSTALL_INTERFACE:include>)
if(RLK_SANITIZE)
  target_compile_options(rlk_flags INTERFACE -fsanitize=${RLK_SANITIZE} -fno-omit-frame-pointer
    -fno-sanitize-recover=all)
  target_link_options(rlk_flags INTERFACE -fsanitize=${RLK_SANITIZE})
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    # Between the checks that it puts in, g++ no longer sees that std::regex sets its states.
    target_compile_options(rlk_flags INTERFACE $<BUILD_INTERFACE:-Wno-maybe-uninitialized>)
  endif()
endif()

find_program(CCACHE ccache)
if(CCACHE AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  set(CMAKE_C_COMPILER_LAUNCHER ${CCACHE})
  set(CMAKE_CXX_COMPILER_LAUNCHER ${CCACHE})
endif()

# rlk_library(layer SOURCES ... LIBS ...): the static library of one folder.
function(rlk_library layer)
  cmake_parse_arguments(ARG "" "" "SOURCES;LIBS;PRIVATE_LIBS" ${ARGN})
  add_library(rlk_${layer} STATIC ${ARG_SOURCES})
  target_link_libraries(rlk_${layer} PUBLIC rlk_flags ${ARG_LIBS} PRIVATE ${ARG_PRIVATE_LIBS})
  set_target_properties(rlk_${layer} PROPERTIES EXPORT_NAME ${layer} POSITION_INDEPENDENT_CODE ON)
  set_property(GLOBAL APPEND PROPERTY RLK_LIBRARIES rlk_${layer})
endfunction()

# rlk_isa_flags(target a_avx2.cc ...): the end of a file's name says for which instruction set it is
# compiled. The property is set for the target's directory, which is where CMake looks for it.
function(rlk_isa_flags target)
  foreach(source ${ARGN})
    if(source MATCHES "_avx2\\.cc$")
      set(flags -mavx2 -mfma)
    elseif(source MATCHES "_avx512\\.cc$")
      # g++ 12 takes the undefined operand inside its own AVX-512 intrinsics for a mistake.
      set(flags -mavx512f -mavx512bw -mavx512dq -mavx512vl -mavx2 -mfma)
      if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
        list(APPEND flags -Wno-uninitialized -Wno-maybe-uninitialized)
      endif()
    else()
      continue()
    endif()
    set_source_files_properties(${source} TARGET_DIRECTORY ${target}
      PROPERTIES COMPILE_OPTIONS "${flags}")
  endforeach()
endfunction()
