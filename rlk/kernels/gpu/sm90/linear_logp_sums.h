// Log-sum-exp and its gradient on logits where wgmma leaves them: 64 rows a warpgroup, of which a
// thread holds kN / 4 numbers of two rows.
#pragma once

#include <bit>

#include "rlk/kernels/gpu/gpu.h"
#include "rlk/numerics/log_sum_exp.h"

namespace rlk::gpu::sm90 {

// A term of a logit with |z| < 2^12 in 32-bit operations (see numerics::logit_term).
struct PlainTerm {
  std::int32_t n;
  float f;
  float power;

  RLK_DEVICE explicit PlainTerm(float z) {
    const float t = numerics::fma(z, numerics::kLog2E, numerics::kRoundMagic);
    const float whole = t - numerics::kRoundMagic;
    f = numerics::fma(z, numerics::kLog2ELow, numerics::fma(z, numerics::kLog2E, -whole));
    n = std::bit_cast<std::int32_t>(t) - std::bit_cast<std::int32_t>(numerics::kRoundMagic);
    power = numerics::exp2m(f);
  }

  // q << shift() is significand() * 2^exponent(): power is in [1/2, 2).
  RLK_DEVICE std::uint32_t significand() const {
    return (std::bit_cast<std::uint32_t>(power) & 0x7fffffu) | 0x800000u;
  }
  RLK_DEVICE std::uint32_t exponent() const {
    return (std::bit_cast<std::uint32_t>(power) >> 23) - 126u +
           (static_cast<std::uint32_t>(n) & 15u);
  }
  // numerics::entropy_value without its last shift; below 2^28.
  RLK_DEVICE std::int32_t entropy() const {
    const std::uint32_t u = std::bit_cast<std::uint32_t>(power);
    const auto q = static_cast<std::int32_t>(significand() << ((u >> 23) - 126u));
    const float qf = (power * 0x1p24f) * f;
    const float magic = qf < 0.0f ? -0x1p23f : 0x1p23f;
    const float whole = numerics::abs(qf) < 0x1p23f ? (qf + magic) - magic : qf;
    return q * ((n & 15) - 8) + static_cast<std::int32_t>(whole);
  }
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

  // Of the four lanes that share a row; each gets it.
  RLK_DEVICE void merge_lanes() {
    RLK_UNROLL
    for (int mask = 1; mask <= 2; mask *= 2) {
      const float other = __shfl_xor_sync(~0u, z_max, mask);
      z_max = other > z_max ? other : z_max;
      const std::int32_t other_bin = __shfl_xor_sync(~0u, bin, mask);
      raise_to(other_bin > bin ? other_bin : bin);
      RLK_UNROLL
      for (int i = 0; i < 4; ++i) {
        // The other lane's sums, which are in its own window by now.
        s[i] += __shfl_xor_sync(~0u, s[i], mask);
        if constexpr (kEntropy) e[i] += __shfl_xor_sync(~0u, e[i], mask);
      }
    }
  }
};

// sum += factor * unit where k == i.
RLK_DEVICE void add_where(std::int32_t k, int i, std::uint32_t factor, std::uint32_t unit,
                          std::int64_t& sum) {
  asm("{\n.reg .pred here;\nsetp.eq.s32 here, %1, %2;\n@here mad.wide.u32 %0, %3, %4, %0;\n}"
      : "+l"(sum)
      : "r"(k), "r"(i), "r"(factor), "r"(unit));
}
RLK_DEVICE void add_where(std::int32_t k, int i, std::int32_t factor, std::uint32_t unit,
                          std::int64_t& sum) {
  asm("{\n.reg .pred here;\nsetp.eq.s32 here, %1, %2;\n@here mad.wide.s32 %0, %3, %4, %0;\n}"
      : "+l"(sum)
      : "r"(k), "r"(i), "r"(factor), "r"(static_cast<std::int32_t>(unit)));
}

// The logits of a thread's row h (0 or 1): columns before `limit`, counted as in acc.
template <int kN, bool kEntropy, int h>
RLK_DEVICE PartialSums<kEntropy> sums_of_row(const float (&acc)[kN / 2], float scale, int limit) {
  PartialSums<kEntropy> out;
  bool plain = limit >= kN;
  float z_max = -numerics::kInfinity, z_min = numerics::kInfinity;
  RLK_UNROLL
  for (int j = 0; j < kN / 4; ++j) {
    const float z = acc[j / 2 * 4 + 2 * h + j % 2] * scale;
    plain = plain & (numerics::abs(z) < 0x1p12f);
    z_max = z > z_max ? z : z_max;
    z_min = z < z_min ? z : z_min;
  }
  if (plain) {
    out.z_max = z_max + 0.0f;
    out.bin = PlainTerm(z_max).n >> 4;
    const auto add = [&]<int kBins>() {
      RLK_UNROLL
      for (int j = 0; j < kN / 4; ++j) {
        const PlainTerm term(acc[j / 2 * 4 + 2 * h + j % 2] * scale);
        const std::int32_t k = out.bin - (term.n >> 4);
        const std::uint32_t unit = std::uint32_t{1} << term.exponent();
        RLK_UNROLL
        for (int i = 0; i < kBins; ++i) {
          add_where(k, i, term.significand(), unit, out.s[i]);
          if constexpr (kEntropy) {
            add_where(k, i, term.entropy(), std::uint32_t{1} << (term.n & 15), out.e[i]);
          }
        }
      }
    };
    if (out.bin - (PlainTerm(z_min).n >> 4) < 2) {
      add.template operator()<2>();
    } else {
      add.template operator()<4>();
    }
    return out;
  }
  // The long way, from memory.
  float logits[kN / 4];
  RLK_UNROLL
  for (int j = 0; j < kN / 4; ++j) logits[j] = acc[j / 2 * 4 + 2 * h + j % 2];
  numerics::EntropySumExp sums;
#pragma unroll 1
  for (int j = 0; j < kN / 4; ++j) {
    if (j / 2 * 8 + thread() % 4 * 2 + j % 2 >= limit) continue;
    if (!numerics::is_finite(logits[j])) sums.sum.bad = true;
    sums.add(logits[j] * scale);
  }
  if (sums.sum.any) {
    out.z_max = sums.sum.z_max;
    out.bin = sums.sum.bin;
    for (int i = 0; i < 4; ++i) {
      out.s[i] = sums.sum.s[i];
      if constexpr (kEntropy) out.e[i] = sums.e[i];
    }
  }
  if (sums.sum.bad) out.z_max = numerics::kInfinity;
  return out;
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
      const float power = std::bit_cast<float>((term.n + zero) << 23);
      const float p = term.n >= lowest ? (term.power * row.inverse) * power : 0.0f;
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
