// What gpu.h's names mean for HIP: builtins of clang. HIP's own headers would leave calls of a
// device library that only ROCm has.
#pragma once

#include <cstdint>

// Threads that run in lockstep: 64 on CDNA, 32 on RDNA. Of no meaning in code for the host.
#if defined(__GFX9__)
#define RLK_WAVE 64
#else
#define RLK_WAVE 32
#endif

// (launch_bounds would leave the registers of a thread at what a block of 1,024 can have.)
#define RLK_KERNEL(max_threads) \
  __attribute__((global, amdgpu_flat_work_group_size(1, max_threads))) void
#define RLK_DEVICE __attribute__((device)) inline
#define RLK_IN_SHARED __attribute__((shared))

namespace rlk::gpu {

RLK_DEVICE int thread() { return static_cast<int>(__builtin_amdgcn_workitem_id_x()); }
RLK_DEVICE int threads() { return static_cast<int>(__builtin_amdgcn_workgroup_size_x()); }
RLK_DEVICE std::int64_t block_x() { return __builtin_amdgcn_workgroup_id_x(); }
RLK_DEVICE std::int64_t block_y() { return __builtin_amdgcn_workgroup_id_y(); }
RLK_DEVICE std::int64_t block_z() { return __builtin_amdgcn_workgroup_id_z(); }

RLK_DEVICE void barrier() {
  __builtin_amdgcn_fence(__ATOMIC_RELEASE, "workgroup");
  __builtin_amdgcn_s_barrier();
  __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "workgroup");
}

RLK_DEVICE int barrier_count(bool b) {
  RLK_IN_SHARED static int count_of_wave[1024 / RLK_WAVE];
#if RLK_WAVE == 64
  const int count = __builtin_popcountll(__builtin_amdgcn_ballot_w64(b));
#else
  const int count = __builtin_popcount(__builtin_amdgcn_ballot_w32(b));
#endif
  count_of_wave[thread() / RLK_WAVE] = count;
  barrier();
  int sum = 0;
  for (int wave = 0; wave * RLK_WAVE < threads(); ++wave) sum += count_of_wave[wave];
  barrier();  // the next call writes the counts again
  return sum;
}

RLK_DEVICE float shuffle_xor(float x, int mask) {
  const int lane = (thread() ^ mask) & (RLK_WAVE - 1);
  return __builtin_bit_cast(float,
                            __builtin_amdgcn_ds_bpermute(4 * lane, __builtin_bit_cast(int, x)));
}

RLK_DEVICE void atomic_min(unsigned long long* at, unsigned long long x) {
  __hip_atomic_fetch_min(at, x, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_AGENT);
}
RLK_DEVICE void atomic_max(int* at, int x) {
  __hip_atomic_fetch_max(at, x, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_AGENT);
}
RLK_DEVICE unsigned long long atomic_add(unsigned long long* at, unsigned long long x) {
  return __hip_atomic_fetch_add(at, x, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_AGENT);
}
RLK_DEVICE unsigned atomic_add(unsigned* at, unsigned x) {
  return __hip_atomic_fetch_add(at, x, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_AGENT);
}

}  // namespace rlk::gpu
