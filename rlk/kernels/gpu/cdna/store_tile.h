// What a wave does with its finished sums.
#pragma once

#include "rlk/kernels/gpu/cdna/gemm.h"
#include "rlk/kernels/gpu/views.h"

namespace rlk::gpu::cdna {

// Sums n .. n + 3 of row m.
RLK_DEVICE void store_quad(const Product& p, int m, int n, const float (&sums)[4]) {
  if (m >= p.a.size || n >= p.b.size) return;
  float x[4];
  RLK_UNROLL
  for (int i = 0; i < 4; ++i) {
    x[i] = sums[i] + 0.0f;
    if (p.bias != nullptr && n + i < p.b.size) x[i] = x[i] + numerics::to_f32(p.bias[n + i]);
  }
  const std::int64_t row = m * p.c_stride;
  if (p.c_is_f32) {
    store_pack(static_cast<float*>(p.c) + row, 1, n, p.b.size, p.c_packs, x);
  } else {
    store_pack(static_cast<bf16*>(p.c) + row, 1, n, p.b.size, p.c_packs, x);
  }
}

template <typename Tile>
RLK_DEVICE void store_tile(const Product& p, int m0, int n0, const Tile& tile) {
  Tile::for_each_quad(m0, n0, [&](int of, int part, int m, int n) {
    const Float16& acc = tile.acc[of];
    store_quad(p, m, n, {acc[part * 4], acc[part * 4 + 1], acc[part * 4 + 2], acc[part * 4 + 3]});
  });
}

}  // namespace rlk::gpu::cdna
