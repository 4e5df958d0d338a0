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
  static constexpr int kPack = 16 / sizeof(T);  // numbers that are read at once

  const T* data;
  std::int64_t stride_i;
  std::int64_t stride_k;
  std::int64_t size;
  bool along_k;  // neighbours in memory are neighbours in k, else in i
  bool packed;   // and lie in whole packs: every kPack-th is aligned

  // Of a matrix with dimension 0 for i and 1 for k, or the other way round.
  static Operand make(const ConstTensorView& t, bool k_is_first = false) {
    const int i = k_is_first ? 1 : 0;
    const bool along_k = t.stride(1 - i) == 1;
    const bool dense = (along_k ? t.stride(1 - i) : t.stride(i)) == 1;
    const auto aligned = [](std::int64_t stride) { return stride % kPack == 0; };
    return {static_cast<const T*>(t.data),
            t.stride(i),
            t.stride(1 - i),
            t.shape(i),
            along_k,
            dense && aligned(along_k ? t.stride(i) : t.stride(1 - i)) &&
                reinterpret_cast<std::uintptr_t>(t.data) % 16 == 0};
  }

  // Up to kPack numbers from (i, k) on, those with k < end.
  RLK_DEVICE Pack<T, kPack> read(std::int64_t i, std::int64_t k, std::int64_t end) const {
    const T* const at = data + i * stride_i + k * stride_k;
    const bool inside = along_k ? i < size && k + kPack <= end : i + kPack <= size && k < end;
    if (packed && inside && (along_k ? k : i) % kPack == 0) return Pack<T, kPack>::read(at);
    float x[kPack];
    const std::int64_t stride = along_k ? stride_k : stride_i;
    RLK_UNROLL
    for (int j = 0; j < kPack; ++j) {
      const bool live = along_k ? i < size && k + j < end : i + j < size && k < end;
      x[j] = live ? load(at[j * stride]) : 0.0f;
    }
    return Pack<T, kPack>::of(x);
  }
};

template <int kM_, int kN_, int kK_, int kRows_, int kColumns_>
struct Tile {
  static constexpr int kM = kM_, kN = kN_, kK = kK_, kRows = kRows_, kColumns = kColumns_;
  static constexpr int kThreadsX = kN / kColumns;
  static constexpr int kThreads = kM / kRows * kThreadsX;
  static constexpr int kStrideA = kM + 4;
  static constexpr int kStrideB = kN + 4;
  static constexpr int kStageFloats = kK * (kStrideA + kStrideB);
  static constexpr int kSharedFloats = 2 * kStageFloats;  // one is filled while one is read

  // The row of the tile that is a thread's r-th, and the column.
  RLK_DEVICE static int row(int r) { return spread<kM, kRows>(thread() / kThreadsX, r); }
  RLK_DEVICE static int column(int c) { return spread<kN, kColumns>(thread() % kThreadsX, c); }

  // acc goes on over k in [begin, end), for rows m0.. of a and n0.. of b.
  template <typename T>
  RLK_DEVICE static void chain(const Operand<T>& a, std::int64_t m0, const Operand<T>& b,
                               std::int64_t n0, std::int64_t begin, std::int64_t end, float* shared,
                               float (&acc)[kRows][kColumns]) {
    Fetched<T, kM> next_a;
    Fetched<T, kN> next_b;
    if (begin < end) {
      next_a.fetch(a, m0, begin, end);
      next_b.fetch(b, n0, begin, end);
    }
    int stage = 0;
    for (std::int64_t k = begin; k < end; k += kK) {
      float* const shared_a = shared + stage * kStageFloats;
      float* const shared_b = shared_a + kK * kStrideA;
      stage ^= 1;
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
    }
    barrier();  // the next chain begins with the first stage
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

  // A thread's own numbers of a row of kSize.
  template <int kSize, int kOwn>
  RLK_DEVICE static void read_own(const float* from, int owner, float (&x)[kOwn]) {
    if constexpr (kOwn % 4 == 0) {
      RLK_UNROLL
      for (int i = 0; i < kOwn; i += 4) {
        float four[4];
        Pack<float, 4>::read(from + spread<kSize, kOwn>(owner, i)).get(four);
        for (int j = 0; j < 4; ++j) x[i + j] = four[j];
      }
    } else {
      RLK_UNROLL
      for (int i = 0; i < kOwn; ++i) x[i] = from[spread<kSize, kOwn>(owner, i)];
    }
  }

  RLK_DEVICE static void step(const float* a, const float* b, float (&acc)[kRows][kColumns]) {
    float x[kRows];
    float y[kColumns];
    read_own<kM>(a, thread() / kThreadsX, x);
    read_own<kN>(b, thread() % kThreadsX, y);
    RLK_UNROLL
    for (int r = 0; r < kRows; ++r) {
      RLK_UNROLL
      for (int c = 0; c < kColumns; ++c) acc[r][c] = numerics::fma(x[r], y[c], acc[r][c]);
    }
  }

  // The next kK * kSize numbers of an operand on their way through registers, pack by pack.
  template <typename T, int kSize>
  struct Fetched {
    static constexpr int kPack = Operand<T>::kPack;
    static constexpr int kPacks = kSize * kK / kPack;
    static constexpr int kCount = (kPacks + kThreads - 1) / kThreads;
    static_assert(kSize % kPack == 0 && kK % kPack == 0);
    Pack<T, kPack> pack[kCount];

    // Where pack e begins. Neighbouring threads have neighbouring i, so what they put into shared
    // memory lies side by side.
    RLK_DEVICE static int index_i(const Operand<T>& x, int e) {
      return x.along_k ? e % kSize : e % (kSize / kPack) * kPack;
    }
    RLK_DEVICE static int index_k(const Operand<T>& x, int e) {
      return x.along_k ? e / kSize * kPack : e / (kSize / kPack);
    }
    RLK_DEVICE void fetch(const Operand<T>& x, std::int64_t i0, std::int64_t k0, std::int64_t end) {
      RLK_UNROLL
      for (int n = 0; n < kCount; ++n) {
        const int e = n * kThreads + thread();
        if (e < kPacks) pack[n] = x.read(i0 + index_i(x, e), k0 + index_k(x, e), end);
      }
    }
    RLK_DEVICE void put(const Operand<T>& x, float* to) const {
      constexpr int kStride = kSize + 4;
      RLK_UNROLL
      for (int n = 0; n < kCount; ++n) {
        const int e = n * kThreads + thread();
        if (e >= kPacks) continue;
        float* const at = to + index_k(x, e) * kStride + index_i(x, e);
        float v[kPack];
        pack[n].get(v);
        if (x.along_k) {
          RLK_UNROLL
          for (int j = 0; j < kPack; ++j) at[j * kStride] = v[j];
        } else {
          RLK_UNROLL
          for (int j = 0; j < kPack; j += 4) {
            Pack<float, 4>{
                {std::bit_cast<std::uint32_t>(v[j]), std::bit_cast<std::uint32_t>(v[j + 1]),
                 std::bit_cast<std::uint32_t>(v[j + 2]), std::bit_cast<std::uint32_t>(v[j + 3])}}
                .write(at + j);
          }
        }
      }
    }
  };
};

// For many rows, and for few.
using LargeTile = Tile<128, 128, 16, 8, 8>;
using SmallTile = Tile<16, 32, 64, 2, 1>;

}  // namespace rlk::gpu
