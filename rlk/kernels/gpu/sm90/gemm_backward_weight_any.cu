// dW of any shape and strides: a warp holds 16 rows (of dy) by 32 columns (of x), goes through all
// tokens and loads its numbers one by one.
#include "rlk/kernels/gpu/elements.h"
#include "rlk/kernels/gpu/sm90/fragments.h"
#include "rlk/kernels/gpu/sm90/gemm.h"
#include "rlk/kernels/gpu/token_runs.h"

namespace rlk::gpu::sm90 {
namespace {

constexpr int kWarps = 4;  // of a block, side by side
constexpr int kTiles = 4;  // of a warp, side by side
constexpr int kColumns = 8 * kTiles;

RLK_KERNEL(32 * kWarps)
gemm_backward_weight_any_kernel(Ref<float> dw, Ref<float> chain, Ref<const bf16> dy,
                                Ref<const bf16> x, std::int64_t n, std::int64_t k, TokenRuns runs) {
  const std::int64_t n0 = block_x() * 16;
  const std::int64_t k0 = (block_y() * kWarps + thread() / 32) * kColumns;
  float acc[kTiles][4] = {};
  // Calls visit(row, column, sum) for the thread's sums.
  const auto for_each_sum = [&](const auto& visit) {
    RLK_UNROLL
    for (int tile = 0; tile < kTiles; ++tile) {
      RLK_UNROLL
      for (int i = 0; i < 4; ++i) {
        const std::int64_t row = n0 + sum_row(i);
        const std::int64_t column = k0 + tile * 8 + sum_column(i);
        if (row < n && column < k) visit(row, column, acc[tile][i]);
      }
    }
  };
  for_each_sum(
      [&](std::int64_t row, std::int64_t column, float& sum) { sum = chain(row, column); });
  runs.for_each<16>(
      [&](std::int64_t first, std::int64_t stop, std::int64_t end) {
        for (std::int64_t t = first; t < stop; t += 16) {
          std::uint32_t a[4];
          load_a([&](int row,
                     int i) { return n0 + row < n && t + i < end ? dy(t + i, n0 + row) : bf16{}; },
                 a);
          RLK_UNROLL
          for (int tile = 0; tile < kTiles; ++tile) {
            const std::int64_t from = k0 + tile * 8;
            std::uint32_t b[2];
            load_b(
                [&](int column, int i) {
                  return from + column < k && t + i < end ? x(t + i, from + column) : bf16{};
                },
                b);
            mma_sync(acc[tile], a, b);
          }
        }
      },
      [&] {
        for_each_sum([&](std::int64_t row, std::int64_t column, float& sum) {
          dw(row, column) = dw(row, column) + sum;
          sum = 0.0f;
        });
      });
  for_each_sum(
      [&](std::int64_t row, std::int64_t column, float& sum) { chain(row, column) = sum; });
}

}  // namespace

void gemm_backward_weight_any(Exec& exec, const GemmBackwardWeightArgs& args,
                              const TokenWindow& window) {
  const std::int64_t n = args.dw.shape(0);
  const std::int64_t k = args.dw.shape(1);
  launch(exec, {ceil_div(n, 16), ceil_div(k, kWarps * kColumns)}, 32 * kWarps, 0,
         gemm_backward_weight_any_kernel, ref<float>(args.dw), ref<float>(args.chain),
         ref<bf16>(args.dy), ref<bf16>(args.x), n, k, TokenRuns(args, window));
}

}  // namespace rlk::gpu::sm90
