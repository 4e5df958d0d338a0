// Small kernels that do what GPUs promise, and what none may do.
#pragma once

#include "rlk/kernels/gpu/cdna/mfma.h"
#include "rlk/kernels/gpu/gpu.h"

namespace rlk::test {

inline constexpr int kThreads = 192;  // of a block

// out[t] = 1 + the number of thread t ^ flip, through shared memory, in rounds that use it again.
RLK_KERNEL(kThreads)
exchange_numbers(float* out, int flip, bool barrier_before, bool barrier_after);
// out[t] = how many threads below `first_out` have a number that 3 divides; the others end at once.
RLK_KERNEL(kThreads) count_threes(int* out, int first_out);
// out[t] = the number that shuffle_xor brings from t ^ mask; threads from `first_out` on end at
// once.
RLK_KERNEL(kThreads) shuffle_numbers(float* out, int mask, int first_out);
// *present of each wave = the lanes that meet in an exchange, odd ones only.
RLK_KERNEL(kThreads) meet_odd_lanes(unsigned long long* present);
// results[0] += t, results[1] = min, results[2] = how many came; order[i] = the i-th to come.
RLK_KERNEL(kThreads) add_up(unsigned long long* results, int* largest, int* order);
// The number at `index`, read or written by thread 5 of block 1 alone.
RLK_KERNEL(kThreads) read_at(const float* data, float* out, std::int64_t index);
RLK_KERNEL(kThreads) write_at(float* data, std::int64_t index);
RLK_KERNEL(kThreads) use_shared_at(float* out, int read, int written);
RLK_KERNEL(kThreads) use_dynamic_at(float* out, int read, int written);
RLK_KERNEL(kThreads) ask_for_shared_memory(float* out);
// *out += 1 by one thread of each block, atomically or not.
RLK_KERNEL(kThreads) count_blocks(unsigned long long* out, bool atomically);
// Threads of a wave wait for different things.
RLK_KERNEL(kThreads) wait_apart(float* out, bool in_shuffle);
// c + a * b of one wave; operands and sums by lane.
RLK_KERNEL(64)
multiply_16(float* d, const gpu::cdna::Half4* a, const gpu::cdna::Half4* b,
            const gpu::cdna::Float4* c);
RLK_KERNEL(64)
multiply_32(float* d, const gpu::cdna::Half4* a, const gpu::cdna::Half4* b,
            const gpu::cdna::Float16* c);

}  // namespace rlk::test
