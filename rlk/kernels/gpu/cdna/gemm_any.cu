// Any shape, strides and number of leaves: a wave holds 16 rows by 16 columns and loads its numbers
// one by one.
#include "rlk/kernels/gpu/cdna/fragments.h"
#include "rlk/kernels/gpu/cdna/gemm.h"
#include "rlk/kernels/gpu/elements.h"
#include "rlk/kernels/gpu/trees.h"
#include "rlk/kernels/gpu/views.h"
#include "rlk/numerics/sums.h"

namespace rlk::gpu::cdna {
namespace {

constexpr int kWaves = 4;  // of a block, side by side

struct AnyShape {
  std::int64_t m, n, k;
  std::int64_t segments[3];
  int leaves;
  bool c_is_f32;
};

// Row i of x, values k .. k + 3; +0 outside.
RLK_DEVICE Half4 load_row(const Ref<const bf16>& x, std::int64_t i, std::int64_t size,
                          std::int64_t k, std::int64_t end) {
  return load_half4(i < size ? end - k : 0, [&](int j) { return x(i, k + j); });
}

// The padding of a piece is at most three groups of +0 too many, which only make +0 of a sum that
// is -0; after + (+0) that does not show.
RLK_KERNEL(kWave* kWaves)
gemm_any_kernel(void* c, std::int64_t stride_m, std::int64_t stride_n, Ref<const bf16> a,
                Ref<const bf16> b, Ref<const bf16> bias, AnyShape shape) {
  const int lane = thread() % kWave;
  const int quad = 4 * (lane / 16);
  const std::int64_t m = block_x() * 16 + lane % 16;
  const std::int64_t n0 = (block_y() * kWaves + thread() / kWave) * 16;
  TreeInRegisters<Float4, 1, kMaxTreeLevels> tree;
  Float4 sums[1] = {};
  for (int leaf = 0; leaf < shape.leaves; ++leaf) {
    Float4& acc = sums[0];
    acc = Float4{};
    std::int64_t start = 0;
    for (const std::int64_t size : shape.segments) {
      const std::int64_t end = start + numerics::leaf_bound(size, shape.leaves, leaf + 1);
      for (std::int64_t k = start + numerics::leaf_bound(size, shape.leaves, leaf); k < end;
           k += 16) {
        // The columns of the instruction are rows of the result, so that a lane's sums are
        // neighbours in memory.
        acc = mfma_16x16x16(load_row(b, n0 + lane % 16, shape.n, k + quad, end),
                            load_row(a, m, shape.m, k + quad, end), acc);
      }
      start += size;
    }
    tree.merge(sums);
  }
  for (int i = 0; i < 4; ++i) {
    const std::int64_t n = n0 + row_16(lane, i);
    if (m >= shape.m || n >= shape.n) continue;
    float sum = sums[0][i] + 0.0f;
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
  launch(exec, {ceil_div(shape.m, 16), ceil_div(shape.n, 16 * kWaves)}, kWave * kWaves, 0,
         gemm_any_kernel, args.c.data, args.c.stride(0), args.c.stride(1), ref<bf16>(args.a),
         ref<bf16>(args.b), ref<bf16>(args.bias), shape);
}

}  // namespace rlk::gpu::cdna
