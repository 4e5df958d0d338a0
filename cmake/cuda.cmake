# RLK_CUDA: the CUDA backend. Its kernels are compiled by nvcc for the architectures below, the rest
# of the program by the host compiler; the runtime is linked statically.
if(NOT CMAKE_CUDA_COMPILER)
  find_program(RLK_NVCC nvcc PATHS /usr/local/cuda/bin)
  if(NOT RLK_NVCC)
    message(FATAL_ERROR "RLK_CUDA needs nvcc (CUDA 12.8 or newer): set CMAKE_CUDA_COMPILER")
  endif()
  set(CMAKE_CUDA_COMPILER ${RLK_NVCC})
endif()
if(NOT CMAKE_CUDA_ARCHITECTURES)
  set(CMAKE_CUDA_ARCHITECTURES 80 90a-real 100-real CACHE STRING "Architectures of the GPU code")
endif()
if(NOT CMAKE_CUDA_HOST_COMPILER)
  set(CMAKE_CUDA_HOST_COMPILER ${CMAKE_CXX_COMPILER})
endif()
enable_language(CUDA)
# CMake 3.25 does not know that this compiler has C++20.
set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION -std=c++20)
set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION -std=c++20)
find_package(CUDAToolkit REQUIRED)

# Where the contract writes fma it is written in the source; divisions and roots are correctly
# rounded, subnormals kept. (std::array and std::bit_cast are
# constexpr, not device functions; fmt 9 does not know this nvcc.)
set(RLK_CUDA_FLAGS --expt-relaxed-constexpr -fmad=false -prec-div=true -prec-sqrt=true
  -ftz=false -DFMT_USE_CONSTEXPR=1 --compress-mode=size)

# The flags of a target with .cu sources.
function(rlk_cuda_target target)
  target_compile_options(${target} PRIVATE "$<$<COMPILE_LANGUAGE:CUDA>:${RLK_CUDA_FLAGS}>")
  set_target_properties(${target} PROPERTIES POSITION_INDEPENDENT_CODE ON)
endfunction()
