// Few rows: the weights take the 64-row side of wgmma, so that nothing is wasted on rows that are
// not there. A block holds up to 64 columns of the result and one or several leaves, one after the
// other; the blocks of all leaves are a cluster, which adds its sums in the tree's order through
// shared memory.
//
// Bound by reading the weights once. Packed weights do not depend on the kernel before, so their
// copies start while that one ends.
#include "rlk/kernels/gpu/elements.h"
#include "rlk/kernels/gpu/sm90/instructions.h"
#include "rlk/kernels/gpu/sm90/launch.h"
#include "rlk/kernels/gpu/sm90/pieces.h"
#include "rlk/kernels/gpu/sm90/store_tile.h"
#include "rlk/kernels/gpu/sm90/tensor_map.h"

namespace rlk::gpu::sm90 {
namespace {

constexpr int kMaxColumns = 64;
constexpr int kMaxBlockLeaves = 4;
constexpr int kSumStride = kMaxColumns + 4;  // of rows of sums: no bank is met twice
constexpr int kThreads = 160;  // a warpgroup that multiplies, and a warp that feeds the copy engine

struct Plan {
  int columns;  // of a block: rows of the weight
  int leaves;   // of a block, a power of two
  int stages;
  bool packs;  // four neighbours of a row of c can be stored at once
};

// Walks through the steps of neighbouring leaves.
class Steps {
 public:
  RLK_DEVICE Steps(const Product& p, int leaf) : p_(p), leaf_(leaf) {}
  RLK_DEVICE int next() {
    while (k_ >= end_) {
      const Product::Piece piece = p_.pieces[leaf_][piece_];
      k_ = piece.begin;
      end_ = piece.end;
      if (++piece_ == 3) {
        piece_ = 0;
        ++leaf_;
      }
    }
    const int k = k_;
    k_ += kStep;
    return k;
  }

 private:
  const Product& p_;
  int leaf_, piece_ = 0;
  int k_ = 0, end_ = 0;
};

// The sums of a cluster of kBlocks blocks, each at the same place of shared memory: every block
// adds and stores its part of the rows. All loads come before the first sum, and a thread has the
// same four columns of every row, as few instructions are done at a time.
template <int kRows, int kBlocks>
RLK_DEVICE void store_sums(const Product& p, const Plan& plan, int n0, const float* sums) {
  const int fours = plan.columns / 4;
  const int rows = kThreads / fours;  // at a time
  const int column = thread() % fours * 4;
  const int n = n0 + column;
  float bias[4];
  RLK_UNROLL
  for (int i = 0; i < 4; ++i) {
    bias[i] =
        p.bias != nullptr && n + i < p.n ? load(static_cast<const bf16*>(p.bias)[n + i]) : 0.0f;
  }
  int rank = 0;
  if constexpr (kBlocks > 1) {
    rank = cluster_rank();
    cluster_barrier();
  } else {
    barrier();
  }
  const int first = thread() < rows * fours ? thread() / fours * kBlocks + rank : p.m;
  constexpr int kMine = ceil_div(kRows, kThreads / (kMaxColumns / 4) * kBlocks);
  float4 x[kMine][kBlocks];
  RLK_UNROLL
  for (int j = 0; j < kMine; ++j) {
    const int m = first + j * rows * kBlocks;
    if (m >= p.m) continue;
    const float* const at = sums + m * kSumStride + column;
    if constexpr (kBlocks == 1) {
      x[j][0] = *reinterpret_cast<const float4*>(at);
    } else {
      RLK_UNROLL
      for (int r = 0; r < kBlocks; ++r) x[j][r] = cluster_load_four(shared_address(at), r);
    }
  }
  if constexpr (kBlocks > 1) cluster_arrive();
  const auto store_all = [&](auto* c) {
    RLK_UNROLL
    for (int j = 0; j < kMine; ++j) {
      const int m = first + j * rows * kBlocks;
      if (m >= p.m) continue;
      RLK_UNROLL
      for (int width = 1; width < kBlocks; width *= 2) {  // the neighbour tree
        RLK_UNROLL
        for (int r = 0; r < kBlocks; r += 2 * width) {
          float4& a = x[j][r];
          const float4 b = x[j][r + width];
          a = make_float4(a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w);
        }
      }
      const float4 sum = x[j][0];
      const float y[4] = {(sum.x + 0.0f) + bias[0], (sum.y + 0.0f) + bias[1],
                          (sum.z + 0.0f) + bias[2], (sum.w + 0.0f) + bias[3]};
      store_pack<4>(c + m * p.c_stride, 1, n, p.n, plan.packs, y);
    }
  };
  p.c_is_f32 ? store_all(static_cast<float*>(p.c)) : store_all(static_cast<bf16*>(p.c));
  if constexpr (kBlocks > 1) cluster_wait();  // until everybody has read
}

template <int kRows, bool kWhole>
__global__ void __launch_bounds__(kThreads)
    gemm_few_rows_kernel(const __grid_constant__ CUtensorMap map_a,
                         const __grid_constant__ CUtensorMap map_b, const Product p,
                         const Plan plan) {
  constexpr int kStageA = kRows * kStep * 2;
  const int stage_b = plan.columns * kStep * 2;
  RLK_DYNAMIC_SHARED(shared);
  const std::uint32_t base = swizzle_base(shared);
  const std::uint32_t stages_a = base;
  const std::uint32_t stages_b = base + plan.stages * kStageA;
  // wgmma reads 64 columns; what lies behind the block's makes sums that nobody stores.
  const std::uint32_t full = stages_b + (plan.stages - 1) * stage_b + kMaxColumns * kStep * 2;
  const std::uint32_t empty = full + 8 * plan.stages;
  const int n0 = static_cast<int>(block_x()) * plan.columns;
  const int first_leaf = static_cast<int>(block_y()) * plan.leaves;
  if (thread() == 0) {
    for (int i = 0; i < plan.stages; ++i) {
      mbarrier_init(full + 8 * i, 1);
      mbarrier_init(empty + 8 * i, 1);
    }
    mbarrier_init_fence();
  }
  barrier();

  float acc[kRows / 2];
  // The stage in use, and how often all were.
  int stage = 0, turn = 0;
  const auto next_stage = [&] {
    if (++stage == plan.stages) {
      stage = 0;
      ++turn;
    }
  };
  if (warpgroup_index() == 1) {
    if (thread() == 128) {
      int steps = 0;
      for (int i = 0; i < plan.leaves; ++i) steps += p.steps[first_leaf + i];
      const auto load_b = [&](int to, int k) {
        mbarrier_expect(full + 8 * to, kStageA + stage_b);
        tma_load(stages_b + to * stage_b, &map_b, full + 8 * to, k, n0);
      };
      const auto load_a = [&](int to, int k) {
        tma_load(stages_a + to * kStageA, &map_a, full + 8 * to, k, 0);
      };
      if (!p.b_is_weight) wait_for_previous_kernel();
      const int ahead = steps < plan.stages ? steps : plan.stages;
      Steps of_a(p, first_leaf), of_b(p, first_leaf);
      for (int i = 0; i < ahead; ++i) load_b(i, of_b.next());
      wait_for_previous_kernel();
      allow_next_kernel();
      for (int i = 0; i < ahead; ++i) load_a(i, of_a.next());
      for (int i = ahead; i < steps; ++i) {
        mbarrier_wait(empty + 8 * stage, turn & 1);
        const int k = of_b.next();
        load_b(stage, k);
        load_a(stage, k);
        next_stage();
      }
    }
  } else {
    const std::uint32_t first_a = operand_word(stages_a), first_b = operand_word(stages_b);
    const auto multiply = [&](int groups) {
      mbarrier_wait(full + 8 * stage, turn & 1);
      const std::uint32_t a = first_a + stage * (kStageA / 16);
      const std::uint32_t b = first_b + stage * (stage_b / 16);
      wgmma_fence();
      if constexpr (kWhole) {
        RLK_UNROLL
        for (int i = 0; i < kStep / 16; ++i) {
          Wgmma<kRows, false>::run(acc, k_major_operand(b + 2 * i), k_major_operand(a + 2 * i));
        }
      } else {
        for (int i = 0; i < groups; ++i) {
          Wgmma<kRows, false>::run(acc, k_major_operand(b + 2 * i), k_major_operand(a + 2 * i));
        }
      }
      wgmma_commit();
      next_stage();
    };
    const auto release = [&](int of_stage) {
      if (thread() == 0) mbarrier_arrive(empty + 8 * of_stage);
    };
    const auto chain = [&](int leaf) {
      RLK_UNROLL
      for (int i = 0; i < kRows / 2; ++i) acc[i] = 0.0f;
      if constexpr (kWhole) {
        const int steps = p.steps[leaf];
        int before = stage;
        multiply(kStep / 16);
        for (int i = 1; i < steps; ++i) {
          const int now = stage;
          multiply(kStep / 16);
          wgmma_wait<1>();
          release(before);
          before = now;
        }
        wgmma_wait<0>();
        release(before);
      } else {
        for_each_step(p, leaf, [&](int, int groups) {
          const int now = stage;
          multiply(groups);
          wgmma_wait<0>();
          release(now);
        });
      }
    };
    // The neighbour tree of the block's leaves: a sum waits for each bit of a leaf's number.
    static_assert(kMaxBlockLeaves == 4);
    float pair[kRows / 2], four[kRows / 2];
    const auto add = [&](const float(&x)[kRows / 2]) {
      RLK_UNROLL
      for (int i = 0; i < kRows / 2; ++i) acc[i] = x[i] + acc[i];
    };
    const auto keep = [&](float(&x)[kRows / 2]) {
      RLK_UNROLL
      for (int i = 0; i < kRows / 2; ++i) x[i] = acc[i];
    };
    for (int leaf = 0;;) {
      chain(first_leaf + leaf);
      if (leaf & 1) add(pair);
      if (leaf == 3) add(four);
      if (++leaf == plan.leaves) break;
      leaf & 1 ? keep(pair) : keep(four);
    }
  }

  // Through shared memory, so that neighbouring threads write neighbouring columns. The stages are
  // free: every copy has been waited for.
  wait_for_previous_kernel();
  barrier();
  float* const sums = reinterpret_cast<float*>(shared + (base - shared_address(shared)));
  if (thread() < 128) {
    const int lane = thread() % 32;
    float* const mine = sums + lane % 4 * 2 * kSumStride + thread() / 32 * 16 + lane / 4;
    RLK_UNROLL
    for (int i = 0; i < kRows / 2; ++i) {
      mine[(i / 4 * 8 + i % 2) * kSumStride + i / 2 % 2 * 8] = acc[i];
    }
  }
  switch (p.leaves / plan.leaves) {
    case 1: return store_sums<kRows, 1>(p, plan, n0, sums);
    case 2: return store_sums<kRows, 2>(p, plan, n0, sums);
    case 4: return store_sums<kRows, 4>(p, plan, n0, sums);
    default: return store_sums<kRows, 8>(p, plan, n0, sums);
  }
}

// The most columns and leaves a block with which the last round of blocks leaves the smallest part
// of all rounds idle: a is then read, and sums of leaves meet, least often.
Plan plan_of(const Product& p) {
  Plan plan{};
  double best = 0.0;
  for (const int columns : {64, 48, 32, 16}) {
    for (int leaves = p.leaves < kMaxBlockLeaves ? p.leaves : kMaxBlockLeaves; leaves > 0;
         leaves /= 2) {
      const int blocks = ceil_div(p.n, columns) * (p.leaves / leaves);
      const double busy = 1.0 * blocks / (ceil_div(blocks, num_processors()) * num_processors());
      if (busy <= best) continue;
      best = busy;
      plan.columns = columns;
      plan.leaves = leaves;
    }
  }
  return plan;
}

template <int kRows, bool kWhole>
void run(Exec& exec, const GemmArgs& args, const Product& p) {
  Plan plan = plan_of(p);
  plan.packs = gpu::packs<4>(args.c);
  const Grid grid{ceil_div(p.n, plan.columns), p.leaves / plan.leaves};
  // Measured: two thirds of a processor's shared memory for one block, a half or a third where more
  // share it; where more with leaves do, as much as leaves room for one of the kernel that follows.
  const int per_processor = ceil_div(static_cast<int>(grid.x * grid.y), num_processors());
  constexpr int kAll = kMaxSharedBytes - 4096;
  const int room = per_processor < 2   ? kAll / 3 * 2
                   : p.leaves > 1      ? kAll / (per_processor + 1)
                   : per_processor < 3 ? kAll / 2
                                       : kAll / 3;
  const int stage = (kRows + plan.columns) * kStep * 2 + 16;
  const int other = 1024 + (kMaxColumns - plan.columns) * kStep * 2;
  int steps = 2;
  for (int leaf = 0; leaf < p.leaves; ++leaf) {
    const int n = p.steps[leaf] * plan.leaves;
    steps = steps < n ? n : steps;
  }
  plan.stages = (room - other) / stage;
  plan.stages = plan.stages < 2 ? 2 : plan.stages > steps ? steps : plan.stages;
  int bytes = plan.stages * stage + other;
  constexpr int kSums = kRows * kSumStride * 4 + 1024;
  bytes = bytes < kSums ? kSums : bytes;
  const CUtensorMap a = tensor_map(args.a.data, p.k, p.m, args.a.stride(0), kRows);
  const CUtensorMap b = tensor_map(args.b.data, p.k, p.n, args.b.stride(0), plan.columns);
  launch_cluster(exec, grid, kThreads, bytes, {static_cast<int>(grid.y), true},
                 gemm_few_rows_kernel<kRows, kWhole>, a, b, p, plan);
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
