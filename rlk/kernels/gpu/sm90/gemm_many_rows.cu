// Many rows: tiles of 128 rows by 256, 192 or 128 columns (gemm_tiles.h), by persistent blocks.
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

  // A tile in bf16 is packed at once, and stored while the next one is multiplied.
  class Later {
   public:
    RLK_DEVICE void take(const StoreTile& to, int m0, int n0, float (&acc)[kN / 2]) {
      if (to.p.c_is_f32 || !packs<kN>(target(to.p), n0)) return store_tile<kN>(to.p, m0, n0, acc);
      add_bias<kN>(to.p, n0, acc);
      packed_.pack(acc);
      m0_ = m0;
      n0_ = n0;
    }
    RLK_DEVICE void finish(const StoreTile& to) {
      if (m0_ >= 0) packed_.store(target(to.p), m0_, n0_);
      m0_ = -1;
    }

   private:
    PackedValues<kN> packed_;
    int m0_ = -1, n0_ = 0;  // below 0: nothing is left
  };
};

constexpr int kTreeColumns = 128;
constexpr int kTreeBytes = kTileRows * kTreeColumns * 4;
template <bool kIMajorB>
using TreeRing = Ring<kTreeColumns, kTreeBytes, kIMajorB>;

// kWhole: every step is. Else the word of a stage says how many groups of mac are, and a leaf of no
// steps gets one of none.
template <bool kWhole, bool kIMajorB>
__global__ void __launch_bounds__(kTileThreads, 1)
    tree_tiles_kernel(const __grid_constant__ CUtensorMap map_a,
                      const __grid_constant__ CUtensorMap map_b, const Product p,
                      const Tiles tiles) {
  constexpr int kN = kTreeColumns;
  RLK_DYNAMIC_SHARED(shared);
  TreeRing<kIMajorB> ring(shared);
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
      const auto send = [&](int k, int groups) {
        ring.wait_empty();
        if constexpr (!kWhole) ring.put_word(groups);
        ring.load(&map_a, &map_b, row * kTileRows, column * kN, k);
      };
      for (int leaf = 0; leaf < p.leaves; ++leaf) {
        if (!kWhole && p.steps[leaf] == 0) send(0, 0);
        for_each_step(p, leaf, send);
      }
    }
    return;
  }

  more_registers<232>();
  wait_for_previous_kernel();
  constexpr int kRegisters = kN / 2;
  using Sums = float[kRegisters];
  const int consumer = warpgroup - 1;
  int last = 0;  // the stage multiplied last
  const auto multiply = [&](Sums& d) {
    if constexpr (kWhole) {
      ring.wait_full();
    } else {
      const int groups = ring.wait_word();
      if (groups < kStep / 16) ring.clear_behind(groups, consumer);
    }
    last = ring.stage();
    ring.multiply(d, consumer);
  };
  // The chain of one leaf, of which the last step is left running; `running`: so was that of the
  // chain before.
  const auto chain = [&](Sums& d, int leaf, bool running) {
    RLK_UNROLL
    for (int i = 0; i < kRegisters; ++i) d[i] = 0.0f;
    int before = last;
    multiply(d);
    if (running) {
      wgmma_wait<1>();
      ring.release(before);
    }
#pragma unroll 1
    for (int i = 1; i < p.steps[leaf]; ++i) {
      before = last;
      multiply(d);
      wgmma_wait<1>();
      ring.release(before);
    }
  };
  float4* const level2 =
      reinterpret_cast<float4*>(shared + (ring.extra() - shared_address(shared))) + thread() - 128;
  for (int t = static_cast<int>(block_x()); t < tiles.count(); t += gridDim.x) {
    int row, column;
    tiles.at(t, &row, &column);
    // The neighbour tree of 8 leaves, two leaves at a time. Each pair is written out: the compiler
    // then moves no sums from register to register.
    Sums left, acc, level1;
    const auto pair = [&](int leaf) {
      chain(left, leaf, false);
      chain(acc, leaf + 1, true);
      wgmma_wait<0>();
      ring.release(last);
    };
    const auto sum = [&](int i) { return left[i] + acc[i]; };
    pair(0);
    RLK_UNROLL
    for (int i = 0; i < kRegisters; ++i) level1[i] = sum(i);
    const auto sum_of_four = [&](int i) { return level1[i] + sum(i); };
    pair(2);
    RLK_UNROLL
    for (int i = 0; i < kRegisters; i += 4) {
      level2[i / 4 * kTileConsumers] =
          make_float4(sum_of_four(i), sum_of_four(i + 1), sum_of_four(i + 2), sum_of_four(i + 3));
    }
    pair(4);
    RLK_UNROLL
    for (int i = 0; i < kRegisters; ++i) level1[i] = sum(i);
    pair(6);
    RLK_UNROLL
    for (int i = 0; i < kRegisters; i += 4) {
      const float4 x = level2[i / 4 * kTileConsumers];
      acc[i] = x.x + sum_of_four(i);
      acc[i + 1] = x.y + sum_of_four(i + 1);
      acc[i + 2] = x.z + sum_of_four(i + 2);
      acc[i + 3] = x.w + sum_of_four(i + 3);
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
  with_tile_columns(p.m, p.n, [&]<int kN>() { chain_tiles<kN>(exec, args, p); });
}

}  // namespace rlk::gpu::sm90
