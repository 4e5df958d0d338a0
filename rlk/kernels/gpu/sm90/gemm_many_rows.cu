// Many rows: tiles of 128 rows by 256 or 128 columns (gemm_tiles.h), by persistent blocks.
//
// The leaf tree takes 128 columns: the chains of two neighbouring leaves, so that the second starts
// while the first drains, and level 1 of the tree are in registers, level 2 is in shared memory.
#include "rlk/kernels/gpu/sm90/gemm_tiles.h"
#include "rlk/kernels/gpu/sm90/pieces.h"
#include "rlk/kernels/gpu/sm90/store_tile.h"
#include "rlk/kernels/gpu/sm90/tensor_map.h"

namespace rlk::gpu::sm90 {
namespace {

template <int kN>
struct StoreTile {
  Product p;

  RLK_DEVICE void operator()(int m0, int n0, float (&acc)[kN / 2]) const {
    store_tile<kN>(p, m0, n0, acc);
  }
};

constexpr int kTreeColumns = 128;
constexpr int kTreeBytes = kTileRows * kTreeColumns * 4;
template <bool kIMajorB>
using TreeRing = Ring<kTreeColumns, kTreeBytes, kIMajorB>;

// The stage in use and the parity of its turn.
template <int kStages>
struct Turn {
  int stage = 0;
  int parity = 0;
  RLK_DEVICE void next() {
    if (++stage == kStages) {
      stage = 0;
      parity ^= 1;
    }
  }
};

template <bool kWhole, bool kIMajorB>
__global__ void __launch_bounds__(kTileThreads, 1)
    tree_tiles_kernel(const __grid_constant__ CUtensorMap map_a,
                      const __grid_constant__ CUtensorMap map_b, const Product p,
                      const Tiles tiles) {
  using L = TreeRing<kIMajorB>;
  constexpr int kN = kTreeColumns;
  RLK_DYNAMIC_SHARED(shared);
  const std::uint32_t base = swizzle_base(shared);
  const std::uint32_t stages_a = base;
  const std::uint32_t stages_b = base + L::kStages * L::kStageA;
  const std::uint32_t tree = stages_b + L::kStages * L::kStageB;
  const std::uint32_t full = tree + kTreeBytes;
  const std::uint32_t empty = full + 8 * L::kStages;
  const int warpgroup = warpgroup_index();
  if (thread() == 0) {
    for (int i = 0; i < L::kStages; ++i) {
      mbarrier_init(full + 8 * i, 1);
      mbarrier_init(empty + 8 * i, kTileConsumers / 128);
    }
    mbarrier_init_fence();
  }
  barrier();
  allow_next_kernel();

  Turn<L::kStages> turn;
  if (warpgroup == 0) {
    fewer_registers<40>();
    if (thread() == 0) {
      wait_for_previous_kernel();
      for (int t = static_cast<int>(block_x()); t < tiles.count(); t += gridDim.x) {
        int row, column;
        tiles.at(t, &row, &column);
        for (int leaf = 0; leaf < p.leaves; ++leaf) {
          for_each_step(p, leaf, [&](int k, int) {
            const std::uint32_t bar = full + 8 * turn.stage;
            const std::uint32_t b = stages_b + turn.stage * L::kStageB;
            mbarrier_wait(empty + 8 * turn.stage, turn.parity ^ 1);
            mbarrier_expect(bar, L::kStageA + L::kStageB);
            tma_load(stages_a + turn.stage * L::kStageA, &map_a, bar, k, row * kTileRows);
            if constexpr (kIMajorB) {
              for (int n = 0; n < kN; n += 64) {
                tma_load(b + n * kStep * 2, &map_b, bar, column * kN + n, k);
              }
            } else {
              tma_load(b, &map_b, bar, k, column * kN);
            }
            turn.next();
          });
        }
      }
    }
    return;
  }

  more_registers<232>();
  wait_for_previous_kernel();
  constexpr int kRegisters = kN / 2;
  using Sums = float[kRegisters];
  const int consumer = warpgroup - 1;
  int previous = 0;  // the stage before the current one
  const auto release = [&](int stage) {
    if (thread() % 128 == 0) mbarrier_arrive(empty + 8 * stage);
  };
  const auto multiply = [&](Sums& d, int groups) {
    mbarrier_wait(full + 8 * turn.stage, turn.parity);
    const std::uint32_t a = stages_a + turn.stage * L::kStageA + consumer * 64 * kStep * 2;
    const std::uint32_t b = stages_b + turn.stage * L::kStageB;
    const auto group = [&](int i) {
      Wgmma<kN, kIMajorB>::run(
          d, k_major(a + 32 * i),
          kIMajorB ? i_major(b + 2048 * i, 64 * kStep * 2) : k_major(b + 32 * i));
    };
    wgmma_fence();
    if constexpr (kWhole) {
      RLK_UNROLL
      for (int i = 0; i < kStep / 16; ++i) group(i);
    } else {
      for (int i = 0; i < groups; ++i) group(i);
    }
    wgmma_commit();
    previous = turn.stage;
    turn.next();
  };
  // The chain of one leaf. With whole steps the last one is left running; `running`: so was the
  // last of the chain before.
  const auto chain = [&](Sums& d, int leaf, bool running) {
    RLK_UNROLL
    for (int i = 0; i < kRegisters; ++i) d[i] = 0.0f;
    if constexpr (kWhole) {
      const int steps = p.steps[leaf];
      int before = previous;
      multiply(d, kStep / 16);
      if (running) {
        wgmma_wait<1>();
        release(before);
      }
      for (int i = 1; i < steps; ++i) {
        before = previous;
        multiply(d, kStep / 16);
        wgmma_wait<1>();
        release(before);
      }
    } else {
      for_each_step(p, leaf, [&](int, int groups) {
        multiply(d, groups);
        wgmma_wait<0>();
        release(previous);
      });
    }
  };
  const auto finish_chain = [&] {
    if constexpr (kWhole) {
      wgmma_wait<0>();
      release(previous);
    }
  };

  for (int t = static_cast<int>(block_x()); t < tiles.count(); t += gridDim.x) {
    int row, column;
    tiles.at(t, &row, &column);
    Sums acc;
    {
      // The neighbour tree of 8 leaves, two leaves at a time.
      Sums left, level1;
      float* const level2 =
          reinterpret_cast<float*>(shared + (tree - shared_address(shared))) + thread() - 128;
      for (int leaf = 0; leaf < 8; leaf += 2) {
        chain(left, leaf, false);
        chain(acc, leaf + 1, kWhole);
        finish_chain();
        RLK_UNROLL
        for (int i = 0; i < kRegisters; ++i) acc[i] = left[i] + acc[i];
        if (leaf % 4 == 0) {
          RLK_UNROLL
          for (int i = 0; i < kRegisters; ++i) level1[i] = acc[i];
          continue;
        }
        RLK_UNROLL
        for (int i = 0; i < kRegisters; ++i) acc[i] = level1[i] + acc[i];
        if (leaf == 2) {
          RLK_UNROLL
          for (int i = 0; i < kRegisters; ++i) level2[i * kTileConsumers] = acc[i];
        } else {
          RLK_UNROLL
          for (int i = 0; i < kRegisters; ++i) acc[i] = level2[i * kTileConsumers] + acc[i];
        }
      }
    }
    store_tile<kN>(p, row * kTileRows + consumer * 64, column * kN, acc);
  }
}

CUtensorMap map_of_a(const GemmArgs& args, const Product& p) {
  return tensor_map(args.a.data, p.k, p.m, args.a.stride(0), kTileRows);
}
template <int kN>
CUtensorMap map_of_b(const GemmArgs& args, const Product& p) {
  return p.b_is_i_major ? tensor_map(args.b.data, p.n, p.k, args.b.stride(1), kStep)
                        : tensor_map(args.b.data, p.k, p.n, args.b.stride(0), kN);
}

template <int kN>
void chain_tiles(Exec& exec, const GemmArgs& args, const Product& p) {
  const CUtensorMap a = map_of_a(args, p), b = map_of_b<kN>(args, p);
  p.b_is_i_major ? launch_chain_tiles<kN, true>(exec, a, b, p.m, p.n, p.k, StoreTile<kN>{p})
                 : launch_chain_tiles<kN, false>(exec, a, b, p.m, p.n, p.k, StoreTile<kN>{p});
}

template <bool kIMajorB>
void tree_tiles(Exec& exec, const GemmArgs& args, const Product& p) {
  const Tiles tiles = tiles_of(p.m, p.n, kTreeColumns);
  launch_cluster(
      exec, {persistent_blocks(tiles)}, kTileThreads, TreeRing<kIMajorB>::kBytes, {1, true},
      p.whole_steps ? tree_tiles_kernel<true, kIMajorB> : tree_tiles_kernel<false, kIMajorB>,
      map_of_a(args, p), map_of_b<kTreeColumns>(args, p), p, tiles);
}

}  // namespace

void gemm_many_rows(Exec& exec, const GemmArgs& args, const Product& p) {
  if (p.leaves > 1) {
    return p.b_is_i_major ? tree_tiles<true>(exec, args, p) : tree_tiles<false>(exec, args, p);
  }
  prefers_wide_tiles(p.m, p.n) ? chain_tiles<256>(exec, args, p) : chain_tiles<128>(exec, args, p);
}

}  // namespace rlk::gpu::sm90
