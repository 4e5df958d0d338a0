// What the drivers of row by row operators share.
#pragma once

#include <algorithm>
#include <cstdint>

#include "rlk/core/tensor.h"

namespace rlk::cpu {

// Items per piece of a parallel loop, so that a piece is worth handing to another thread.
inline std::int64_t grain(double ns_per_item) {
  constexpr double kPieceNs = 16000.0;
  const double items = kPieceNs / std::max(ns_per_item, 0.01);
  return std::max<std::int64_t>(1, static_cast<std::int64_t>(items));
}

// Elements of a row are neighbours: what the vector kernels need. Other views go to the reference.
template <typename... Views>
bool dense(int dim, const Views&... views) {
  return ((!views || views.shape(dim) == 1 || views.stride(dim) == 1) && ...);
}

}  // namespace rlk::cpu
