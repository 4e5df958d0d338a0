// The one header that knows the names of a GPU vendor's runtime: RLK_GPU(Malloc) is cudaMalloc or
// hipMalloc. For rlk/device and rlk/kernels/gpu only.
#pragma once

#if defined(RLK_GPU_RUNTIME)
#include RLK_GPU_RUNTIME  // another one with the same functions: the tests' CPU emulator
#elif defined(__HIP_PLATFORM_AMD__)
#include <hip/hip_runtime_api.h>
#define RLK_GPU(name) hip##name
using hipDeviceProp = hipDeviceProp_t;
#define hipHostAlloc hipHostMalloc
#define hipHostAllocDefault hipHostMallocDefault
#define hipFreeHost hipHostFree
#else
#include <cuda_runtime_api.h>
#define RLK_GPU(name) cuda##name
#endif
