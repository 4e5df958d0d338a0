# RLK_HIP: the HIP backend. Every kernel file is compiled once for each of GPU_TARGETS, by the clang of
# a ROCm installation or else Debian's; the code objects are bundled into the object of the file's
# host part. The rest of the program is compiled by the host compiler. CMake's own HIP language wants
# ROCm's device libraries, which the kernels do not use.
set(RLK_HIP_KNOWN_TARGETS gfx90a gfx942 gfx950 gfx1100 gfx1030)
set(GPU_TARGETS ${RLK_HIP_KNOWN_TARGETS} CACHE STRING "Architectures of the GPU code")
foreach(target ${GPU_TARGETS})
  if(NOT target IN_LIST RLK_HIP_KNOWN_TARGETS)
    list(JOIN RLK_HIP_KNOWN_TARGETS " " known)
    message(FATAL_ERROR "GPU_TARGETS: \"${target}\" is not one of ${known}. "
      "`rocminfo | grep gfx` prints the targets of this machine's GPUs.")
  endif()
endforeach()

set(RLK_ROCM_PATH "$ENV{ROCM_PATH}" CACHE PATH "Folder of a ROCm installation, /opt/rocm if there is one")
if(NOT RLK_ROCM_PATH AND EXISTS /opt/rocm)
  set(RLK_ROCM_PATH /opt/rocm)
endif()
if(RLK_ROCM_PATH)
  find_program(RLK_HIP_CLANG NAMES amdclang++ clang++ NO_DEFAULT_PATH
    PATHS ${RLK_ROCM_PATH}/llvm/bin ${RLK_ROCM_PATH}/lib/llvm/bin)
else()
  find_program(RLK_HIP_CLANG NAMES clang++-22)
endif()
find_path(RLK_HIP_INCLUDE hip/hip_runtime_api.h HINTS ${RLK_ROCM_PATH}/include)
find_library(RLK_HIP_LIBRARY amdhip64 HINTS ${RLK_ROCM_PATH}/lib)
if(NOT RLK_HIP_CLANG OR NOT RLK_HIP_INCLUDE OR NOT RLK_HIP_LIBRARY)
  message(FATAL_ERROR "RLK_HIP needs ROCm (set RLK_ROCM_PATH), or Debian's packages:\n"
    "  sudo apt-get install clang-22 clang-tools-22 llvm-22 lld-22 libamdhip64-dev")
endif()

# What belongs to the compiler.
function(rlk_hip_tool variable name)
  execute_process(COMMAND ${RLK_HIP_CLANG} -print-prog-name=${name}
    OUTPUT_VARIABLE found OUTPUT_STRIP_TRAILING_WHITESPACE)
  if(NOT EXISTS ${found})
    message(FATAL_ERROR "RLK_HIP: ${RLK_HIP_CLANG} has no ${name} (Debian: clang-tools-22, llvm-22, lld-22)")
  endif()
  set(${variable} ${found} PARENT_SCOPE)
endfunction()
rlk_hip_tool(RLK_HIP_BUNDLER clang-offload-bundler)
rlk_hip_tool(RLK_HIP_LINKER lld)
rlk_hip_tool(RLK_HIP_OBJDUMP llvm-objdump)
foreach(target ${GPU_TARGETS})
  execute_process(COMMAND ${RLK_HIP_CLANG} --target=amdgcn-amd-amdhsa -mcpu=${target} -nogpulib
    -x c -fsyntax-only /dev/null RESULT_VARIABLE failed OUTPUT_QUIET ERROR_QUIET)
  if(failed)
    message(FATAL_ERROR "GPU_TARGETS: ${RLK_HIP_CLANG} is too old for ${target}")
  endif()
endforeach()
message(STATUS "HIP: ${RLK_HIP_CLANG}, ${RLK_HIP_LIBRARY}, for ${GPU_TARGETS}")

# Where the contract writes fma it is written in the source; divisions and roots are correctly rounded
# and subnormals kept. The two macros are of HIP's headers, which the compiler's own wrappers of the
# C++ library expect to come first.
set(RLK_HIP_FLAGS -x hip -std=c++20 -O3 -fPIC -nogpulib -nogpuinc -include stdlib.h
  "-D__host__=__attribute__((host))" "-D__device__=__attribute__((device))"
  -D__HIP_PLATFORM_AMD__ -mcode-object-version=5
  -mllvm -amdgpu-early-inline-all=true -mllvm -amdgpu-function-calls=false
  ${RLK_FLOAT_FLAGS} -fhip-fp32-correctly-rounded-divide-sqrt -fno-gpu-flush-denormals-to-zero
  -Wall -Wextra -Wpedantic -Werror -Wno-unused-command-line-argument
  -Wno-pass-failed -I${PROJECT_SOURCE_DIR})
if(NOT RLK_HIP_INCLUDE STREQUAL "/usr/include")
  list(APPEND RLK_HIP_FLAGS -isystem ${RLK_HIP_INCLUDE})
endif()

# rlk_hip_target(target): host code that calls the runtime.
function(rlk_hip_target target)
  target_compile_definitions(${target} PRIVATE __HIP_PLATFORM_AMD__)
  target_include_directories(${target} SYSTEM PRIVATE ${RLK_HIP_INCLUDE})
endfunction()

# rlk_hip_kernels(target TARGETS gfx942 ... SOURCES a.cu ...): compiles kernels for those of the
# targets that GPU_TARGETS names, and adds them to `target`. Without TARGETS: host code that needs the
# names of gpu.h. The global properties RLK_HIP_CODE_OBJECTS (hip/a.gfx942.co ...) and
# RLK_HIP_HOST_OBJECTS list what came out.
function(rlk_hip_kernels target)
  cmake_parse_arguments(ARG "" "" "TARGETS;SOURCES" ${ARGN})
  set(all "")
  foreach(source ${ARG_SOURCES})
    cmake_path(ABSOLUTE_PATH source NORMALIZE OUTPUT_VARIABLE path)
    cmake_path(RELATIVE_PATH path BASE_DIRECTORY ${PROJECT_SOURCE_DIR}/rlk/kernels/gpu
      OUTPUT_VARIABLE name)
    if(name MATCHES "^[.][.]/")  # of a test
      cmake_path(GET path FILENAME name)
    endif()
    cmake_path(REMOVE_EXTENSION name)
    set(base ${PROJECT_BINARY_DIR}/hip/${name})
    cmake_path(GET base PARENT_PATH folder)
    file(MAKE_DIRECTORY ${folder})
    set(ids host-x86_64-unknown-linux-gnu)
    set(objects "")
    foreach(gpu ${ARG_TARGETS})
      if(gpu IN_LIST GPU_TARGETS)
        rlk_hip_compile(${base}.${gpu}.co ${path} --cuda-device-only --no-gpu-bundle-output
          --offload-arch=${gpu})
        list(APPEND objects ${base}.${gpu}.co)
        string(APPEND ids ",hipv4-amdgcn-amd-amdhsa--${gpu}")
      endif()
    endforeach()
    set(bundle "")
    if(ARG_TARGETS)
      list(TRANSFORM objects PREPEND -input= OUTPUT_VARIABLE inputs)
      add_custom_command(OUTPUT ${base}.hipfb DEPENDS ${objects} VERBATIM
        COMMAND ${RLK_HIP_BUNDLER} -type=o -bundle-align=4096 -targets=${ids} -input=/dev/null
          ${inputs} -output=${base}.hipfb)
      set(bundle -Xclang -fcuda-include-gpubinary -Xclang ${base}.hipfb)
    endif()
    rlk_hip_compile(${base}.o ${path} --cuda-host-only ${bundle})
    set_property(GLOBAL APPEND PROPERTY RLK_HIP_CODE_OBJECTS ${objects})
    set_property(GLOBAL APPEND PROPERTY RLK_HIP_HOST_OBJECTS ${base}.o)
    list(APPEND all ${base}.o)
  endforeach()
  list(GET ARG_SOURCES 0 first)
  cmake_path(GET first STEM stem)
  add_custom_target(${target}_hip_${stem} DEPENDS ${all})
  add_dependencies(${target} ${target}_hip_${stem})
  set_source_files_properties(${all} TARGET_DIRECTORY ${target}
    PROPERTIES GENERATED ON EXTERNAL_OBJECT ON)
  target_sources(${target} PRIVATE ${all})
endfunction()

# What a source includes is listed by a run of its own: the compiler does not do it for a GPU. ccache
# does not see what is in a bundle, so the host's part is compiled without it.
function(rlk_hip_compile output source)
  set(bundle ${ARGN})
  list(FILTER bundle INCLUDE REGEX "[.]hipfb$")
  set(launcher ${CMAKE_CXX_COMPILER_LAUNCHER})
  if(bundle)
    set(launcher "")
  endif()
  # A name for the file, the same on both sides.
  cmake_path(RELATIVE_PATH source BASE_DIRECTORY ${PROJECT_SOURCE_DIR} OUTPUT_VARIABLE id)
  string(MAKE_C_IDENTIFIER ${id} id)
  add_custom_command(OUTPUT ${output} DEPENDS ${source} ${bundle} DEPFILE ${output}.d VERBATIM
    COMMAND ${RLK_HIP_CLANG} ${RLK_HIP_FLAGS} --cuda-host-only -M -MT ${output} -MF ${output}.d
      ${source}
    COMMAND ${launcher} ${RLK_HIP_CLANG} ${RLK_HIP_FLAGS} -cuid=${id} ${ARGN} -c ${source} -o ${output})
endfunction()
