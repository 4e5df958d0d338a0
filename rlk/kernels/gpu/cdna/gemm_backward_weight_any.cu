// dW of any shape and strides: a wave holds 16 rows (of dy) by 32 columns (of x), goes through all
// tokens and loads its numbers one by one.
#include "rlk/kernels/gpu/cdna/fragments.h"
#include "rlk/kernels/gpu/cdna/gemm.h"
#include "rlk/kernels/gpu/elements.h"
#include "rlk/kernels/gpu/token_runs.h"

namespace rlk::gpu::cdna {
namespace {

constexpr int kWaves = 4;  // of a block, side by side
constexpr int kTiles = 2;  // of a wave, side by side
constexpr int kColumns = 16 * kTiles;

RLK_KERNEL(kWave* kWaves)
gemm_backward_weight_any_kernel(Ref<float> dw, Ref<float> chain, Ref<const bf16> dy,
                                Ref<const bf16> x, std::int64_t n, std::int64_t k, TokenRuns runs) {
  const int lane = thread() % kWave;
  const int quad = 4 * (lane / 16);
  const std::int64_t row = block_x() * 16 + lane % 16;
  const std::int64_t k0 = (block_y() * kWaves + thread() / kWave) * kColumns;
  Float4 acc[kTiles] = {};
  // Calls visit(column, sum) for the thread's sums, which returns what becomes of them.
  const auto for_each_sum = [&](const auto& visit) {
    RLK_UNROLL
    for (int tile = 0; tile < kTiles; ++tile) {
      RLK_UNROLL
      for (int i = 0; i < 4; ++i) {
        const std::int64_t column = k0 + tile * 16 + row_16(lane, i);
        if (row < n && column < k) acc[tile][i] = visit(column, acc[tile][i]);
      }
    }
  };
  for_each_sum([&](std::int64_t column, float) { return chain(row, column); });
  runs.for_each<16>(
      [&](std::int64_t first, std::int64_t stop, std::int64_t end) {
        for (std::int64_t begin = first; begin < stop; begin += 16) {
          const std::int64_t t = begin + quad;
          const std::int64_t count = end - t;
          const Half4 right =
              load_half4(row < n ? count : 0, [&](int i) { return dy(t + i, row); });
          RLK_UNROLL
          for (int tile = 0; tile < kTiles; ++tile) {
            const std::int64_t column = k0 + tile * 16 + lane % 16;
            const Half4 left = load_half4(
                column < k ? count : 0, [&](int i) { return x(t + i, column); },
                group_padding(count));
            acc[tile] = mfma_16x16x16(left, right, acc[tile]);
          }
        }
      },
      [&] {
        for_each_sum([&](std::int64_t column, float sum) {
          dw(row, column) = dw(row, column) + sum;
          return 0.0f;
        });
      });
  for_each_sum([&](std::int64_t column, float sum) {
    chain(row, column) = sum;
    return sum;
  });
}

}  // namespace

void gemm_backward_weight_any(Exec& exec, const GemmBackwardWeightArgs& args,
                              const TokenWindow& window) {
  const std::int64_t n = args.dw.shape(0);
  const std::int64_t k = args.dw.shape(1);
  launch(exec, {ceil_div(n, 16), ceil_div(k, kWaves * kColumns)}, kWave * kWaves, 0,
         gemm_backward_weight_any_kernel, ref<float>(args.dw), ref<float>(args.chain),
         ref<bf16>(args.dy), ref<bf16>(args.x), n, k, TokenRuns(args, window));
}

}  // namespace rlk::gpu::cdna
