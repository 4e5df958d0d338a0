// The main loop of products: while a wave multiplies one step of k, the next one is on its way from
// device memory to registers and from there to the other half of shared memory.
#pragma once

#include "rlk/kernels/gpu/cdna/operand_tile.h"

namespace rlk::gpu::cdna {

// kStep values of k from k on, +0 from `end` on; k < end.
struct Step {
  int k;
  int end;
};

// Both operands of a step; parts 0 .. kParts are those of a, then those of b.
template <int kRowsA, bool kAIMajor, int kRowsB, bool kBIMajor, int kThreads, int kStep,
          Padding kPaddingB>
class PairFetch {
  using A = TileFetch<kRowsA, kThreads, kStep, kAIMajor>;
  using B = TileFetch<kRowsB, kThreads, kStep, kBIMajor>;

 public:
  static constexpr int kParts = A::kParts + B::kParts;

  RLK_DEVICE PairFetch(const Operand& x, int m0, const Operand& y, int n0) : a_(x, m0), b_(y, n0) {}

  RLK_DEVICE void load(int part, const Step& step) {
    if (part < A::kParts) {
      a_.load(values_a_[part], part, step.k, step.end);
    } else {
      b_.load(values_b_[part - A::kParts], part - A::kParts, step.k, step.end);
    }
  }
  RLK_DEVICE void put(int part, Chunk* to_a, Chunk* to_b, const Step& step) const {
    const int count = step.end - step.k;
    if (part < A::kParts) {
      a_.put(values_a_[part], to_a, part, count, Padding::kZero);
    } else {
      b_.put(values_b_[part - A::kParts], to_b, part - A::kParts, count, kPaddingB);
    }
  }

 private:
  A a_;
  B b_;
  typename A::Part values_a_[A::kParts];
  typename B::Part values_b_[B::kParts];
};

// kM x kN sums of a block, kTilesM * 32 x kTilesN * 32 of each wave.
template <int kM_, bool kAIMajor, int kN_, bool kBIMajor, int kTilesM, int kTilesN, int kStep_,
          Padding kPaddingB = Padding::kZero>
class Pipeline {
 public:
  static constexpr int kM = kM_, kN = kN_, kStep = kStep_;
  static constexpr int kWavesN = kN / (kTilesN * 32);
  static constexpr int kThreads = kM / (kTilesM * 32) * kWavesN * kWave;
  static constexpr int kSharedChunks = 2 * (kM + kN) * kStep / 8;
  using Tile = WaveTile<kTilesM, kTilesN, kStep>;

  Tile tile;

  // Where the wave's sums lie in the block.
  RLK_DEVICE static int wave_m() { return thread() / kWave / kWavesN * (kTilesM * 32); }
  RLK_DEVICE static int wave_n() { return thread() / kWave % kWavesN * (kTilesN * 32); }

  RLK_DEVICE Pipeline(const Operand& a, int m0, const Operand& b, int n0, Chunk* shared)
      : fetch_(a, m0, b, n0), shared_(shared) {}

  RLK_DEVICE void begin(const Step& first, const Step& second) {
    load(first);
    RLK_UNROLL
    for (int part = 0; part < Fetch::kParts; ++part) fetch_.put(part, a(0), b(0), first);
    barrier();
    load(second);
    fetched_ = second;
    Tile::read(fragments_[0], a(0), wave_m(), b(0), wave_n(), 0);
  }

  // Multiplies a step. `later`: the step two steps behind it. kFirst: the sums begin here.
  template <bool kFirst = false>
  RLK_DEVICE void multiply(const Step& later) {
    const int next = buffer_ ^ 1;  // everybody has read it before the last barrier
    int part = 0;
    RLK_UNROLL
    for (int block = 0; block + 1 < kBlocks; ++block) {
      Tile::read(fragments_[(block + 1) % 2], a(buffer_), wave_m(), b(buffer_), wave_n(),
                 block + 1);
      RLK_UNROLL
      for (int half = 0; half < 2; ++half) {
        if (kFirst && block == 0 && half == 0) {
          tile.template multiply<true>(fragments_[0], 0);
        } else {
          tile.multiply(fragments_[block % 2], half);
        }
        // What a part leaves in registers is replaced at once, so that each load has a whole step.
        const int until = Fetch::kParts * (2 * block + half + 1) / (2 * (kBlocks - 1));
        RLK_UNROLL
        for (; part < until; ++part) {
          fetch_.put(part, a(next), b(next), fetched_);
          fetch_.load(part, later);
        }
        keep_schedule();
      }
    }
    barrier();
    buffer_ = next;
    fetched_ = later;
    Tile::read(fragments_[0], a(next), wave_m(), b(next), wave_n(), 0);
    tile.multiply(fragments_[1], 0);
    tile.multiply(fragments_[1], 1);
  }

 private:
  using Fetch = PairFetch<kM, kAIMajor, kN, kBIMajor, kThreads, kStep, kPaddingB>;
  static constexpr int kBlocks = kStep / 16;
  static_assert(kBlocks % 2 == 0);

  RLK_DEVICE void load(const Step& step) {
    RLK_UNROLL
    for (int part = 0; part < Fetch::kParts; ++part) fetch_.load(part, step);
  }
  RLK_DEVICE Chunk* a(int buffer) const { return shared_ + buffer * (kSharedChunks / 2); }
  RLK_DEVICE Chunk* b(int buffer) const { return a(buffer) + kM * kStep / 8; }

  Fetch fetch_;
  Chunk* shared_;
  typename Tile::Fragments fragments_[2];
  Step fetched_;
  int buffer_ = 0;
};

}  // namespace rlk::gpu::cdna
