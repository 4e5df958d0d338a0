// Few rows: the weights take the 64-row side of wgmma, so that nothing is wasted on rows that are
// not there. A block holds 64 columns of the result and one leaf; the blocks of all leaves are a
// cluster, which adds its sums in the tree's order through shared memory.
//
// Bound by reading the weights once. Packed weights do not depend on the kernel before, so their
// copies start while that one ends.
#include "rlk/kernels/gpu/elements.h"
#include "rlk/kernels/gpu/sm90/instructions.h"
#include "rlk/kernels/gpu/sm90/launch.h"
#include "rlk/kernels/gpu/sm90/pieces.h"
#include "rlk/kernels/gpu/sm90/store_tile.h"
#include "rlk/kernels/gpu/sm90/tensor_map.h"
#include "rlk/numerics/sums.h"

namespace rlk::gpu::sm90 {
namespace {

constexpr int kColumns = 64;   // of the result: rows of the weight
constexpr int kThreads = 160;  // a warpgroup that multiplies, and a warp that feeds the copy engine
constexpr int kStageB = kColumns * kStep * 2;

template <int kRows, bool kWhole>
__global__ void __launch_bounds__(kThreads)
    gemm_few_rows_kernel(const __grid_constant__ CUtensorMap map_a,
                         const __grid_constant__ CUtensorMap map_b, const Product p,
                         const int num_stages) {
  constexpr int kStageA = kRows * kStep * 2;
  RLK_DYNAMIC_SHARED(shared);
  const std::uint32_t base = swizzle_base(shared);
  const std::uint32_t stages_b = base;
  const std::uint32_t stages_a = base + num_stages * kStageB;
  const std::uint32_t full = stages_a + num_stages * kStageA;
  const std::uint32_t empty = full + 8 * num_stages;
  const int n0 = static_cast<int>(block_x()) * kColumns;
  const int leaf = static_cast<int>(block_y());
  const int m0 = static_cast<int>(block_z()) * kRows;
  if (thread() == 0) {
    for (int i = 0; i < num_stages; ++i) {
      mbarrier_init(full + 8 * i, 1);
      mbarrier_init(empty + 8 * i, 1);
    }
    mbarrier_init_fence();
  }
  barrier();

  float acc[kRows / 2];
  RLK_UNROLL
  for (int i = 0; i < kRows / 2; ++i) acc[i] = 0.0f;
  if (thread() == 128) {
    const auto load_b = [&](int stage, int k) {
      mbarrier_expect(full + 8 * stage, kStageA + kStageB);
      tma_load(stages_b + stage * kStageB, &map_b, full + 8 * stage, k, n0);
    };
    const auto load_a = [&](int stage, int k) {
      tma_load(stages_a + stage * kStageA, &map_a, full + 8 * stage, k, m0);
    };
    int step = 0;
    if (!p.b_is_weight) wait_for_previous_kernel();
    for_each_step(p, leaf, [&](int k, int) {
      if (step < num_stages) load_b(step, k);
      ++step;
    });
    wait_for_previous_kernel();
    allow_next_kernel();
    step = 0;
    for_each_step(p, leaf, [&](int k, int) {
      const int stage = step % num_stages;
      if (step >= num_stages) {
        mbarrier_wait(empty + 8 * stage, (step / num_stages - 1) & 1);
        load_b(stage, k);
      }
      load_a(stage, k);
      ++step;
    });
  } else if (thread() < 128) {
    int step = 0;
    const auto multiply = [&](int groups) {
      const int stage = step % num_stages;
      mbarrier_wait(full + 8 * stage, (step / num_stages) & 1);
      const std::uint32_t b = stages_b + stage * kStageB;
      const std::uint32_t a = stages_a + stage * kStageA;
      wgmma_fence();
      if constexpr (kWhole) {
        RLK_UNROLL
        for (int i = 0; i < kStep / 16; ++i) {
          Wgmma<kRows, false>::run(acc, k_major(b + 32 * i), k_major(a + 32 * i));
        }
      } else {
        for (int i = 0; i < groups; ++i) {
          Wgmma<kRows, false>::run(acc, k_major(b + 32 * i), k_major(a + 32 * i));
        }
      }
      wgmma_commit();
      ++step;
    };
    const auto release = [&](int of_step) {
      if (thread() == 0) mbarrier_arrive(empty + 8 * (of_step % num_stages));
    };
    if constexpr (kWhole) {
      const int steps = p.steps[leaf];
      multiply(kStep / 16);
      for (int i = 1; i < steps; ++i) {
        multiply(kStep / 16);
        wgmma_wait<1>();
        release(i - 1);
      }
      wgmma_wait<0>();
    } else {
      for_each_step(p, leaf, [&](int, int groups) {
        multiply(groups);
        wgmma_wait<0>();
        release(step - 1);
      });
    }
  }

  // Through shared memory, so that neighbouring threads write neighbouring columns. The stages are
  // free: every copy has been waited for.
  constexpr int kStride = kColumns + 4;
  wait_for_previous_kernel();
  barrier();
  float* const sums = reinterpret_cast<float*>(shared + (base - shared_address(shared)));
  if (thread() < 128) {
    const int lane = thread() % 32;
    RLK_UNROLL
    for (int i = 0; i < kRows / 2; ++i) {
      const int m = i / 4 * 8 + lane % 4 * 2 + i % 2;
      const int n = thread() / 32 * 16 + lane / 4 + i / 2 % 2 * 8;
      sums[m * kStride + n] = acc[i];
    }
  }
  const int num_leaves = p.leaves;
  if (num_leaves > 1) {
    cluster_barrier();
  } else {
    barrier();
  }
  const int rank = num_leaves > 1 ? cluster_rank() : 0;
  const int count = (p.m - m0 < kRows ? p.m - m0 : kRows) * kColumns;
  for (int i = rank * kThreads + thread(); i < count; i += num_leaves * kThreads) {
    const int m = i / kColumns;
    const int n = i % kColumns;
    const int at = m * kStride + n;
    float sum = sums[at];
    if (num_leaves > 1) {
      float x[kMaxLeaves];
      RLK_UNROLL
      for (int r = 0; r < kMaxLeaves; ++r) {
        x[r] = r < num_leaves ? cluster_load(base + 4 * at, r) : 0.0f;
      }
      // The neighbour tree; with fewer leaves the rest of it adds +0 to a sum that is not -0.
      sum = numerics::neighbour_tree(x, kMaxLeaves);
    }
    store_one(target(p), m0 + m, n0 + n, with_bias(p, sum, n0 + n));
  }
  if (num_leaves > 1) cluster_barrier();  // until everybody has read
}

template <int kRows, bool kWhole>
void run(Exec& exec, const GemmArgs& args, const Product& p) {
  const Grid grid{ceil_div(p.n, kColumns), p.leaves, ceil_div(p.m, kRows)};
  // Measured: with leaves as much shared memory as leaves room for all blocks of a processor and
  // one of the kernel that follows; without, two thirds, a half or a third of a processor's.
  const int blocks = static_cast<int>(grid.x * grid.y * grid.z);
  const int per_processor = ceil_div(blocks, num_processors());
  constexpr int kAll = kMaxSharedBytes - 4096;
  const int room = p.leaves > 1        ? kAll / (per_processor + 1)
                   : per_processor < 2 ? kAll / 3 * 2
                   : per_processor < 3 ? kAll / 2
                                       : kAll / 3;
  constexpr int kStage = kRows * kStep * 2 + kStageB + 16;
  int steps = 2;
  for (int leaf = 0; leaf < p.leaves; ++leaf) {
    const int n = p.steps[leaf];
    steps = steps < n ? n : steps;
  }
  int stages = (room - 2048) / kStage;
  stages = stages < 2 ? 2 : stages > steps ? steps : stages;
  int bytes = stages * kStage + 1024;
  const int sums = kRows * (kColumns + 4) * 4 + 1024;
  bytes = bytes < sums ? sums : bytes;
  const CUtensorMap a = tensor_map(args.a.data, p.k, p.m, args.a.stride(0), kRows);
  const CUtensorMap b = tensor_map(args.b.data, p.k, p.n, args.b.stride(0), kColumns);
  launch_cluster(exec, grid, kThreads, bytes, {p.leaves, true}, gemm_few_rows_kernel<kRows, kWhole>,
                 a, b, p, stages);
}

template <int kRows>
void run(Exec& exec, const GemmArgs& args, const Product& p) {
  p.whole_steps ? run<kRows, true>(exec, args, p) : run<kRows, false>(exec, args, p);
}

}  // namespace

void gemm_few_rows(Exec& exec, const GemmArgs& args, const Product& p) {
  if (p.m <= 8) return run<8>(exec, args, p);
  if (p.m <= 16) return run<16>(exec, args, p);
  if (p.m <= 32) return run<32>(exec, args, p);
  run<64>(exec, args, p);
}

}  // namespace rlk::gpu::sm90
