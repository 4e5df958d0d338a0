// What the kernels of products are told of a call.
#pragma once

#include <algorithm>
#include <limits>

#include "rlk/kernels/exec.h"
#include "rlk/kernels/gemm.h"
#include "rlk/numerics/sums.h"

namespace rlk::gpu {

inline constexpr int kMaxLeaves = 8;  // of kernels for whole tiles

struct GemmShape {
  std::int64_t m, n, k;
  std::int64_t segments[3];
  int leaves;  // 1: one chain
  bool c_is_f32;

  static GemmShape of(const Exec& exec, const GemmArgs& args) {
    GemmShape shape{args.c.shape(0),
                    args.c.shape(1),
                    args.a.shape(1),
                    {args.a.shape(1), 0, 0},
                    1,
                    args.c.dtype == DType::kF32};
    if (args.leaf_tree) {
      std::copy(args.segments.begin(), args.segments.end(), shape.segments);
      shape.leaves = exec.contract.leaves;
    }
    return shape;
  }

  // Calls visit(begin, end) for the three pieces of k, some empty, that the chain of a leaf walks
  // through.
  template <typename Visit>
  RLK_HD void for_each_piece(int leaf, const Visit& visit) const {
    std::int64_t start = 0;
    for (const std::int64_t size : segments) {
      visit(start + numerics::leaf_bound(size, leaves, leaf),
            start + numerics::leaf_bound(size, leaves, leaf + 1));
      start += size;
    }
  }
};

// Whether there is something to compute, 32 bits can count it, and rows of c and the bias are
// dense.
inline bool is_plain(const GemmShape& shape, const GemmArgs& args) {
  const auto [low, high] = std::minmax({shape.m, shape.n, shape.k});
  const bool dense =
      shape.n == 1 || (args.c.stride(1) == 1 && (!args.bias || args.bias.stride(0) == 1));
  return low > 0 && high < std::numeric_limits<int>::max() / 2 && dense;
}

}  // namespace rlk::gpu
