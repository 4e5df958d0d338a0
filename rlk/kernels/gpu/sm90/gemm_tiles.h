// Tiles of 128 rows by kN columns on the matrix units: a ring of stages in shared memory, filled by
// the copy engine on behalf of one warpgroup and read by two that multiply, 64 rows each.
//
//   stage   { a: 128 rows of 64 k | b: kN columns of 64 k }, 128-byte swizzle
//   sums    64 x kN a warpgroup, in registers, where wgmma leaves them
//
// A tile walks through k in rising order, so its shape, the order of tiles and the number of stages
// are a plan. What bounds it: docs/performance/notes.md.
#pragma once

#include "rlk/kernels/gpu/elements.h"
#include "rlk/kernels/gpu/sm90/gemm.h"
#include "rlk/kernels/gpu/sm90/instructions.h"
#include "rlk/kernels/gpu/sm90/launch.h"
#include "rlk/kernels/gpu/tile_grid.h"

namespace rlk::gpu::sm90 {

inline constexpr int kTileRows = 128;
inline constexpr int kTileThreads = 384;
inline constexpr int kTileConsumers = 256;

struct Tiles : TileGrid {
  RLK_HD int count() const { return rows * columns; }
  RLK_DEVICE void at(int i, int* row, int* column) const {
    const Place where = place<16>(i);
    *row = where.row;
    *column = where.column;
  }
};

inline Tiles tiles_of(std::int64_t m, std::int64_t n, int columns) {
  return {static_cast<int>(ceil_div(m, kTileRows)), static_cast<int>(ceil_div(n, columns))};
}

inline int persistent_blocks(const Tiles& tiles) {
  return tiles.count() < num_processors() ? tiles.count() : num_processors();
}

// kExtra: bytes of shared memory behind the stages. kIMajorA, kIMajorB: see Wgmma.
template <int kN, int kExtra = 0, bool kIMajorB = false, bool kIMajorA = false>
class Ring {
 public:
  static constexpr int kStageA = kTileRows * kStep * 2;
  static constexpr int kStageB = kN * kStep * 2;
  static constexpr int kStages = (kMaxSharedBytes - 2048 - kExtra) / (kStageA + kStageB);
  static constexpr int kBytes = kStages * (kStageA + kStageB) + kExtra + 2048;
  using Sums = float[kN / 2];

  RLK_DEVICE explicit Ring(const void* shared) {
    a_ = swizzle_base(shared);
    b_ = a_ + kStages * kStageA;
    extra_ = b_ + kStages * kStageB;
    full_ = extra_ + kExtra;
    empty_ = full_ + 8 * kStages;
  }

  // By one thread; a barrier must follow.
  RLK_DEVICE void init() const {
    for (int i = 0; i < kStages; ++i) {
      mbarrier_init(full_ + 8 * i, 1);
      mbarrier_init(empty_ + 8 * i, kTileConsumers / 128);
    }
    mbarrier_init_fence();
  }

  RLK_DEVICE std::uint32_t extra() const { return extra_; }
  RLK_DEVICE int stage() const { return stage_; }
  RLK_DEVICE void next() {
    if (++stage_ == kStages) {
      stage_ = 0;
      parity_ ^= 1;
    }
  }

  // ---- the thread that feeds ----

  RLK_DEVICE void wait_empty() const { mbarrier_wait(empty_ + 8 * stage_, parity_ ^ 1); }
  // Rows from m0 on, columns from n0 on, values of k from k on; then the next stage.
  RLK_DEVICE void load(const CUtensorMap* map_a, const CUtensorMap* map_b, int m0, int n0, int k) {
    const std::uint32_t bar = full_ + 8 * stage_;
    const std::uint32_t a = a_ + stage_ * kStageA;
    const std::uint32_t b = b_ + stage_ * kStageB;
    mbarrier_expect(bar, kStageA + kStageB);
    if constexpr (kIMajorA) {
      for (int m = 0; m < kTileRows; m += 64) {
        tma_load(a + m * kStep * 2, map_a, bar, m0 + m, k);
      }
    } else {
      tma_load(a, map_a, bar, k, m0);
    }
    if constexpr (kIMajorB) {
      for (int n = 0; n < kN; n += 64) tma_load(b + n * kStep * 2, map_b, bar, n0 + n, k);
    } else {
      tma_load(b, map_b, bar, k, n0);
    }
    next();
  }
  // A stage without numbers.
  RLK_DEVICE void skip() {
    mbarrier_arrive(full_ + 8 * stage_);
    next();
  }

  // ---- the two warpgroups that multiply: consumer 0 and 1 ----

  RLK_DEVICE void wait_full() const { mbarrier_wait(full_ + 8 * stage_, parity_); }
  RLK_DEVICE void release(int stage) const {
    if (thread() % 128 == 0) mbarrier_arrive(empty_ + 8 * stage);
  }
  // The stage, which is full, added to the sums; asynchronous. Then the next stage. kStarts: the
  // sums begin here, at +0.
  template <bool kStarts = false>
  RLK_DEVICE void multiply(Sums& d, int consumer) {
    const std::uint32_t a = a_ + stage_ * kStageA + consumer * 64 * kStep * 2;
    const std::uint32_t b = b_ + stage_ * kStageB;
    wgmma_fence();
    group<kStarts, 0>(d, a, b);
    group<false, 1>(d, a, b);
    group<false, 2>(d, a, b);
    group<false, 3>(d, a, b);
    wgmma_commit();
    next();
  }
  // The first `groups` groups of mac of the stage alone.
  RLK_DEVICE void multiply_groups(Sums& d, int consumer, int groups) {
    static_assert(!kIMajorA);
    const std::uint32_t a = a_ + stage_ * kStageA + consumer * 64 * kStep * 2;
    const std::uint32_t b = b_ + stage_ * kStageB;
    wgmma_fence();
    for (int i = 0; i < groups; ++i) {
      Wgmma<kN, kIMajorB>::run(
          d, k_major(a + 32 * i),
          kIMajorB ? i_major(b + 2048 * i, 64 * kStep * 2) : k_major(b + 32 * i));
    }
    wgmma_commit();
    next();
  }
  // The chain of `steps` > 0 stages; nothing is left running.
  RLK_DEVICE void chain(Sums& d, int consumer, int steps) {
    int before = stage_;
    wait_full();
    multiply<true>(d, consumer);
    for (int i = 1; i < steps; ++i) {
      const int now = stage_;
      wait_full();
      multiply(d, consumer);
      wgmma_wait<1>();
      release(before);
      before = now;
    }
    wgmma_wait<0>();
    release(before);
  }

  // Rows (values of k) from `first` on of the current stage become +0, as far as this warpgroup
  // reads them. Both operands lie i-major.
  RLK_DEVICE void clear(int first, int consumer) const {
    static_assert(kIMajorA && kIMajorB);
    const std::uint32_t a = a_ + stage_ * kStageA + consumer * 64 * kStep * 2;
    const std::uint32_t b = b_ + stage_ * kStageB;
    for (int i = first * 8 + thread() % 128; i < kStep * 8; i += 128) {
      store_zeros(a + i * 16);
      for (int n = 0; n < kN; n += 64) store_zeros(b + n * kStep * 2 + i * 16);
    }
    copy_fence();
    named_barrier_wait(1 + consumer, 128);
  }

 private:
  // Values 16 i .. 16 i + 15 of k.
  template <bool kStarts, int i>
  RLK_DEVICE static void group(Sums& d, std::uint32_t a, std::uint32_t b) {
    Wgmma<kN, kIMajorB, kIMajorA>::template run<kStarts>(
        d, kIMajorA ? i_major(a + 2048 * i, 64 * kStep * 2) : k_major(a + 32 * i),
        kIMajorB ? i_major(b + 2048 * i, 64 * kStep * 2) : k_major(b + 32 * i));
  }

  std::uint32_t a_, b_, extra_, full_, empty_;
  int stage_ = 0;
  int parity_ = 0;
};

// c = a b^T as one chain of `steps` stages; epilogue(m0, n0, sums) takes the 64 x kN
// sums of a warpgroup from row m0 and column n0 on.
template <int kN, bool kIMajorB, typename Epilogue>
__global__ void __launch_bounds__(kTileThreads, 1)
    chain_tiles_kernel(const __grid_constant__ CUtensorMap map_a,
                       const __grid_constant__ CUtensorMap map_b, const int steps,
                       const Tiles tiles, const Epilogue epilogue) {
  RLK_DYNAMIC_SHARED(shared);
  Ring<kN, 0, kIMajorB> ring(shared);
  if (thread() == 0) ring.init();
  barrier();
  allow_next_kernel();
  const int warpgroup = warpgroup_index();
  if (warpgroup == 0) {
    fewer_registers<40>();
    if (thread() != 0) return;
    wait_for_previous_kernel();
    for (int t = static_cast<int>(block_x()); t < tiles.count(); t += gridDim.x) {
      int row, column;
      tiles.at(t, &row, &column);
      for (int i = 0; i < steps; ++i) {
        ring.wait_empty();
        ring.load(&map_a, &map_b, row * kTileRows, column * kN, i * kStep);
      }
    }
    return;
  }
  more_registers<232>();
  wait_for_previous_kernel();
  const int consumer = warpgroup - 1;
  for (int t = static_cast<int>(block_x()); t < tiles.count(); t += gridDim.x) {
    int row, column;
    tiles.at(t, &row, &column);
    typename Ring<kN, 0, kIMajorB>::Sums acc;
    ring.chain(acc, consumer, steps);
    epilogue(row * kTileRows + consumer * 64, column * kN, acc);
  }
}

template <int kN, bool kIMajorB, typename Epilogue>
void launch_chain_tiles(Exec& exec, const CUtensorMap& a, const CUtensorMap& b, std::int64_t m,
                        std::int64_t n, std::int64_t k, const Epilogue& epilogue) {
  const Tiles tiles = tiles_of(m, n, kN);
  launch_cluster(exec, {persistent_blocks(tiles)}, kTileThreads, Ring<kN, 0, kIMajorB>::kBytes,
                 {1, true}, chain_tiles_kernel<kN, kIMajorB, Epilogue>, a, b,
                 static_cast<int>(ceil_div(k, kStep)), tiles, epilogue);
}

// Whether tiles of 256 columns are the faster ones: each is, if the tiles fill the processors as
// well as those of 128.
inline bool prefers_wide_tiles(std::int64_t rows, std::int64_t columns) {
  const auto rounds = [&](std::int64_t width) {
    return ceil_div(ceil_div(rows, kTileRows) * ceil_div(columns, width), num_processors());
  };
  return 10 * rounds(256) <= 6 * rounds(128);
}

}  // namespace rlk::gpu::sm90
