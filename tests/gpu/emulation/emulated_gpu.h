// The names of rlk/kernels/gpu/gpu.h on one CPU thread. Each GPU thread is a fiber that runs until
// it waits for others. Blocks, waves and threads run in an order that a seed permutes, and every
// access to memory is checked (memory.h), so that what a GPU would forgive today stops the test.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <tuple>

#include "rlk/contract/contract.h"
#include "rlk/device/gpu_runtime.h"

#define RLK_KERNEL(max_threads) void
#define RLK_DEVICE inline
#define RLK_UNROLL
#define RLK_SHARED(T, name, count)                                     \
  static char name##_key;                                              \
  T* const name = reinterpret_cast<T*>(::rlk::emulation::shared_array( \
      &name##_key, #name, sizeof(T) * static_cast<std::size_t>(count)))
#define RLK_DYNAMIC_SHARED(name) char* const name = ::rlk::emulation::dynamic_shared(#name)

namespace rlk::emulation {

struct Options {
  int wave = 32;                        // threads in lockstep: 32 or 64
  std::uint64_t seed = 0;               // order of blocks, waves and threads; 0: rising
  Profile profile = Profile::kCdna3;    // whose model the MFMA instructions follow
  bool kernels_may_touch_host = false;  // kernels are given host memory
  bool host_may_touch_device = true;    // false: the host that touches device memory dies of it
};

// The options that are valid while this lives.
class Scope {
 public:
  explicit Scope(const Options& options);
  ~Scope();
  Scope(const Scope&) = delete;
  Scope& operator=(const Scope&) = delete;

 private:
  Options before_;
};
const Options& options();

// Where the fiber that runs is.
struct Place {
  int thread;
  int threads;
  std::int64_t block[3];
};
extern Place place;

char* shared_array(const char* key, const char* name, std::size_t size_bytes);
char* dynamic_shared(const char* name);
int barrier_count(bool b, const char* kind);

// What each thread of a wave has left for the others.
inline constexpr std::size_t kPayloadBytes = 32;
struct alignas(16) Payload {
  unsigned char bytes[kPayloadBytes];
};
class Wave {
 public:
  Wave(const Payload* lanes, std::uint64_t present, const char* kind)
      : lanes_(lanes), present_(present), kind_(kind) {}
  // What a lane left; one that has ended, or never was, stops the test.
  template <typename T>
  T payload(int lane) const {
    T out;
    std::memcpy(&out, at(lane), sizeof out);
    return out;
  }
  std::uint64_t present() const { return present_; }  // a bit per lane that takes part

 private:
  const void* at(int lane) const;

  const Payload* lanes_;
  std::uint64_t present_;
  const char* kind_;
};

// Leaves `payload` for the wave, and waits until all of its threads that have not ended have come
// to an exchange of the same kind. The result is valid until the thread's next exchange.
Wave exchange(const void* payload, std::size_t size_bytes, const char* kind);
int lane();  // of the thread that runs

float shuffle_xor(float x, int mask);
void atomic_min(unsigned long long* at, unsigned long long x);
void atomic_max(int* at, int x);
unsigned long long atomic_add(unsigned long long* at, unsigned long long x);
unsigned atomic_add(unsigned* at, unsigned x);

// A kernel and its arguments.
struct Call {
  std::int64_t grid[3];
  int threads;
  std::size_t shared_bytes;
  const void* kernel;  // for its name
  const void* arguments;
  std::size_t arguments_bytes;
  void (*invoke)(const void* kernel, const void* arguments);
};
// Runs the kernel as fibers, block by block. Throws Violation (memory.h).
void run(const Call& call);

template <typename... P>
void invoke(const void* kernel, const void* arguments) {
  std::apply(reinterpret_cast<void (*)(P...)>(const_cast<void*>(kernel)),
             *static_cast<const std::tuple<P...>*>(arguments));
}

}  // namespace rlk::emulation

namespace rlk::gpu {

inline int thread() { return emulation::place.thread; }
inline int threads() { return emulation::place.threads; }
inline std::int64_t block_x() { return emulation::place.block[0]; }
inline std::int64_t block_y() { return emulation::place.block[1]; }
inline std::int64_t block_z() { return emulation::place.block[2]; }
inline void barrier() { emulation::barrier_count(false, "barrier"); }
inline int barrier_count(bool b) { return emulation::barrier_count(b, "barrier_count"); }
using emulation::atomic_add;
using emulation::atomic_max;
using emulation::atomic_min;
using emulation::shuffle_xor;

template <typename... P, typename... A>
void launch(Exec& exec, const Grid& grid, int threads, std::size_t shared_bytes,
            void (*kernel)(P...), const A&... arguments) {
  if (grid.empty()) return;
  RLK_ASSERT(grid.x < (std::int64_t{1} << 31) && grid.y < 65536 && grid.z < 65536);
  const auto stream = static_cast<emulatedStream_t>(exec.gpu->stream().native());
  const auto result = emulation::enqueue(stream, [=, values = std::tuple<P...>(arguments...)] {
    emulation::run({{grid.x, grid.y, grid.z},
                    threads,
                    shared_bytes,
                    reinterpret_cast<const void*>(kernel),
                    &values,
                    sizeof values,
                    &emulation::invoke<P...>});
  });
  if (result != emulatedSuccess) {
    fail(ErrorCode::kNotAvailable, "GPU: a launch failed: {}", emulatedGetErrorString(result));
  }
}

}  // namespace rlk::gpu
