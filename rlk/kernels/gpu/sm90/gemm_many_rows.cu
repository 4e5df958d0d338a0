// Tiles of 128 rows by kN columns: persistent blocks of one warpgroup that feeds the copy engine
// and two that multiply.
//
//   shared memory   kStages x { a: 128 rows of 64 k | b: kN columns of 64 k }, 128-byte swizzle,
//                   then level 2 of the tree
//   registers       one chain: 64 x kN sums a warpgroup. Leaf tree: chains of two neighbouring
//                   leaves and level 1 of the tree, which takes kN = 128
//
// The tile walks through k in rising order, so its shape, the order of tiles and the number of
// stages are a plan. What bounds it: with kN = 256 shared memory is read and written at about the
// rate the multipliers take (b 64, a 16, copies 48 of 128 bytes a clock); with kN = 128, 160.
#include "rlk/kernels/gpu/sm90/instructions.h"
#include "rlk/kernels/gpu/sm90/launch.h"
#include "rlk/kernels/gpu/sm90/pieces.h"
#include "rlk/kernels/gpu/sm90/store_tile.h"
#include "rlk/kernels/gpu/sm90/tensor_map.h"

namespace rlk::gpu::sm90 {
namespace {

constexpr int kM = 128;
constexpr int kThreads = 384;
constexpr int kConsumers = 256;

template <int kN, bool kTree>
struct Layout {
  static constexpr int kStageA = kM * kStep * 2;
  static constexpr int kStageB = kN * kStep * 2;
  static constexpr int kTreeBytes = kTree ? kM * kN * 4 : 0;
  static constexpr int kStages = (kMaxSharedBytes - 2048 - kTreeBytes) / (kStageA + kStageB);
  static constexpr int kBytes = kStages * (kStageA + kStageB) + kTreeBytes + 2048;
};

struct Tiles {
  int rows, columns;  // of tiles
  RLK_HD int count() const { return rows * columns; }

  // Tiles that run at the same time share operands: columns of 16 tiles, one after the other.
  RLK_DEVICE void at(int i, int* row, int* column) const {
    constexpr int kTall = 16;
    const int band = i / (kTall * columns);
    const int first = band * kTall;
    const int tall = rows - first < kTall ? rows - first : kTall;
    const int in_band = i - first * columns;
    *row = first + in_band % tall;
    *column = in_band / tall;
  }
};

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

template <int kN, bool kTree, bool kWhole, bool kIMajorB>
__global__ void __launch_bounds__(kThreads, 1)
    gemm_many_rows_kernel(const __grid_constant__ CUtensorMap map_a,
                          const __grid_constant__ CUtensorMap map_b, const Product p,
                          const Tiles tiles) {
  using L = Layout<kN, kTree>;
  RLK_DYNAMIC_SHARED(shared);
  const std::uint32_t base = (shared_address(shared) + 1023) & ~1023u;
  const std::uint32_t stages_a = base;
  const std::uint32_t stages_b = base + L::kStages * L::kStageA;
  const std::uint32_t tree = stages_b + L::kStages * L::kStageB;
  const std::uint32_t full = tree + L::kTreeBytes;
  const std::uint32_t empty = full + 8 * L::kStages;
  const int warpgroup = thread() / 128;
  const int num_leaves = kTree ? p.leaves : 1;
  if (thread() == 0) {
    for (int i = 0; i < L::kStages; ++i) {
      mbarrier_init(full + 8 * i, 1);
      mbarrier_init(empty + 8 * i, kConsumers / 128);
    }
    mbarrier_init_fence();
  }
  barrier();

  Turn<L::kStages> turn;
  if (warpgroup == 0) {
    fewer_registers<40>();
    if (thread() == 0) {
      for (int t = static_cast<int>(block_x()); t < tiles.count(); t += gridDim.x) {
        int row, column;
        tiles.at(t, &row, &column);
        for (int leaf = 0; leaf < num_leaves; ++leaf) {
          for_each_step(p, leaf, [&](int k, int) {
            const std::uint32_t bar = full + 8 * turn.stage;
            const std::uint32_t b = stages_b + turn.stage * L::kStageB;
            mbarrier_wait(empty + 8 * turn.stage, turn.parity ^ 1);
            mbarrier_expect(bar, L::kStageA + L::kStageB);
            tma_load(stages_a + turn.stage * L::kStageA, &map_a, bar, k, row * kM);
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
    if constexpr (!kTree) {
      chain(acc, 0, false);
      finish_chain();
    } else {
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
          for (int i = 0; i < kRegisters; ++i) level2[i * kConsumers] = acc[i];
        } else {
          RLK_UNROLL
          for (int i = 0; i < kRegisters; ++i) acc[i] = level2[i * kConsumers] + acc[i];
        }
      }
    }
    store_tile<kN>(p, row * kM + consumer * 64, column * kN, acc);
  }
}

template <int kN, bool kTree, bool kWhole, bool kIMajorB>
void run(Exec& exec, const GemmArgs& args, const Product& p) {
  const Tiles tiles{(p.m + kM - 1) / kM, (p.n + kN - 1) / kN};
  const CUtensorMap a = tensor_map(args.a.data, p.k, p.m, args.a.stride(0), kM);
  const CUtensorMap b = kIMajorB ? tensor_map(args.b.data, p.n, p.k, args.b.stride(1), kStep)
                                 : tensor_map(args.b.data, p.k, p.n, args.b.stride(0), kN);
  const int blocks = tiles.count() < num_processors() ? tiles.count() : num_processors();
  launch_cluster(exec, {blocks}, kThreads, Layout<kN, kTree>::kBytes, {},
                 gemm_many_rows_kernel<kN, kTree, kWhole, kIMajorB>, a, b, p, tiles);
}

template <int kN, bool kTree>
void run(Exec& exec, const GemmArgs& args, const Product& p) {
  if (p.b_is_i_major) {
    p.whole_steps ? run<kN, kTree, true, true>(exec, args, p)
                  : run<kN, kTree, false, true>(exec, args, p);
  } else {
    p.whole_steps ? run<kN, kTree, true, false>(exec, args, p)
                  : run<kN, kTree, false, false>(exec, args, p);
  }
}

}  // namespace

void gemm_many_rows(Exec& exec, const GemmArgs& args, const Product& p) {
  if (p.leaves > 1) return run<128, true>(exec, args, p);
  // A wide tile is the faster one, if its tiles fill the processors as well.
  const auto rounds = [&](int columns) {
    const int tiles = ((p.m + kM - 1) / kM) * ((p.n + columns - 1) / columns);
    return (tiles + num_processors() - 1) / num_processors();
  };
  if (10 * rounds(256) <= 6 * rounds(128)) return run<256, false>(exec, args, p);
  run<128, false>(exec, args, p);
}

}  // namespace rlk::gpu::sm90
