#include "rlk/kernels/gemm.h"

#include "rlk/kernels/gpu/elements.h"
#include "rlk/kernels/gpu/gemm_shape.h"
#include "rlk/kernels/gpu/table.h"
#include "rlk/kernels/gpu/tile.h"
#include "rlk/kernels/gpu/token_runs.h"
#include "rlk/kernels/gpu/token_sum.h"
#include "rlk/kernels/gpu/trees.h"

namespace rlk::gpu {
namespace {

// A matrix [M, N] of bf16 or f32 numbers.
struct Output {
  Ref<bf16> bf16_out;
  Ref<float> f32_out;

  RLK_DEVICE void write(std::int64_t m, std::int64_t n, float x) const {
    if (f32_out) {
      store(f32_out(m, n), x);
    } else {
      store(bf16_out(m, n), x);
    }
  }
};

// Each sum is one chain (kLevels = 0), or a tree of up to 2^kLevels leaves.
template <typename T, typename Tile, int kLevels>
RLK_KERNEL(Tile::kThreads)
gemm_kernel(Output c, Operand<T> a, Operand<T> b, Ref<const T> bias, GemmShape shape) {
  RLK_SHARED(float, shared, Tile::kSharedFloats);
  constexpr int kOwn = Tile::kRows * Tile::kColumns;
  const std::int64_t m0 = block_x() * Tile::kM;
  const std::int64_t n0 = block_y() * Tile::kN;
  float acc[Tile::kRows][Tile::kColumns] = {};
  if constexpr (kLevels == 0) {
    Tile::chain(a, m0, b, n0, 0, shape.k, shared, acc);
    RLK_UNROLL
    for (int r = 0; r < Tile::kRows; ++r) {
      RLK_UNROLL
      for (int j = 0; j < Tile::kColumns; ++j) acc[r][j] = acc[r][j] + 0.0f;
    }
  } else {
    TreeStack<kOwn, kLevels> tree;
    for (int leaf = 0; leaf < shape.leaves; ++leaf) {
      std::int64_t start = 0;
      for (const std::int64_t size : shape.segments) {
        Tile::chain(a, m0, b, n0, start + numerics::leaf_bound(size, shape.leaves, leaf),
                    start + numerics::leaf_bound(size, shape.leaves, leaf + 1), shared, acc);
        start += size;
      }
      float sums[kOwn];
      RLK_UNROLL
      for (int i = 0; i < kOwn; ++i) {
        sums[i] = acc[i / Tile::kColumns][i % Tile::kColumns];
        acc[i / Tile::kColumns][i % Tile::kColumns] = 0.0f;
      }
      tree.push(sums);
    }
    RLK_UNROLL
    for (int i = 0; i < kOwn; ++i) {
      acc[i / Tile::kColumns][i % Tile::kColumns] = tree.result(i);
    }
  }
  RLK_UNROLL
  for (int r = 0; r < Tile::kRows; ++r) {
    const std::int64_t m = m0 + Tile::row(r);
    RLK_UNROLL
    for (int j = 0; j < Tile::kColumns; ++j) {
      const std::int64_t n = n0 + Tile::column(j);
      if (m >= shape.m || n >= shape.n) continue;
      float sum = acc[r][j];
      if (bias) sum = sum + load(bias(n));
      c.write(m, n, sum);
    }
  }
}

// dw and chain of one tile, through all groups.
template <typename T>
RLK_KERNEL(LargeTile::kThreads)
gemm_backward_weight_kernel(Ref<float> dw, Ref<float> chain, Operand<T> dy, Operand<T> x,
                            TokenRuns runs) {
  using Tile = LargeTile;
  RLK_SHARED(float, shared, Tile::kSharedFloats);
  const std::int64_t n0 = block_x() * Tile::kM;
  const std::int64_t k0 = block_y() * Tile::kN;
  // Calls visit(n, k, acc) for the thread's sums.
  float acc[Tile::kRows][Tile::kColumns];
  const auto for_each = [&](const auto& visit) {
    RLK_UNROLL
    for (int r = 0; r < Tile::kRows; ++r) {
      const std::int64_t n = n0 + Tile::row(r);
      RLK_UNROLL
      for (int j = 0; j < Tile::kColumns; ++j) {
        const std::int64_t k = k0 + Tile::column(j);
        if (n < dy.size && k < x.size) visit(n, k, acc[r][j]);
      }
    }
  };
  RLK_UNROLL
  for (int r = 0; r < Tile::kRows; ++r) {
    RLK_UNROLL
    for (int j = 0; j < Tile::kColumns; ++j) acc[r][j] = 0.0f;
  }
  for_each([&](std::int64_t n, std::int64_t k, float& sum) { sum = chain(n, k); });
  runs.for_each<1>([&](std::int64_t first, std::int64_t stop,
                       std::int64_t) { Tile::chain(dy, n0, x, k0, first, stop, shared, acc); },
                   [&] {
                     for_each([&](std::int64_t n, std::int64_t k, float& sum) {
                       dw(n, k) = dw(n, k) + sum;
                       sum = 0.0f;
                     });
                   });
  for_each([&](std::int64_t n, std::int64_t k, float& sum) { chain(n, k) = sum; });
}

template <typename T>
struct BiasGradients {
  Ref<float> dbias;
  Ref<const T> dy;

  using Item = float;
  struct Column {
    Ref<const T> dy;
    RLK_DEVICE float load(std::int64_t t) const { return gpu::load(dy(t)); }
  };
  RLK_DEVICE float* total(std::int64_t column) const { return &dbias(column); }
  RLK_DEVICE Column at(std::int64_t column) const { return {{&dy(0, column), {dy.stride[0]}}}; }
  RLK_DEVICE static float add(float item, float acc) { return acc + item; }
};

template <typename T, typename Tile, int kLevels>
void run_gemm(Exec& exec, const GemmArgs& args, const GemmShape& shape) {
  Output c;
  if (shape.c_is_f32) {
    c.f32_out = ref<float>(args.c);
  } else {
    c.bf16_out = ref<bf16>(args.c);
  }
  launch(exec, {ceil_div(shape.m, Tile::kM), ceil_div(shape.n, Tile::kN)}, Tile::kThreads, 0,
         gemm_kernel<T, Tile, kLevels>, c, Operand<T>::make(args.a), Operand<T>::make(args.b),
         ref<T>(args.bias), shape);
}

template <typename T, typename Tile>
void run_gemm(Exec& exec, const GemmArgs& args, const GemmShape& shape) {
  if (!args.leaf_tree) {
    run_gemm<T, Tile, 0>(exec, args, shape);
  } else if (shape.leaves <= 8) {
    run_gemm<T, Tile, 3>(exec, args, shape);
  } else {
    run_gemm<T, Tile, kMaxTreeLevels>(exec, args, shape);
  }
}

}  // namespace

// The kernels read the weight itself: nothing is kept.
void pack_weight(Exec&, const PackWeightArgs& args) {
  *args.packed = PackedWeight{nullptr, args.w.shape(0), args.w.shape(1), nullptr, args.w.dtype};
}

void gemm(Exec& exec, const GemmArgs& args) {
  const GemmShape shape = GemmShape::of(exec, args);
  with_storage(args.a.dtype, [&]<typename T>() {
    if (shape.m <= 64) {
      run_gemm<T, SmallTile>(exec, args, shape);
    } else {
      run_gemm<T, LargeTile>(exec, args, shape);
    }
  });
}

void gemm_backward_weight_in_window(Exec& exec, const GemmBackwardWeightArgs& args,
                                    const TokenWindow& window) {
  const std::int64_t n = args.dw.shape(0);
  const std::int64_t k = args.dw.shape(1);
  TokenRuns runs(args, window);
  runs.cu_seqlens = {};  // a mac takes one product: samples do not show
  runs.num_samples = 1;
  with_storage(args.dy.dtype, [&]<typename T>() {
    launch(exec, {ceil_div(n, LargeTile::kM), ceil_div(k, LargeTile::kN)}, LargeTile::kThreads, 0,
           gemm_backward_weight_kernel<T>, ref<float>(args.dw), ref<float>(args.chain),
           Operand<T>::make(args.dy, true), Operand<T>::make(args.x, true), runs);
  });
}

void gemm_backward_weight(Exec& exec, const GemmBackwardWeightArgs& args) {
  const std::int64_t num_tokens = args.dy.shape(0);
  gemm_backward_weight_in_window(exec, args, {0, num_tokens, num_tokens});
}

void bias_backward(Exec& exec, const BiasBackwardArgs& args) {
  with_storage(args.dy.dtype, [&]<typename T>() {
    token_sum(exec, args.cu_seqlens, args.dy.shape(0), args.dbias.shape(0),
              BiasGradients<T>{ref<float>(args.dbias), ref<T>(args.dy)});
  });
}

}  // namespace rlk::gpu
