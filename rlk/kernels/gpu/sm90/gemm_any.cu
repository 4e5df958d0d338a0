// Any shape, strides and number of leaves: a warp holds 16 rows by 8 columns and loads its numbers
// one by one.
#include "rlk/kernels/gpu/elements.h"
#include "rlk/kernels/gpu/sm90/gemm.h"
#include "rlk/kernels/gpu/sm90/mma_sync.h"
#include "rlk/kernels/gpu/trees.h"
#include "rlk/kernels/gpu/views.h"
#include "rlk/numerics/sums.h"

namespace rlk::gpu::sm90 {
namespace {

constexpr int kWarps = 4;  // of a block, side by side

struct AnyShape {
  std::int64_t m, n, k;
  std::int64_t segments[3];
  int leaves;
  bool c_is_f32;
};

// Values k and k + 1 of row i, +0 outside.
RLK_DEVICE std::uint32_t load_pair(const Ref<const bf16>& x, std::int64_t i, std::int64_t size,
                                   std::int64_t k, std::int64_t end) {
  const std::uint32_t low = i < size && k < end ? x(i, k).bits : 0;
  const std::uint32_t high = i < size && k + 1 < end ? x(i, k + 1).bits : 0;
  return low | (high << 16);
}

RLK_KERNEL(32 * kWarps)
gemm_any_kernel(void* c, std::int64_t stride_m, std::int64_t stride_n, Ref<const bf16> a,
                Ref<const bf16> b, Ref<const bf16> bias, AnyShape shape) {
  const int lane = thread() % 32;
  const int g = lane / 4;
  const int q = lane % 4;
  const std::int64_t m0 = block_x() * 16;
  const std::int64_t n0 = (block_y() * kWarps + thread() / 32) * 8;
  TreeStack<4, kMaxTreeLevels> tree;
  for (int leaf = 0; leaf < shape.leaves; ++leaf) {
    float acc[4] = {0.0f, 0.0f, 0.0f, 0.0f};
    std::int64_t start = 0;
    for (const std::int64_t size : shape.segments) {
      const std::int64_t end = start + numerics::leaf_bound(size, shape.leaves, leaf + 1);
      for (std::int64_t k = start + numerics::leaf_bound(size, shape.leaves, leaf); k < end;
           k += 16) {
        const std::uint32_t x[4] = {load_pair(a, m0 + g, shape.m, k + 2 * q, end),
                                    load_pair(a, m0 + g + 8, shape.m, k + 2 * q, end),
                                    load_pair(a, m0 + g, shape.m, k + 2 * q + 8, end),
                                    load_pair(a, m0 + g + 8, shape.m, k + 2 * q + 8, end)};
        const std::uint32_t y[2] = {load_pair(b, n0 + g, shape.n, k + 2 * q, end),
                                    load_pair(b, n0 + g, shape.n, k + 2 * q + 8, end)};
        mma_sync(acc, x, y);
      }
      start += size;
    }
    tree.push(acc);
  }
  for (int i = 0; i < 4; ++i) {
    const std::int64_t m = m0 + g + 8 * (i / 2);
    const std::int64_t n = n0 + 2 * q + i % 2;
    if (m >= shape.m || n >= shape.n) continue;
    float sum = tree.result(i);
    if (bias) sum = sum + load(bias(n));
    const std::int64_t at = m * stride_m + n * stride_n;
    if (shape.c_is_f32) {
      store(static_cast<float*>(c)[at], sum);
    } else {
      store(static_cast<bf16*>(c)[at], sum);
    }
  }
}

}  // namespace

void gemm_any(Exec& exec, const GemmArgs& args) {
  AnyShape shape{args.c.shape(0),      args.c.shape(1),
                 args.a.shape(1),      {args.segments[0], args.segments[1], args.segments[2]},
                 exec.contract.leaves, args.c.dtype == DType::kF32};
  if (!args.leaf_tree) {
    shape.segments[0] = shape.k;
    shape.segments[1] = shape.segments[2] = 0;
    shape.leaves = 1;
  }
  launch(exec, {ceil_div(shape.m, 16), ceil_div(shape.n, 8 * kWarps)}, 32 * kWarps, 0,
         gemm_any_kernel, args.c.data, args.c.stride(0), args.c.stride(1), ref<bf16>(args.a),
         ref<bf16>(args.b), ref<bf16>(args.bias), shape);
}

}  // namespace rlk::gpu::sm90
