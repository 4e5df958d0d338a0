// Tiles of 128 rows by kN columns on the matrix units: a ring of stages in shared memory, filled by
// the copy engine on behalf of one warpgroup and read by two that multiply, 64 rows each.
//
//   stage   { a: 128 rows of 64 k | b: kN columns of 64 k }, 128-byte swizzle; by groups of mac:
//           each four times 16 k
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

// A matrix whose columns are rows or columns of a tile, and whose rows are values of k, 16 at a
// time.
struct ColumnMaps {
  CUtensorMap wide;  // blocks of 64 columns, as many as a tile has
  CUtensorMap one;   // one block; its columns may end within
  int columns;

  template <int kWidth>
  RLK_DEVICE void load(std::uint32_t to, std::uint32_t bar, int column, int k) const {
    if (columns % 64 == 0 || column + kWidth <= columns) {
      return tma_load(to, &wide, bar, 0, k, column / 64);
    }
    for (int i = 0; i < kWidth; i += 64) tma_load(to + i * 32, &one, bar, column + i, k);
  }
};

// kExtra: bytes of shared memory behind the stages. kIMajorB: see Wgmma. kGroups: both operands are
// i-major and loaded by groups of mac.
template <int kN, int kExtra = 0, bool kIMajorB = false, bool kGroups = false>
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
    words_ = empty_ + 8 * kStages;
  }

  // By one thread; a barrier must follow.
  RLK_DEVICE void init() const {
    for (int i = 0; i < kStages; ++i) {
      mbarrier_init(full_ + 8 * i, kGroups ? kStep / 16 : 1);
      mbarrier_init(empty_ + 8 * i, kTileConsumers / 32);
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
  // A word that goes with the stage; before load() or fill().
  RLK_DEVICE void put_word(int word) const {
    asm volatile("st.shared.b32 [%0], %1;" ::"r"(words_ + 4 * stage_), "r"(word) : "memory");
  }
  // Rows from m0 on, columns from n0 on, values of k from k on; then the next stage.
  RLK_DEVICE void load(const CUtensorMap* map_a, const CUtensorMap* map_b, int m0, int n0, int k) {
    static_assert(!kGroups);
    const std::uint32_t bar = full_ + 8 * stage_;
    const std::uint32_t b = b_ + stage_ * kStageB;
    mbarrier_expect(bar, kStageA + kStageB);
    tma_load(a_ + stage_ * kStageA, map_a, bar, k, m0);
    if constexpr (kIMajorB) {
      for (int n = 0; n < kN; n += 64) tma_load(b + n * kStep * 2, map_b, bar, n0 + n, k);
    } else {
      tma_load(b, map_b, bar, k, n0);
    }
    next();
  }
  // By groups of mac, each by a thread of its own: the stage's group `group` of both operands, k
  // from k on. Then all four threads go on with fill().
  RLK_DEVICE void load_group(const ColumnMaps& map_a, const ColumnMaps& map_b, int m0, int n0,
                             int k, int group) const {
    static_assert(kGroups);
    const std::uint32_t bar = full_ + 8 * stage_;
    mbarrier_expect_more(bar, (kTileRows + kN) * 32);
    map_a.load<kTileRows>(a_ + stage_ * kStageA + group * kTileRows * 32, bar, m0, k);
    map_b.load<kN>(b_ + stage_ * kStageB + group * kN * 32, bar, n0, k);
  }
  RLK_DEVICE void fill() {
    mbarrier_arrive(full_ + 8 * stage_);
    next();
  }

  // ---- the two warpgroups that multiply: consumer 0 and 1 ----

  RLK_DEVICE void wait_full() const { mbarrier_wait(full_ + 8 * stage_, parity_); }
  // The same, and the word of the stage. Lane 0 reads it, as it is lane 0 that releases the stage.
  RLK_DEVICE int wait_word() const {
    wait_full();
    int word = 0;
    if (thread() % 32 == 0) {
      asm volatile("ld.shared.b32 %0, [%1];" : "=r"(word) : "r"(words_ + 4 * stage_) : "memory");
    }
    return __shfl_sync(~0u, word, 0);
  }
  // Of what this warp has read.
  RLK_DEVICE void release(int stage) const {
    __syncwarp();
    if (thread() % 32 == 0) mbarrier_arrive(empty_ + 8 * stage);
  }
  // The stage, which is full, added to the sums; asynchronous. Then the next stage. kStarts: the
  // sums begin here, at +0.
  template <bool kStarts = false>
  RLK_DEVICE void multiply(Sums& d, int consumer) {
    const std::uint32_t a = a_ + stage_ * kStageA + consumer * (kGroups ? 64 * 32 : 64 * kStep * 2);
    const std::uint32_t b = b_ + stage_ * kStageB;
    wgmma_fence();
    group<kStarts, 0>(d, a, b);
    group<false, 1>(d, a, b);
    group<false, 2>(d, a, b);
    group<false, 3>(d, a, b);
    wgmma_commit();
    next();
  }
  // The chain of `steps` > 0 stages; nothing is left running. Behind the first, which is not waited
  // for, meanwhile() is called.
  template <typename Meanwhile>
  RLK_DEVICE void chain(Sums& d, int consumer, int steps, const Meanwhile& meanwhile) {
    int before = stage_;
    wait_full();
    multiply<true>(d, consumer);
    meanwhile();
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

  // The last values of k of groups of mac of the current stage become +0 in this warpgroup's rows
  // of a; those of b may be anything finite. Four bits of `missing` say how many, the lowest for
  // the first group.
  RLK_DEVICE void clear(int missing, int consumer) const {
    static_assert(kGroups);
    const std::uint32_t a = a_ + stage_ * kStageA + consumer * 64 * 32;
    RLK_UNROLL
    for (int group = 0; group < kStep / 16; ++group) {
      const int i = 128 - (missing >> 4 * group) % 16 * 8 + thread() % 128;
      if (i < 128) store_zeros(a + group * kTileRows * 32 + i * 16);
    }
    copy_fence();
    named_barrier_wait(1 + consumer, 128);
  }
  // The same behind the first `groups` groups of mac, with k dense.
  RLK_DEVICE void clear_behind(int groups, int consumer) const {
    static_assert(!kGroups);
    const int row = thread() % 64;
    const std::uint32_t a = a_ + stage_ * kStageA + (consumer * 64 + row) * kStep * 2;
    for (int chunk = 2 * groups + thread() % 128 / 64; chunk < kStep / 8; chunk += 2) {
      store_zeros(a + (chunk ^ row % 8) * 16);  // 8 values; the swizzle
    }
    copy_fence();
    named_barrier_wait(1 + consumer, 128);
  }

 private:
  // Values 16 i .. 16 i + 15 of k.
  template <bool kStarts, int i>
  RLK_DEVICE static void group(Sums& d, std::uint32_t a, std::uint32_t b) {
    Wgmma<kN, kIMajorB, kGroups>::template run<kStarts>(
        d, kGroups ? i_major(a + i * kTileRows * 32, 64 * 32) : k_major(a + 32 * i),
        kGroups    ? i_major(b + i * kN * 32, 64 * 32)
        : kIMajorB ? i_major(b + 2048 * i, 64 * kStep * 2)
                   : k_major(b + 32 * i));
  }

  std::uint32_t a_, b_, extra_, full_, empty_, words_;
  int stage_ = 0;
  int parity_ = 0;
};

// What an epilogue does: epilogue(m0, n0, sums) at once; or, if it has a type Later, what that
// leaves to be done while the next tile is multiplied.
template <typename Epilogue>
struct Later {
  template <typename Sums>
  RLK_DEVICE void take(const Epilogue& epilogue, int m0, int n0, Sums& acc) {
    epilogue(m0, n0, acc);
  }
  RLK_DEVICE void finish(const Epilogue&) {}
};
template <typename Epilogue>
requires requires { typename Epilogue::Later; }
struct Later<Epilogue> : Epilogue::Later {};

// c = a b^T as one chain of `steps` stages; the epilogue takes the 64 x kN sums of a warpgroup from
// row m0 and column n0 on.
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
  Later<Epilogue> later;
  for (int t = static_cast<int>(block_x()); t < tiles.count(); t += gridDim.x) {
    int row, column;
    tiles.at(t, &row, &column);
    typename Ring<kN, 0, kIMajorB>::Sums acc;
    ring.chain(acc, consumer, steps, [&] { later.finish(epilogue); });
    later.take(epilogue, row * kTileRows + consumer * 64, column * kN, acc);
  }
  later.finish(epilogue);
}

template <int kN, bool kIMajorB, typename Epilogue>
void launch_chain_tiles(Exec& exec, const CUtensorMap& a, const CUtensorMap& b, std::int64_t m,
                        std::int64_t n, std::int64_t k, const Epilogue& epilogue) {
  const Tiles tiles = tiles_of(m, n, kN);
  launch_cluster(exec, {persistent_blocks(tiles)}, kTileThreads, Ring<kN, 0, kIMajorB>::kBytes,
                 {1, true}, chain_tiles_kernel<kN, kIMajorB, Epilogue>, a, b,
                 static_cast<int>(ceil_div(k, kStep)), tiles, epilogue);
}

// Calls run<kN>() for tiles as wide as is fastest. A round of tiles takes 10, 8 and 6 for 256, 192
// and 128 columns: the narrower, the slower for their size.
template <typename Run>
void with_tile_columns(std::int64_t rows, std::int64_t columns, const Run& run) {
  const auto time = [&](std::int64_t width, std::int64_t of_a_round) {
    return of_a_round *
           ceil_div(ceil_div(rows, kTileRows) * ceil_div(columns, width), num_processors());
  };
  const std::int64_t wide = time(256, 10), middle = time(192, 8), narrow = time(128, 6);
  if (wide <= middle && wide <= narrow) return run.template operator()<256>();
  middle <= narrow ? run.template operator()<192>() : run.template operator()<128>();
}

}  // namespace rlk::gpu::sm90
