// The matrix instruction of a warp. The emulator of the tests has one of its own, by the model, so
// what is made of it alone runs there too.
#pragma once

#include <cstdint>

#include "rlk/kernels/gpu/gpu.h"

namespace rlk::gpu::sm90 {

// d[16 x 8] += a[16 x 16] b[16 x 8], one warp. With g = lane / 4, q = lane % 4:
//   d  rows g, g, g + 8, g + 8; columns 2 q, 2 q + 1, 2 q, 2 q + 1
//   a  pairs along k: row g, k 2 q; row g + 8, k 2 q; row g, k 2 q + 8; row g + 8, k 2 q + 8
//   b  pairs along k: column g, k 2 q; column g, k 2 q + 8
#if defined(__CUDACC__)
RLK_DEVICE void mma_sync(float (&d)[4], const std::uint32_t (&a)[4], const std::uint32_t* b) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
      "{%8, %9}, {%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
#else
void mma_sync(float (&d)[4], const std::uint32_t (&a)[4], const std::uint32_t* b);
#endif

}  // namespace rlk::gpu::sm90
