// What a warpgroup does with its finished sums.
#pragma once

#include "rlk/kernels/gpu/sm90/gemm.h"
#include "rlk/kernels/gpu/views.h"

namespace rlk::gpu::sm90 {

RLK_DEVICE std::uint32_t pack_bf16(float low, float high) {
  return numerics::to_bf16(low).bits |
         (static_cast<std::uint32_t>(numerics::to_bf16(high).bits) << 16);
}

// The sum of output (., n) with its bias.
RLK_DEVICE float with_bias(const Product& p, float sum, int n) {
  sum = sum + 0.0f;
  if (p.bias == nullptr || n >= p.n) return sum;
  return sum + numerics::to_f32(static_cast<const bf16*>(p.bias)[n]);
}

RLK_DEVICE void store_one(const Product& p, int m, int n, float x) {
  if (m >= p.m || n >= p.n) return;
  const std::int64_t at = m * p.c_stride + n;
  if (p.c_is_f32) {
    store(static_cast<float*>(p.c)[at], x);
  } else {
    store(static_cast<bf16*>(p.c)[at], x);
  }
}

// The 64 x kN sums of a warpgroup, as wgmma leaves them, from row m0 and column n0 on.
template <int kN>
RLK_DEVICE void store_tile(const Product& p, int m0, int n0, const float (&acc)[kN / 2]) {
  const int lane = thread() % 32;
  const int q = lane % 4;
  const int row = m0 + thread() % 128 / 32 * 16 + lane / 4;
  const bool packs = !p.c_is_f32 && p.c_stride % 8 == 0 &&
                     reinterpret_cast<std::uintptr_t>(p.c) % 16 == 0 && n0 + kN <= p.n;
  if (!packs) {
    RLK_UNROLL
    for (int i = 0; i < kN / 2; ++i) {
      const int n = n0 + i / 4 * 8 + q * 2 + i % 2;
      store_one(p, row + i / 2 % 2 * 8, n, with_bias(p, acc[i], n));
    }
    return;
  }
  // Four lanes hold two columns each of four neighbouring blocks of 8. Turned, each holds a block.
  RLK_UNROLL
  for (int i = 0; i < kN / 8; i += 4) {
    RLK_UNROLL
    for (int h = 0; h < 2; ++h) {
      std::uint32_t v[4];
      RLK_UNROLL
      for (int j = 0; j < 4; ++j) {
        const int n = n0 + (i + j) * 8 + q * 2;
        v[j] = pack_bf16(with_bias(p, acc[(i + j) * 4 + h * 2], n),
                         with_bias(p, acc[(i + j) * 4 + h * 2 + 1], n + 1));
      }
      // The square turns over one bit of (lane, block) after the other.
      const bool odd = (q & 1) != 0;
      std::uint32_t x = __shfl_xor_sync(~0u, odd ? v[0] : v[1], 1);
      std::uint32_t y = __shfl_xor_sync(~0u, odd ? v[2] : v[3], 1);
      (odd ? v[0] : v[1]) = x;
      (odd ? v[2] : v[3]) = y;
      const bool high = (q & 2) != 0;
      x = __shfl_xor_sync(~0u, high ? v[0] : v[2], 2);
      y = __shfl_xor_sync(~0u, high ? v[1] : v[3], 2);
      (high ? v[0] : v[2]) = x;
      (high ? v[1] : v[3]) = y;
      const int m = row + h * 8;
      if (m < p.m) {
        bf16* const to = static_cast<bf16*>(p.c) + m * p.c_stride + n0 + (i + q) * 8;
        *reinterpret_cast<uint4*>(to) = make_uint4(v[0], v[1], v[2], v[3]);
      }
    }
  }
}

}  // namespace rlk::gpu::sm90
