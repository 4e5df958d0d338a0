// What GPU kernels are written with. CUDA, HIP and the tests' CPU emulator each give these names
// their own meaning; kernels use nothing else of a vendor.
//
//   RLK_KERNEL(256) name(...)            a kernel for blocks of at most 256 threads
//   RLK_SHARED(float, lane, 64);         float* lane: 64 numbers shared by a block
//   RLK_DYNAMIC_SHARED(at);              char* at: what the launch asked for, 16-byte aligned
//   RLK_UNROLL                           before a loop whose count is known
//   thread(), threads(), block_x() ..    indices
//   barrier(), barrier_count(b)          all threads of a block; how many of them have b
//   shuffle_xor(x, mask)                 x of thread() ^ mask, mask below 32, on waves of 64 below
//                                        64; by whole warps only
//   bf16_pair(low, high)                 two numbers rounded to bf16
//   smaller(a, b), larger(a, b)          a where they are equal, or one is NaN
//   atomic_min, atomic_max, atomic_add   integers only: their order cannot be seen
//   launch(exec, grid, threads, shared_bytes, kernel, arguments...)
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>

#include "rlk/core/error.h"
#include "rlk/core/host_device.h"
#include "rlk/device/device.h"
#include "rlk/kernels/exec.h"

namespace rlk::gpu {

struct Grid {
  std::int64_t x;
  std::int64_t y = 1;
  std::int64_t z = 1;
  bool empty() const { return x == 0 || y == 0 || z == 0; }
};

}  // namespace rlk::gpu

#if defined(__CUDACC__) || defined(__HIP__)

#include "rlk/device/gpu_runtime.h"

#if defined(__HIP__)
#include "rlk/kernels/gpu/gpu_hip.h"
#else
#define RLK_KERNEL(max_threads) __global__ __launch_bounds__(max_threads) void
#define RLK_DEVICE __device__ inline
#define RLK_IN_SHARED __shared__

namespace rlk::gpu {

RLK_DEVICE int thread() { return static_cast<int>(threadIdx.x); }
RLK_DEVICE int threads() { return static_cast<int>(blockDim.x); }
RLK_DEVICE std::int64_t block_x() { return blockIdx.x; }
RLK_DEVICE std::int64_t block_y() { return blockIdx.y; }
RLK_DEVICE std::int64_t block_z() { return blockIdx.z; }
RLK_DEVICE void barrier() { __syncthreads(); }
RLK_DEVICE int barrier_count(bool b) { return __syncthreads_count(b); }
RLK_DEVICE float shuffle_xor(float x, int mask) { return __shfl_xor_sync(0xffffffffu, x, mask); }
RLK_DEVICE void atomic_min(unsigned long long* at, unsigned long long x) { atomicMin(at, x); }
RLK_DEVICE void atomic_max(int* at, int x) { atomicMax(at, x); }
// Returns what was there before.
RLK_DEVICE unsigned long long atomic_add(unsigned long long* at, unsigned long long x) {
  return atomicAdd(at, x);
}
RLK_DEVICE unsigned atomic_add(unsigned* at, unsigned x) { return atomicAdd(at, x); }

}  // namespace rlk::gpu
#endif

#define RLK_UNROLL _Pragma("unroll")
#define RLK_SHARED(T, name, count)                                   \
  alignas(alignof(T) > 16 ? alignof(T) : 16)                         \
      RLK_IN_SHARED unsigned char name##_bytes[sizeof(T) * (count)]; \
  T* const name = reinterpret_cast<T*>(name##_bytes)
#define RLK_DYNAMIC_SHARED(name)                                 \
  alignas(16) extern RLK_IN_SHARED unsigned char name##_bytes[]; \
  char* const name = reinterpret_cast<char*>(name##_bytes)

namespace rlk::gpu {

template <typename... P, typename... A>
void launch(Exec& exec, const Grid& grid, int threads, std::size_t shared_bytes,
            void (*kernel)(P...), const A&... arguments) {
  if (grid.empty()) return;
  RLK_ASSERT(grid.x < (std::int64_t{1} << 31) && grid.y < 65536 && grid.z < 65536);
  const dim3 blocks(static_cast<unsigned>(grid.x), static_cast<unsigned>(grid.y),
                    static_cast<unsigned>(grid.z));
  device::allow_shared_memory(reinterpret_cast<const void*>(kernel), shared_bytes);
  const auto stream = static_cast<RLK_GPU(Stream_t)>(exec.gpu->stream().native());
  kernel<<<blocks, static_cast<unsigned>(threads), shared_bytes, stream>>>(arguments...);
  const auto result = RLK_GPU(GetLastError)();
  if (result != RLK_GPU(Success)) {
    fail(ErrorCode::kNotAvailable,
         "GPU: a launch of {} x {} x {} blocks of {} threads with {} bytes failed: {}", grid.x,
         grid.y, grid.z, threads, shared_bytes, RLK_GPU(GetErrorString)(result));
  }
}

}  // namespace rlk::gpu

#else

#include RLK_GPU_EMULATION  // tests/gpu/emulation

#endif

namespace rlk::gpu {

RLK_HD inline float smaller(float a, float b) { return b < a ? b : a; }
RLK_HD inline float larger(float a, float b) { return a < b ? b : a; }

// Two numbers that are not NaN as bf16, rounded to nearest even, `low` in the low half.
RLK_HD inline std::uint32_t bf16_pair(float low, float high) {
#if defined(__CUDA_ARCH__)
  std::uint32_t pair;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  return pair;
#else
  const auto round = [](float x) {
    const std::uint32_t u = std::bit_cast<std::uint32_t>(x);
    return u + 0x7fffu + ((u >> 16) & 1u);
  };
  return round(low) >> 16 | (round(high) & 0xffff0000u);
#endif
}

// Notes that `row` met a number the contract forbids.
RLK_DEVICE void report(unsigned long long* fault, std::int64_t row) {
  atomic_min(fault, static_cast<unsigned long long>(row));
}

}  // namespace rlk::gpu
