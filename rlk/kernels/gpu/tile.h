// The product loop of a block of threads: a tile of sums over k in rising order, one fma each.
//
//            kN columns of b               Thread (y, x) of the block owns kRows * kColumns sums:
//          +-----------------+             rows    y * 4 + {0..3} of each group of rows
//   kM     |                 |             columns x * 4 + {0..3} of each group of columns
//   rows   |   acc, in       |             (with fewer than 4 of either: y and x steps apart).
//   of a   |   registers     |
//          +-----------------+             kK values of k are in shared memory at a time.
#pragma once

#include "rlk/kernels/gpu/views.h"
#include "rlk/numerics/ieee.h"

namespace rlk::gpu {

// An operand: element (i, k), i < size; anything beyond reads as +0.
template <typename T>
struct Operand {
  const T* data;
  std::int64_t stride_i;
  std::int64_t stride_k;
  std::int64_t size;
};

template <int kM_, int kN_, int kK_, int kRows_, int kColumns_>
struct Tile {
  static constexpr int kM = kM_, kN = kN_, kK = kK_, kRows = kRows_, kColumns = kColumns_;
  static constexpr int kThreadsX = kN / kColumns;
  static constexpr int kThreads = kM / kRows * kThreadsX;
  static constexpr int kStrideA = kM + 4;
  static constexpr int kStrideB = kN + 4;
  static constexpr int kSharedFloats = kK * (kStrideA + kStrideB);

  // The row of the tile that is a thread's r-th, and the column.
  RLK_DEVICE static int row(int r) { return spread<kM, kRows>(thread() / kThreadsX, r); }
  RLK_DEVICE static int column(int c) { return spread<kN, kColumns>(thread() % kThreadsX, c); }

  // acc goes on over k in [begin, end), for rows m0.. of a and n0.. of b.
  template <typename T>
  RLK_DEVICE static void chain(const Operand<T>& a, std::int64_t m0, const Operand<T>& b,
                               std::int64_t n0, std::int64_t begin, std::int64_t end, float* shared,
                               float (&acc)[kRows][kColumns]) {
    float* const shared_a = shared;
    float* const shared_b = shared + kK * kStrideA;
    Fetched<T, kM> next_a;
    Fetched<T, kN> next_b;
    if (begin < end) {
      next_a.fetch(a, m0, begin, end);
      next_b.fetch(b, n0, begin, end);
    }
    for (std::int64_t k = begin; k < end; k += kK) {
      next_a.put(a, shared_a);
      next_b.put(b, shared_b);
      barrier();
      if (k + kK < end) {
        next_a.fetch(a, m0, k + kK, end);
        next_b.fetch(b, n0, k + kK, end);
      }
      const int count = end - k < kK ? static_cast<int>(end - k) : kK;
      if (count == kK) {
        RLK_UNROLL
        for (int i = 0; i < kK; ++i) step(shared_a + i * kStrideA, shared_b + i * kStrideB, acc);
      } else {
        for (int i = 0; i < count; ++i) step(shared_a + i * kStrideA, shared_b + i * kStrideB, acc);
      }
      barrier();
    }
  }

 private:
  template <int kSize, int kOwn>
  RLK_DEVICE static int spread(int owner, int i) {
    if constexpr (kOwn % 4 == 0) {
      return i / 4 * (kSize * 4 / kOwn) + owner * 4 + i % 4;
    } else {
      return i * (kSize / kOwn) + owner;
    }
  }

  RLK_DEVICE static void step(const float* a, const float* b, float (&acc)[kRows][kColumns]) {
    float x[kRows];
    float y[kColumns];
    RLK_UNROLL
    for (int r = 0; r < kRows; ++r) x[r] = a[row(r)];
    RLK_UNROLL
    for (int c = 0; c < kColumns; ++c) y[c] = b[column(c)];
    RLK_UNROLL
    for (int r = 0; r < kRows; ++r) {
      RLK_UNROLL
      for (int c = 0; c < kColumns; ++c) acc[r][c] = numerics::fma(x[r], y[c], acc[r][c]);
    }
  }

  // The next kK * kSize numbers of an operand on their way through registers. Neighbouring threads
  // take neighbours in memory: along k where k is dense, else along i.
  template <typename T, int kSize>
  struct Fetched {
    static constexpr int kCount = kSize * kK / kThreads;
    static_assert(kCount * kThreads == kSize * kK);
    T value[kCount];

    RLK_DEVICE static int index_i(const Operand<T>& x, int e) {
      return x.stride_k == 1 ? e / kK : e % kSize;
    }
    RLK_DEVICE static int index_k(const Operand<T>& x, int e) {
      return x.stride_k == 1 ? e % kK : e / kSize;
    }
    RLK_DEVICE void fetch(const Operand<T>& x, std::int64_t i0, std::int64_t k0, std::int64_t end) {
      RLK_UNROLL
      for (int n = 0; n < kCount; ++n) {
        const int e = n * kThreads + thread();
        const std::int64_t i = i0 + index_i(x, e);
        const std::int64_t k = k0 + index_k(x, e);
        value[n] = i < x.size && k < end ? x.data[i * x.stride_i + k * x.stride_k] : T{};
      }
    }
    RLK_DEVICE void put(const Operand<T>& x, float* to) const {
      RLK_UNROLL
      for (int n = 0; n < kCount; ++n) {
        const int e = n * kThreads + thread();
        to[index_k(x, e) * (kSize + 4) + index_i(x, e)] = load(value[n]);
      }
    }
  };
};

// For many rows, and for few.
using LargeTile = Tile<128, 128, 16, 8, 8>;
using SmallTile = Tile<16, 32, 64, 2, 1>;

}  // namespace rlk::gpu
