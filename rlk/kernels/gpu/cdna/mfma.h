// The matrix instructions of CDNA2 and CDNA3 that profiles cdna2 and cdna3 use: BF16 operands, f32
// sums, one whole wave of 64. The emulator of the tests has its own, by the model of the profile.
//
// Both chips take groups of products in rising k (4 on CDNA2, 8 on CDNA3), so a chain that is
// padded with +0 at its end is the contract's, but for what whole groups of padding do to its
// state: see kNegativeZero.
#pragma once

#include <cstdint>

#include "rlk/kernels/gpu/gpu.h"

namespace rlk::gpu::cdna {

inline constexpr int kWave = 64;

typedef short Half4 __attribute__((vector_size(8)));  // four bf16 numbers
typedef float Float4 __attribute__((vector_size(16)));
typedef float Float16 __attribute__((vector_size(64)));

// A whole group of products +0 * kNegativeZero leaves every sum as it is that a group before has
// left. A group of +0 * +0 makes +0 of -0, which CDNA2 can return: where chains are stored raw or
// added without + (+0), groups behind the last of the contract are padded with this instead.
inline constexpr short kNegativeZero = static_cast<short>(0x8000);

#if defined(__HIP__)

// c + a * b, lane l:  a  row l % 16, k 4 * (l / 16) + i;  b  column l % 16, the same k;
//                     c  column l % 16, row 4 * (l / 16) + i
RLK_DEVICE Float4 mfma_16x16x16(Half4 a, Half4 b, Float4 c) {
  return __builtin_amdgcn_mfma_f32_16x16x16bf16_1k(a, b, c, 0, 0, 0);
}

// c + a * b, lane l:  a  row l % 32, k 4 * (l / 32) + i;  b  column l % 32, the same k;
//                     c  column l % 32, row 8 * (i / 4) + 4 * (l / 32) + i % 4
RLK_DEVICE Float16 mfma_32x32x8(Half4 a, Half4 b, Float16 c) {
  return __builtin_amdgcn_mfma_f32_32x32x8bf16_1k(a, b, c, 0, 0, 0);
}

// The compiler moves only scalar instructions across this. Of no meaning for
// what a kernel computes.
RLK_DEVICE void keep_schedule() { __builtin_amdgcn_sched_barrier(4); }

// x, which is the same in all lanes: tells the compiler so.
RLK_DEVICE int uniform(int x) { return __builtin_amdgcn_readfirstlane(x); }

// *at, the same in all lanes, which nothing writes while the kernel runs.
RLK_DEVICE int load_uniform(const int* at) {
  return *(const __attribute__((address_space(4))) int*)at;  // NOLINT: no other cast can
}

#else
Float4 mfma_16x16x16(Half4 a, Half4 b, Float4 c);
Float16 mfma_32x32x8(Half4 a, Half4 b, Float16 c);
inline int uniform(int x) { return x; }
inline void keep_schedule() {}
inline int load_uniform(const int* at) { return *at; }
#endif

// The row where sum i of a lane lies.
RLK_HD inline int row_16(int lane, int i) { return 4 * (lane / 16) + i; }
RLK_HD inline int row_32(int lane, int i) { return 8 * (i / 4) + 4 * (lane / 32) + i % 4; }

}  // namespace rlk::gpu::cdna
