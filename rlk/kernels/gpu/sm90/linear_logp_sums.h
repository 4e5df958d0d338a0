// Log-sum-exp and its gradient on logits where wgmma leaves them: 64 rows a warpgroup, of which a
// thread holds kN / 4 numbers of two rows.
#pragma once

#include <bit>

#include "rlk/kernels/gpu/gpu.h"
#include "rlk/numerics/log_sum_exp.h"

namespace rlk::gpu::sm90 {

// A term of a logit with |z| < 2^12 in 32-bit operations (see numerics::logit_term).
struct PlainTerm {
  float t;  // n + kRoundMagic
  float f;

  RLK_DEVICE explicit PlainTerm(float z) {
    t = numerics::fma(z, numerics::kLog2E, numerics::kRoundMagic);
    const float whole = t - numerics::kRoundMagic;
    f = numerics::fma(z, numerics::kLog2ELow, numerics::fma(z, numerics::kLog2E, -whole));
  }
  RLK_DEVICE std::int32_t n() const {
    return std::bit_cast<std::int32_t>(t) - std::bit_cast<std::int32_t>(numerics::kRoundMagic);
  }
  RLK_DEVICE float power() const { return numerics::exp2m(f); }
};

// What a part of a row adds up to. Words as in kLogprobStateWords, then the entropy sums.
template <bool kEntropy>
struct PartialSums {
  static constexpr std::int32_t kNoBin = -(1 << 30);
  float z_max = -numerics::kInfinity;  // +inf: a logit that is an error; -inf: none takes part
  std::int32_t bin = kNoBin;
  std::int64_t s[4] = {0, 0, 0, 0};
  std::int64_t e[kEntropy ? 4 : 1] = {0};

  // Moves the window up to bin `b`.
  RLK_DEVICE void raise_to(std::int32_t b) {
    const std::int32_t up = b - bin;
    if (up == 0) return;
    RLK_UNROLL
    for (int i = 3; i >= 0; --i) {
      std::int64_t sum = 0, entropy = 0;
      RLK_UNROLL
      for (int j = 0; j < i; ++j) {
        if (j + up == i) {
          sum = s[j];
          if constexpr (kEntropy) entropy = e[j];
        }
      }
      s[i] = sum;
      if constexpr (kEntropy) e[i] = entropy;
    }
    bin = b;
  }
};

// A row while its tiles come one after the other; in shared memory.
template <bool kEntropy>
struct GrowingRow {
  PartialSums<kEntropy> sums;
  float scale;
  std::int32_t target;
};

// 2^k, or 0 outside of 0 <= k < 32.
RLK_DEVICE std::uint32_t unit(std::int32_t k) {
  std::uint32_t x;
  asm("shl.b32 %0, 1, %1;" : "=r"(x) : "r"(k));
  return x;
}

// Sums of numbers below 2^32, each times a power of two, in four bins of 16 powers, the highest
// first. Of two neighbouring bins one sum is kept in units of the lower one: 64 bits that hold the
// one-hot power of a term have the units of bins 2 and 3 below, those of 0 and 1 above and those of
// 1 and 2 in the middle, and no term need be compared with the bounds of a bin. All is modulo 2^64.
struct NeighbourSums {
  std::uint64_t in_0 = 0, in_01 = 0, in_12 = 0, in_23 = 0;

  struct Units {
    std::uint32_t in_0, in_01, in_12, in_23;
    // of 2^k, counted from the lowest power of the lowest bin
    RLK_DEVICE explicit Units(std::int32_t k) {
      in_23 = unit(k);
      in_01 = unit(k - 32);
      in_12 = __byte_perm(in_23, in_01, 0x5432);
      in_0 = in_01 >> 16;
    }
  };
  RLK_DEVICE void add(std::uint32_t x, const Units& units) {
    in_0 += std::uint64_t{x} * units.in_0;
    in_01 += std::uint64_t{x} * units.in_01;
    in_12 += std::uint64_t{x} * units.in_12;
    in_23 += std::uint64_t{x} * units.in_23;
  }
  RLK_DEVICE void get(std::int64_t (&bins)[4]) const {
    const std::uint64_t s1 = in_01 - (in_0 << 16), s2 = in_12 - (s1 << 16);
    bins[0] = static_cast<std::int64_t>(in_0);
    bins[1] = static_cast<std::int64_t>(s1);
    bins[2] = static_cast<std::int64_t>(s2);
    bins[3] = static_cast<std::int64_t>(in_23 - (s2 << 16));
  }
};

// Of the four lanes that share a row, lane q gets the sum of all their s[q].
RLK_DEVICE std::int64_t sum_of_lanes(const std::int64_t (&s)[4]) {
  const bool high = thread() % 4 >= 2, odd = thread() % 2 != 0;
  const std::int64_t a = (high ? s[2] : s[0]) + __shfl_xor_sync(~0u, high ? s[0] : s[2], 2);
  const std::int64_t b = (high ? s[3] : s[1]) + __shfl_xor_sync(~0u, high ? s[1] : s[3], 2);
  return (odd ? b : a) + __shfl_xor_sync(~0u, odd ? a : b, 1);
}
// One instruction; the one that is no NaN, and of two zeros either.
RLK_DEVICE float largest(float a, float b) {
  float x;
  asm("max.f32 %0, %1, %2;" : "=f"(x) : "f"(a), "f"(b));
  return x;
}
RLK_DEVICE float largest_of_lanes(float x) {
  RLK_UNROLL
  for (int mask = 1; mask <= 2; mask *= 2) x = largest(x, __shfl_xor_sync(~0u, x, mask));
  return x;
}

// Adds the logits of a thread's row h (0 or 1) of the sums of wgmma, columns before `limit` counted
// as in acc, to the row. By whole warps. The logits become z.
template <int kN, bool kEntropy, int h>
RLK_DEVICE void add_to_row(float (&acc)[kN / 2], int limit, GrowingRow<kEntropy>& row) {
  const auto at = [](int j) { return j / 2 * 4 + 2 * h + j % 2; };
  const float scale = row.scale;
  float zero = 0.0f;  // NaN with a logit that is not finite
  PartialSums<kEntropy> own;
  RLK_UNROLL
  for (int j = 0; j < kN / 4; ++j) {
    float& z = acc[at(j)];
    zero = numerics::fma(z, 0.0f, zero);
    z = z * scale;
    own.z_max = largest(own.z_max, z);
  }
  own.z_max = largest_of_lanes(own.z_max);
  own.bin = PlainTerm(own.z_max).n() >> 4;
  if (row.sums.bin > own.bin) own.bin = row.sums.bin;
  // A z of -2^12 or less is below the four bins then, and its t below theirs.
  const bool plain = limit >= kN && zero == 0.0f && own.z_max < 0x1p12f && own.z_max > -0x1p11f;
  if (__all_sync(~0u, plain)) {
    const auto lowest = std::bit_cast<std::uint32_t>(numerics::kRoundMagic) +
                        16 * static_cast<std::uint32_t>(own.bin - 3);
    NeighbourSums s, e;
    RLK_UNROLL
    for (int j = 0; j < kN / 4; ++j) {
      const PlainTerm term(acc[at(j)]);
      const float q = term.power() * 0x1p24f;
      const auto k = static_cast<std::int32_t>(std::bit_cast<std::uint32_t>(term.t) - lowest);
      const NeighbourSums::Units units(k);
      s.add(static_cast<std::uint32_t>(q), units);
      if constexpr (kEntropy) {
        // numerics::entropy_value and 9 q more, which is positive.
        const std::int32_t x =
            static_cast<std::int32_t>(q) * ((k & 15) + 1) + __float2int_rn(q * term.f);
        e.add(static_cast<std::uint32_t>(x), units);
      }
    }
    s.get(own.s);
    if constexpr (kEntropy) {
      e.get(own.e);
      RLK_UNROLL
      for (int i = 0; i < 4; ++i) own.e[i] -= 9 * own.s[i];
    }
  } else {
    // The long way, from memory.
    float z[kN / 4];
    RLK_UNROLL
    for (int j = 0; j < kN / 4; ++j) z[j] = acc[at(j)];
    numerics::EntropySumExp sums;
    sums.sum.bad = zero != 0.0f;  // columns from `limit` on are 0
#pragma unroll 1
    for (int j = 0; j < kN / 4; ++j) {
      if (j / 2 * 8 + thread() % 4 * 2 + j % 2 < limit) sums.add(z[j]);
    }
    own = {};
    if (sums.sum.any) {
      own.z_max = sums.sum.z_max;
      own.bin = sums.sum.bin;
      for (int i = 0; i < 4; ++i) {
        own.s[i] = sums.sum.s[i];
        if constexpr (kEntropy) own.e[i] = sums.e[i];
      }
    }
    if (sums.sum.bad) own.z_max = numerics::kInfinity;
    own.z_max = largest_of_lanes(own.z_max);
    std::int32_t bin = own.bin > row.sums.bin ? own.bin : row.sums.bin;
    RLK_UNROLL
    for (int mask = 1; mask <= 2; mask *= 2) {
      const std::int32_t other = __shfl_xor_sync(~0u, bin, mask);
      bin = other > bin ? other : bin;
    }
    own.raise_to(bin);
  }
  // Lane q adds bin q.
  const int q = thread() % 4;
  const std::int32_t up = own.bin - row.sums.bin;
  std::int64_t s = sum_of_lanes(own.s), e = 0;
  if (q >= up) s += row.sums.s[q - up];
  if constexpr (kEntropy) {
    e = sum_of_lanes(own.e);
    if (q >= up) e += row.sums.e[q - up];
  }
  __syncwarp();
  row.sums.s[q] = s;
  if constexpr (kEntropy) row.sums.e[q] = e;
  if (q == 0) {
    row.sums.bin = own.bin;
    if (own.z_max > row.sums.z_max) row.sums.z_max = own.z_max + 0.0f;
  }
}

// What backward needs of a row.
struct RowEnd {
  bool used;  // else its dlogits are +0
  std::int32_t target;
  std::int32_t bin;
  float scale, inverse, g;
  float g_entropy, entropy;
  double z_max, c;
};

// logprob_backward of one logit.
RLK_DEVICE float dlogit(const RowEnd& row, float logit, bool is_target) {
  const float z = logit * row.scale;
  numerics::LogSumExpEnd end;
  end.bin = row.bin;
  end.inverse = row.inverse;
  end.z_max = static_cast<float>(row.z_max);
  end.c = row.c;
  if (numerics::classify_logit(z) != numerics::LogitStatus::kOk) return 0.0f;
  const float p = end.p(z);
  float dz = ((is_target ? 1.0f : 0.0f) - p) * row.g;
  if (row.g_entropy != 0.0f) dz = dz - (p * (end.logp(z) + row.entropy)) * row.g_entropy;
  return dz * row.scale;
}

// The logits of a thread's row h become dlogits.
template <int kN, int h>
RLK_DEVICE void dlogits_of_row(const RowEnd& row, int n0, int limit, float (&acc)[kN / 2]) {
  const auto at = [](int j) { return j / 2 * 4 + 2 * h + j % 2; };
  const int target = row.target - n0 - thread() % 4 * 2;  // in this thread's columns
  bool plain = row.used && limit >= kN && row.g_entropy == 0.0f;
  RLK_UNROLL
  for (int j = 0; j < kN / 4; ++j) {
    plain = plain & (numerics::abs(acc[at(j)] * row.scale) < 0x1p12f);
  }
  if (plain) {
    const std::int32_t lowest = (row.bin - 3) * 16;
    const std::int32_t zero = 127 - 16 * row.bin;
    RLK_UNROLL
    for (int j = 0; j < kN / 4; ++j) {
      const PlainTerm term(acc[at(j)] * row.scale);
      const float power = std::bit_cast<float>((term.n() + zero) << 23);
      const float p = term.n() >= lowest ? (term.power() * row.inverse) * power : 0.0f;
      acc[at(j)] = (((target == j / 2 * 8 + j % 2 ? 1.0f : 0.0f) - p) * row.g) * row.scale;
    }
    return;
  }
  float x[kN / 4];
  RLK_UNROLL
  for (int j = 0; j < kN / 4; ++j) x[j] = acc[at(j)];
#pragma unroll 1
  for (int j = 0; j < kN / 4; ++j) {
    const int column = j / 2 * 8 + j % 2;
    const bool in = row.used && column + thread() % 4 * 2 < limit;
    x[j] = in ? dlogit(row, x[j], target == column) : 0.0f;
  }
  RLK_UNROLL
  for (int j = 0; j < kN / 4; ++j) acc[at(j)] = x[j];
}

}  // namespace rlk::gpu::sm90
