// The steps of a leaf's chain.
#pragma once

#include "rlk/core/host_device.h"
#include "rlk/kernels/gpu/sm90/gemm.h"

namespace rlk::gpu::sm90 {

// Calls visit(k, groups) for each step of the leaf: `groups` of 16 values of k from k on.
template <typename Visit>
RLK_HD void for_each_step(const Product& p, int leaf, const Visit& visit) {
  for (int i = 0; i < 3; ++i) {
    const Product::Piece piece = p.pieces[leaf][i];
    for (int k = piece.begin; k < piece.end; k += kStep) {
      const int left = piece.end - k;
      visit(k, left < kStep ? (left + 15) / 16 : kStep / 16);
    }
  }
}

}  // namespace rlk::gpu::sm90
