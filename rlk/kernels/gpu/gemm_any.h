// Products of any shape, strides and number of leaves (see any_shape.h).
#pragma once

#include "rlk/kernels/gpu/any_shape.h"
#include "rlk/kernels/gpu/elements.h"
#include "rlk/kernels/gpu/gemm_shape.h"
#include "rlk/kernels/gpu/token_runs.h"
#include "rlk/kernels/gpu/trees.h"

namespace rlk::gpu::any_shape {

inline constexpr int kWaves = 4;  // of a block, side by side

// A wave holds 16 x 16 sums. The padding of a piece is at most three groups of +0 too many, which
// only make +0 of a sum that is -0; after + (+0) that does not show.
template <typename S>
RLK_KERNEL(S::kWave* kWaves)
gemm_any_kernel(void* c, std::int64_t stride_m, std::int64_t stride_n, Ref<const bf16> a,
                Ref<const bf16> b, Ref<const bf16> bias, GemmShape shape) {
  const std::int64_t m0 = block_x() * 16;
  const std::int64_t n0 = (block_y() * kWaves + thread() / S::kWave) * 16;
  const auto load_rows = [](const Ref<const bf16>& x, std::int64_t first, std::int64_t size,
                            std::int64_t k, std::int64_t end) {
    return S::operand([&](int h, int j) {
      const std::int64_t row = first + S::line(h);
      const std::int64_t at = k + S::place(j);
      return row < size && at < end ? x(row, at) : bf16{};
    });
  };
  TreeStack<S::kSums, kMaxTreeLevels> tree;
  for (int leaf = 0; leaf < shape.leaves; ++leaf) {
    float sums[S::kSums] = {};
    shape.for_each_piece(leaf, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t k = begin; k < end; k += 16) {
        S::multiply(load_rows(a, m0, shape.m, k, end), load_rows(b, n0, shape.n, k, end), sums);
      }
    });
    tree.push(sums);
  }
  RLK_UNROLL
  for (int i = 0; i < S::kSums; ++i) {
    const std::int64_t m = m0 + S::line(i / 4);
    const std::int64_t n = n0 + S::place(i % 4);
    if (m >= shape.m || n >= shape.n) continue;
    float sum = tree.result(i);
    if (bias) sum = sum + load(bias(n));
    store_at(c, shape.c_is_f32, m * stride_m + n * stride_n, sum);
  }
}

template <typename S>
void gemm(Exec& exec, const GemmArgs& args) {
  const GemmShape shape = GemmShape::of(exec, args);
  launch(exec, {ceil_div(shape.m, 16), ceil_div(shape.n, 16 * kWaves)}, S::kWave * kWaves, 0,
         gemm_any_kernel<S>, args.c.data, args.c.stride(0), args.c.stride(1), ref<bf16>(args.a),
         ref<bf16>(args.b), ref<bf16>(args.bias), shape);
}

// dW: a wave holds 16 rows (of dy) by kTiles * 16 columns (of x) and goes through all tokens.
template <typename S>
RLK_KERNEL(S::kWave* kWaves)
gemm_backward_weight_any_kernel(Ref<float> dw, Ref<float> chain, Ref<const bf16> dy,
                                Ref<const bf16> x, std::int64_t n, std::int64_t k, TokenRuns runs) {
  constexpr int kTiles = 2;
  const std::int64_t n0 = block_x() * 16;
  const std::int64_t k0 = (block_y() * kWaves + thread() / S::kWave) * 16 * kTiles;
  float acc[kTiles][S::kSums] = {};
  // Calls visit(row, column, sum) for the thread's sums.
  const auto for_each_sum = [&](const auto& visit) {
    RLK_UNROLL
    for (int tile = 0; tile < kTiles; ++tile) {
      RLK_UNROLL
      for (int i = 0; i < S::kSums; ++i) {
        const std::int64_t row = n0 + S::line(i / 4);
        const std::int64_t column = k0 + tile * 16 + S::place(i % 4);
        if (row < n && column < k) visit(row, column, acc[tile][i]);
      }
    }
  };
  for_each_sum(
      [&](std::int64_t row, std::int64_t column, float& sum) { sum = chain(row, column); });
  runs.for_each<16>(
      [&](std::int64_t first, std::int64_t stop, std::int64_t end) {
        for (std::int64_t t = first; t < stop; t += 16) {
          const auto load_columns = [&](const Ref<const bf16>& from, std::int64_t first_column,
                                        std::int64_t size, bf16 padding) {
            return S::operand([&](int h, int j) {
              const std::int64_t column = first_column + S::line(h);
              if (t + S::place(j) >= end) return padding;
              return column < size ? from(t + S::place(j), column) : bf16{};
            });
          };
          const typename S::Operand rows = load_columns(dy, n0, n, bf16{});
          RLK_UNROLL
          for (int tile = 0; tile < kTiles; ++tile) {
            S::multiply(rows, load_columns(x, k0 + tile * 16, k, S::padding(end - t)), acc[tile]);
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

template <typename S>
void gemm_backward_weight(Exec& exec, const GemmBackwardWeightArgs& args,
                          const TokenWindow& window) {
  const std::int64_t n = args.dw.shape(0);
  const std::int64_t k = args.dw.shape(1);
  launch(exec, {ceil_div(n, 16), ceil_div(k, 32 * kWaves)}, S::kWave * kWaves, 0,
         gemm_backward_weight_any_kernel<S>, ref<float>(args.dw), ref<float>(args.chain),
         ref<bf16>(args.dy), ref<bf16>(args.x), n, k, TokenRuns(args, window));
}

}  // namespace rlk::gpu::any_shape
