#include "tests/hip_emulation/emulator_kernels.h"

namespace rlk::test {

using gpu::barrier;
using gpu::block_x;
using gpu::thread;

RLK_KERNEL(kThreads)
exchange_numbers(float* out, int flip, bool barrier_before, bool barrier_after) {
  RLK_SHARED(float, numbers, kThreads);
  for (int round = 0; round < 2; ++round) {
    numbers[thread()] = static_cast<float>(round + thread());
    if (barrier_before) barrier();
    out[thread()] = numbers[thread() ^ flip];
    if (barrier_after) barrier();
  }
}

RLK_KERNEL(kThreads) count_threes(int* out, int first_out) {
  if (thread() >= first_out) return;
  out[thread()] = gpu::barrier_count(thread() % 3 == 0);
}

RLK_KERNEL(kThreads) shuffle_numbers(float* out, int mask, int first_out) {
  if (thread() >= first_out) return;
  out[thread()] = gpu::shuffle_xor(static_cast<float>(thread()), mask);
}

RLK_KERNEL(kThreads) meet_odd_lanes(unsigned long long* present) {
  if (thread() % 2 == 0) return;
  const int mine = thread();
  const emulation::Wave wave = emulation::exchange(&mine, sizeof mine, "meeting");
  if (emulation::lane() == 1) {
    const int number = wave.payload<int>(31);
    present[number / emulation::options().wave] = wave.present();
  }
}

RLK_KERNEL(kThreads) add_up(unsigned long long* results, int* largest, int* order) {
  const auto t = static_cast<unsigned long long>(thread());
  gpu::atomic_add(&results[0], t);
  gpu::atomic_min(&results[1], t + 7);
  gpu::atomic_max(largest, thread());
  order[gpu::atomic_add(&results[2], 1)] = static_cast<int>(block_x()) * kThreads + thread();
}

RLK_KERNEL(kThreads) read_at(const float* data, float* out, std::int64_t index) {
  if (thread() == 5 && block_x() == 1) *out = data[index];
}
RLK_KERNEL(kThreads) write_at(float* data, std::int64_t index) {
  if (thread() == 5 && block_x() == 1) data[index] = 1.0f;
}
RLK_KERNEL(kThreads) use_shared_at(float* out, int read, int written) {
  RLK_SHARED(float, before, 3);
  RLK_SHARED(float, array, 10);
  if (thread() != 5) return;
  before[0] = 0.0f;
  array[written] = 1.0f;
  *out = array[read];
}
RLK_KERNEL(kThreads) use_dynamic_at(float* out, int read, int written) {
  RLK_DYNAMIC_SHARED(bytes);
  float* const array = reinterpret_cast<float*>(bytes);
  if (thread() != 5) return;
  array[written] = 1.0f;
  *out = array[read];
}
RLK_KERNEL(kThreads) ask_for_shared_memory(float* out) {
  RLK_SHARED(float, large, 16 * 1024);
  RLK_SHARED(float, more, 1);
  large[0] = 1.0f;
  more[0] = 1.0f;
  *out = large[0];
}

RLK_KERNEL(kThreads) count_blocks(unsigned long long* out, bool atomically) {
  if (thread() != 0) return;
  if (atomically) {
    gpu::atomic_add(out, 1);
  } else {
    *out = *out + 1;
  }
}

RLK_KERNEL(kThreads) wait_apart(float* out, bool in_shuffle) {
  if (thread() < 70) {
    barrier();
  } else if (in_shuffle) {
    out[thread()] = gpu::shuffle_xor(1.0f, 1);
  } else {
    out[thread()] = static_cast<float>(gpu::barrier_count(true));
  }
}

RLK_KERNEL(64)
multiply_16(float* d, const gpu::cdna::Half4* a, const gpu::cdna::Half4* b,
            const gpu::cdna::Float4* c) {
  const gpu::cdna::Float4 sums = gpu::cdna::mfma_16x16x16(a[thread()], b[thread()], c[thread()]);
  for (int i = 0; i < 4; ++i) {
    d[gpu::cdna::row_16(thread(), i) * 16 + thread() % 16] = sums[i];
  }
}
RLK_KERNEL(64)
multiply_32(float* d, const gpu::cdna::Half4* a, const gpu::cdna::Half4* b,
            const gpu::cdna::Float16* c) {
  const gpu::cdna::Float16 sums = gpu::cdna::mfma_32x32x8(a[thread()], b[thread()], c[thread()]);
  for (int i = 0; i < 16; ++i) {
    d[gpu::cdna::row_32(thread(), i) * 32 + thread() % 32] = sums[i];
  }
}

}  // namespace rlk::test
