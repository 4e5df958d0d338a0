// What a warpgroup does with its finished sums.
#pragma once

#include <bit>

#include "rlk/kernels/gpu/sm90/gemm.h"
#include "rlk/kernels/gpu/sm90/instructions.h"
#include "rlk/kernels/gpu/views.h"

namespace rlk::gpu::sm90 {

// bf16_pair makes 0x7fff of NaN, which is not the one of the contract.
RLK_DEVICE std::uint32_t canonical_nans(std::uint32_t pair) {
  if ((pair & 0x7fffu) == 0x7fffu) pair = (pair & 0xffff0000u) | 0x7fc0u;
  if ((pair & 0x7fff0000u) == 0x7fff0000u) pair = (pair & 0xffffu) | 0x7fc00000u;
  return pair;
}

// The sum of output (., n) with its bias.
RLK_DEVICE float with_bias(const Product& p, float sum, int n) {
  sum = sum + 0.0f;
  if (p.bias == nullptr || n >= p.n) return sum;
  return sum + numerics::to_f32(static_cast<const bf16*>(p.bias)[n]);
}

// wgmma leaves a thread two neighbouring sums of each block of 8 columns. Turned, it has four
// neighbours of every other block: even lanes of the blocks 0, 2, .., odd lanes of 1, 3, ... Turned
// twice they are as before.
template <int kN>
RLK_DEVICE void turn(float (&acc)[kN / 2]) {
  const bool odd = thread() % 2 != 0;
  RLK_UNROLL
  for (int i = 0; i < kN / 2; i += 8) {
    RLK_UNROLL
    for (int j = 0; j < 4; ++j) {
      const float x = acc[i + j], y = acc[i + 4 + j];
      const float other = __shfl_xor_sync(~0u, odd ? x : y, 1);
      acc[i + j] = odd ? other : x;
      acc[i + 4 + j] = odd ? y : other;
    }
  }
}

// Calls visit(row, column, x) for each four neighbours of turned sums, x a float4; row and column
// count from those of the warpgroup.
template <int kN, typename Visit>
RLK_DEVICE void for_each_four(float (&acc)[kN / 2], const Visit& visit) {
  const int q = thread() % 4;
  int row = thread() % 128 / 32 * 16 + thread() % 32 / 4;
  int column = q / 2 * 4 + q % 2 * 8;
  // Else the compiler keeps the addresses of one visit for the next, in registers it lacks.
  asm volatile("" : "+r"(row), "+r"(column));
  RLK_UNROLL
  for (int i = 0; i < kN / 2; i += 8) {
    RLK_UNROLL
    for (int h = 0; h < 2; ++h) {
      float4 x = make_float4(acc[i + 2 * h], acc[i + 2 * h + 1], acc[i + 4 + 2 * h],
                             acc[i + 4 + 2 * h + 1]);
      visit(row + 8 * h, column + 2 * i, x);
      acc[i + 2 * h] = x.x;
      acc[i + 2 * h + 1] = x.y;
      acc[i + 4 + 2 * h] = x.z;
      acc[i + 4 + 2 * h + 1] = x.w;
    }
    // Else the compiler makes room for what all visits read.
    if (i % 32 == 24) asm volatile("" ::: "memory");
  }
}

// Between the sums of a warpgroup and a matrix of f32 in memory, through shared memory, so that
// whole lines are moved: 64 rows by 32 columns at a time. What is read is on its way parts before
// it is needed. Rows lie 16-byte aligned, and their length is a multiple of 4.
template <int kN>
class SumsInRows {
 public:
  static constexpr int kBytes = 64 * 40 * 4;  // of shared memory
  static constexpr int kParts = kN / 32;
  using Sums = float[kN / 2];

  // from: where the first sum belongs; `rows` and `columns` of the matrix are left from there on.
  RLK_DEVICE SumsInRows(float* shared, int barrier_id, float* from, std::int64_t stride, int rows,
                        int columns)
      : shared_(shared),
        barrier_id_(barrier_id),
        from_(from + thread() % 128 / 8 * stride + thread() % 8 * 4),
        stride_(16 * stride),
        rows_(rows - thread() % 128 / 8),
        columns_(columns - thread() % 8 * 4) {}

  // The sums become what the matrix holds; +0 outside. Whether what this thread moves was +0.
  RLK_DEVICE bool read(Sums& acc) const {
    std::uint32_t bits = 0;
    Parts<kParts> x(*this);  // the sums need no registers yet
    RLK_UNROLL
    for (int part = 0; part < kParts; ++part) {
      RLK_UNROLL
      for (int i = 0; i < 4; ++i) {
        const float4 v = x.of(part)[i];
        *row_place(i) = v;
        bits |= (std::bit_cast<std::uint32_t>(v.x) | std::bit_cast<std::uint32_t>(v.y)) |
                (std::bit_cast<std::uint32_t>(v.z) | std::bit_cast<std::uint32_t>(v.w));
      }
      wait();
      for_each_pair(part, [&](float2* at, int i) {
        acc[i] = at->x;
        acc[i + 1] = at->y;
      });
      wait();
    }
    return bits == 0;
  }
  // What this thread moves becomes +0.
  RLK_DEVICE void clear() const {
    for (int part = 0; part < kParts; ++part) {
      for (int i = 0; i < 4; ++i) {
        if (inside(part, i)) *place(part, i) = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
      }
    }
  }
  // The matrix becomes the sums.
  RLK_DEVICE void write(const Sums& acc) const {
    for_each_part(acc, [](int, const float4(&)[4]) {});
  }
  // The matrix becomes the matrix plus the sums.
  RLK_DEVICE void add(const Sums& acc) const {
    Parts<3> x(*this);
    for_each_part(acc, [&](int part, float4(&sum)[4]) {
      RLK_UNROLL
      for (int i = 0; i < 4; ++i) {
        const float4 v = x.of(part)[i];
        sum[i] = make_float4(v.x + sum[i].x, v.y + sum[i].y, v.z + sum[i].z, v.w + sum[i].w);
      }
      x.next(*this, part);
    });
  }

 private:
  RLK_DEVICE bool inside(int part, int i) const { return 16 * i < rows_ && 32 * part < columns_; }
  RLK_DEVICE float4* place(int part, int i) const {
    return reinterpret_cast<float4*>(from_ + i * stride_ + 32 * part);
  }
  // What the matrix holds, kAhead parts of it on their way at a time.
  template <int kAhead>
  struct Parts {
    float4 x[kAhead][4];

    RLK_DEVICE explicit Parts(const SumsInRows& of) {
      RLK_UNROLL
      for (int part = 0; part < kAhead; ++part) of.fetch(part, x[part]);
    }
    RLK_DEVICE const float4* of(int part) const { return x[part % kAhead]; }
    RLK_DEVICE void next(const SumsInRows& of, int part) {
      if (part + kAhead < kParts) of.fetch(part + kAhead, x[part % kAhead]);
    }
  };
  RLK_DEVICE void fetch(int part, float4 (&x)[4]) const {
    RLK_UNROLL
    for (int i = 0; i < 4; ++i) {
      x[i] = inside(part, i) ? *place(part, i) : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    }
  }
  // Each part of the sums in rows; what visit(part, rows) makes of it is stored.
  template <typename Visit>
  RLK_DEVICE void for_each_part(const Sums& acc, const Visit& visit) const {
    RLK_UNROLL
    for (int part = 0; part < kParts; ++part) {
      for_each_pair(part, [&](float2* at, int i) { *at = make_float2(acc[i], acc[i + 1]); });
      wait();
      float4 sum[4];
      RLK_UNROLL
      for (int i = 0; i < 4; ++i) sum[i] = *row_place(i);
      visit(part, sum);
      RLK_UNROLL
      for (int i = 0; i < 4; ++i) {
        if (inside(part, i)) *place(part, i) = sum[i];
      }
      wait();
    }
  }
  // Rows of 40 floats: neither side meets a bank twice.
  RLK_DEVICE float4* row_place(int i) const {
    return reinterpret_cast<float4*>(shared_ + (thread() % 128 / 8 + 16 * i) * 40 +
                                     thread() % 8 * 4);
  }
  template <typename Visit>
  RLK_DEVICE void for_each_pair(int part, const Visit& visit) const {
    float* const mine =
        shared_ + (thread() % 128 / 32 * 16 + thread() % 32 / 4) * 40 + thread() % 4 * 2;
    RLK_UNROLL
    for (int j = 0; j < 4; ++j) {
      RLK_UNROLL
      for (int h = 0; h < 2; ++h) {
        visit(reinterpret_cast<float2*>(mine + h * 8 * 40 + j * 8), (part * 4 + j) * 4 + 2 * h);
      }
    }
  }
  RLK_DEVICE void wait() const { named_barrier_wait(barrier_id_, 128); }

  float* shared_;
  int barrier_id_;
  float* from_;
  std::int64_t stride_;
  int rows_, columns_;
};

// A matrix [m, n], bf16 or f32.
struct Target {
  void* data;
  std::int64_t stride;
  int m, n;
  bool is_f32;
};

RLK_DEVICE Target target(const Product& p) { return {p.c, p.c_stride, p.m, p.n, p.c_is_f32}; }

RLK_DEVICE void store_one(const Target& to, int m, int n, float x) {
  if (m >= to.m || n >= to.n) return;
  store_at(to.data, to.is_f32, m * to.stride + n, x);
}

using gpu::packs;  // that of views

// Whether values from column n0 on can be stored 16 bytes at a time.
template <int kN>
RLK_DEVICE bool packs(const Target& to, int n0) {
  return to.stride % 8 == 0 && reinterpret_cast<std::uintptr_t>(to.data) % 16 == 0 &&
         n0 + kN <= to.n;
}

// The 64 x kN values of a warpgroup, where wgmma leaves sums, as bf16.
template <int kN>
struct PackedValues {
  std::uint32_t pairs[kN / 4];

  RLK_DEVICE void pack(const float (&acc)[kN / 2]) {
    // Four at a time: each comparison waits for the one that it adds to.
    bool nans[4] = {};
    RLK_UNROLL
    for (int i = 0; i < kN / 2; i += 2) {
      nans[i / 2 % 4] = nans[i / 2 % 4] | ((acc[i] != acc[i]) | (acc[i + 1] != acc[i + 1]));
    }
    RLK_UNROLL
    for (int i = 0; i < kN / 4; ++i) pairs[i] = bf16_pair(acc[2 * i], acc[2 * i + 1]);
    if ((nans[0] | nans[1]) | (nans[2] | nans[3])) {
      RLK_UNROLL
      for (int i = 0; i < kN / 4; ++i) pairs[i] = canonical_nans(pairs[i]);
    }
  }
  // From row m0 and column n0 on.
  RLK_DEVICE void store(const Target& to, int m0, int n0) const {
    const int lane = thread() % 32;
    const int q = lane % 4;
    const int row = m0 + thread() % 128 / 32 * 16 + lane / 4;
    // Four lanes hold two columns each of four neighbouring blocks of 8. Turned, each holds a
    // block.
    RLK_UNROLL
    for (int i = 0; i < kN / 8; i += 4) {
      RLK_UNROLL
      for (int h = 0; h < 2; ++h) {
        std::uint32_t v[4];
        RLK_UNROLL
        for (int j = 0; j < 4; ++j) v[j] = pairs[(i + j) * 2 + h];
        // The square turns over one bit of (lane, block) after the other.
        const bool odd = (q & 1) != 0;
        std::uint32_t x = __shfl_xor_sync(~0u, odd ? v[0] : v[1], 1);
        std::uint32_t y = __shfl_xor_sync(~0u, odd ? v[2] : v[3], 1);
        (odd ? v[0] : v[1]) = x;
        (odd ? v[2] : v[3]) = y;
        const bool high = (q & 2) != 0;
        x = __shfl_xor_sync(~0u, high ? v[0] : v[2], 2);
        y = __shfl_xor_sync(~0u, high ? v[1] : v[3], 2);
        (high ? v[0] : v[2]) = x;
        (high ? v[1] : v[3]) = y;
        const int m = row + h * 8;
        if (m < to.m) {
          bf16* const at = static_cast<bf16*>(to.data) + m * to.stride + n0 + (i + q) * 8;
          *reinterpret_cast<uint4*>(at) = make_uint4(v[0], v[1], v[2], v[3]);
        }
      }
    }
  }
};

// The 64 x kN values of a warpgroup, where wgmma leaves sums, from row m0 and column n0 on. They
// are lost.
template <int kN>
RLK_DEVICE void store_values(const Target& to, int m0, int n0, float (&acc)[kN / 2]) {
  if (!packs<kN>(to, n0)) {
    const int lane = thread() % 32;
    const int row = m0 + thread() % 128 / 32 * 16 + lane / 4;
    RLK_UNROLL
    for (int i = 0; i < kN / 2; ++i) {
      store_one(to, row + i / 2 % 2 * 8, n0 + i / 4 * 8 + lane % 4 * 2 + i % 2, acc[i]);
    }
    return;
  }
  if (to.is_f32) {
    turn<kN>(acc);
    for_each_four<kN>(acc, [&](int m, int n, const float4& x) {
      if (m0 + m >= to.m) return;
      float* const at = static_cast<float*>(to.data) + (m0 + m) * to.stride + n0 + n;
      *reinterpret_cast<float4*>(at) =
          make_float4(numerics::canonical_nan(x.x), numerics::canonical_nan(x.y),
                      numerics::canonical_nan(x.z), numerics::canonical_nan(x.w));
    });
    return;
  }
  PackedValues<kN> packed;
  packed.pack(acc);
  packed.store(to, m0, n0);
}

// The last step of a product before it is stored.
template <int kN>
RLK_DEVICE void add_bias(const Product& p, int n0, float (&acc)[kN / 2]) {
  // Without a bias nothing is left to do: the matrix unit makes no -0.
  if (p.bias == nullptr) return;
  RLK_UNROLL
  for (int i = 0; i < kN / 2; ++i) {
    acc[i] = with_bias(p, acc[i], n0 + i / 4 * 8 + thread() % 4 * 2 + i % 2);
  }
}

// Stores the values of a product.
template <int kN>
RLK_DEVICE void store_tile(const Product& p, int m0, int n0, float (&acc)[kN / 2]) {
  add_bias<kN>(p, n0, acc);
  store_values<kN>(target(p), m0, n0, acc);
}

}  // namespace rlk::gpu::sm90
