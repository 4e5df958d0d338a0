// The names of rlk/kernels/gpu/gpu.h on one CPU thread. Each GPU thread is a fiber, which runs
// until it waits for others; so a missing barrier shows as a wrong result when fibers run in
// another order (set_reversed).
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>

#include "rlk/device/gpu_runtime.h"

#define RLK_KERNEL(max_threads) void
#define RLK_DEVICE inline
#define RLK_UNROLL
#define RLK_SHARED(T, name, count)                                                              \
  alignas(                                                                                      \
      alignof(T) > 16                                                                           \
          ? alignof(T)                                                                          \
          : 16) static unsigned char name##_bytes[sizeof(T) * static_cast<std::size_t>(count)]; \
  T* const name = reinterpret_cast<T*>(name##_bytes)
#define RLK_DYNAMIC_SHARED(name) char* const name = ::rlk::emulation::dynamic_shared()

namespace rlk::emulation {

// Where the fiber that runs is.
struct Place {
  int thread;
  int threads;
  std::int64_t block[3];
};
extern Place place;

char* dynamic_shared();
int barrier_count(bool b);
float shuffle_xor(float x, int mask);

// Runs `kernel` as `threads` fibers for every block of the grid.
void run(const std::int64_t (&grid)[3], int threads, std::size_t shared_bytes,
         const std::function<void()>& kernel);

// Blocks and fibers from the last to the first.
void set_reversed(bool reversed);

}  // namespace rlk::emulation

namespace rlk::gpu {

inline int thread() { return emulation::place.thread; }
inline int threads() { return emulation::place.threads; }
inline std::int64_t block_x() { return emulation::place.block[0]; }
inline std::int64_t block_y() { return emulation::place.block[1]; }
inline std::int64_t block_z() { return emulation::place.block[2]; }
inline void barrier() { emulation::barrier_count(false); }
inline int barrier_count(bool b) { return emulation::barrier_count(b); }
inline float shuffle_xor(float x, int mask) { return emulation::shuffle_xor(x, mask); }
inline void atomic_min(unsigned long long* at, unsigned long long x) {
  if (x < *at) *at = x;
}
inline void atomic_max(int* at, int x) {
  if (x > *at) *at = x;
}
inline unsigned long long atomic_add(unsigned long long* at, unsigned long long x) {
  const unsigned long long before = *at;
  *at += x;
  return before;
}

template <typename... P, typename... A>
void launch(Exec& exec, const Grid& grid, int threads, std::size_t shared_bytes,
            void (*kernel)(P...), const A&... arguments) {
  if (grid.empty()) return;
  RLK_ASSERT(grid.x < (std::int64_t{1} << 31) && grid.y < 65536 && grid.z < 65536);
  RLK_ASSERT(shared_bytes <= 64 * 1024);  // what every GPU has
  const auto stream = static_cast<emulatedStream_t>(exec.gpu->stream().native());
  emulation::enqueue(stream, [=] {
    const std::int64_t sizes[3] = {grid.x, grid.y, grid.z};
    emulation::run(sizes, threads, shared_bytes, [&] { kernel(arguments...); });
  });
}

}  // namespace rlk::gpu
