// The softmax of attention_prefill, for the scores as Wgmma leaves them: a thread has rows r and
// r + 8 of 64 and of every 8 columns its 2. Lanes of l are columns mod 16: four whole ones.
//
// What is here runs one instruction a clock only while registers are left over to work on several
// scores at a time: nothing that could be an immediate may be kept.
#pragma once

#include <bit>
#include <cstdint>

#include "rlk/kernels/gpu/gpu.h"
#include "rlk/numerics/math.h"

namespace rlk::gpu::sm90 {

// m and the lanes of l of one query in one split.
struct SoftmaxRow {
  float m;
  float lane[4];
};

// Where score i of a thread's 32 of row h lies, and its column, counted from the thread's first.
RLK_DEVICE constexpr int score_at(int i, int h) { return i / 2 * 4 + h * 2 + i % 2; }
RLK_DEVICE constexpr int score_column(int i) { return i / 2 * 8 + i % 2; }
// Its lane of l.
RLK_DEVICE constexpr int score_lane(int i) { return i % 4; }

RLK_DEVICE int score_bits(const float (&s)[64], int i, int h) {
  return std::bit_cast<int>(s[score_at(i, h)]);
}

// The row goes on with maximum m; a is what o has to be multiplied by. Returns -m.
RLK_DEVICE float begin_block(SoftmaxRow& row, float m, float& a, bool& in_range) {
  // Without a visible key so far m is -inf, and nothing below changes o or l, which are +0.
  const float minus_m = m == -numerics::kInfinity ? 0.0f : -m;
  if (!(numerics::abs(minus_m) < 0x1p22f)) in_range = false;
  a = numerics::exp2p(row.m + minus_m);
  row.m = m;
  RLK_UNROLL
  for (float& lane : row.lane) lane = lane * a;
  return minus_m;
}

// Scores s of 64 queries become terms e; a[h] is what o has to be multiplied by. limit[h]: columns
// below it are visible to row h.
RLK_DEVICE void softmax_masked(float (&s)[64], SoftmaxRow (&row)[2], float (&a)[2], float c,
                               const int (&limit)[2], bool (&in_range)[2]) {
  constexpr int kMaxima = 4;  // side by side: one alone would be a chain of 32
  RLK_UNROLL
  for (int h = 0; h < 2; ++h) {
    float maxima[kMaxima];
    RLK_UNROLL
    for (float& x : maxima) x = -numerics::kInfinity;
    RLK_UNROLL
    for (int i = 0; i < 32; ++i) {
      float& x = maxima[i % kMaxima];
      if (score_column(i) < limit[h]) x = fmaxf(x, s[score_at(i, h)]);
    }
    float max_s = fmaxf(fmaxf(maxima[0], maxima[1]), fmaxf(maxima[2], maxima[3]));
    max_s = fmaxf(max_s, shuffle_xor(max_s, 1));
    max_s = fmaxf(max_s, shuffle_xor(max_s, 2));
    const float minus_m = begin_block(row[h], fmaxf(row[h].m, c * max_s), a[h], in_range[h]);
    RLK_UNROLL
    for (int i = 0; i < 32; ++i) {
      float& x = s[score_at(i, h)];
      x = numerics::exp2p(numerics::fma(x, c, minus_m));
      if (score_column(i) >= limit[h]) x = 0.0f;
      float& lane = row[h].lane[score_lane(i)];
      lane = lane + x;
    }
  }
}

// exp2p of x > -126; t = x + M.
RLK_DEVICE float exp2p_unclamped(float x, float t) {
  const float p = numerics::horner(x - (t - numerics::kRoundMagic), numerics::kExp2p4,
                                   numerics::kExp2p3, numerics::kExp2p2, numerics::kExp2p1, 1.0f);
  return std::bit_cast<float>(std::bit_cast<std::uint32_t>(p) +
                              (std::bit_cast<std::uint32_t>(t) << 23));
}

// m of row h with all of s, and whether all exponents will be above -126. Both come from scores as
// integers, three at a time: the largest signed one is the maximum if any is positive, and the
// largest unsigned one the minimum if any is negative.
RLK_DEVICE bool find_extremes(const float (&s)[64], int h, float c, float m, float& new_m) {
  int high[2];
  unsigned low[2];
  RLK_UNROLL
  for (int k = 0; k < 2; ++k) {  // side by side
    high[k] = score_bits(s, k, h);
    low[k] = static_cast<unsigned>(high[k]);
    RLK_UNROLL
    for (int i = 2 + 2 * k; i < 32; i += 4) {
      const int x = score_bits(s, i, h), y = score_bits(s, i + 1, h);
      high[k] = __vimax3_s32(high[k], x, y);
      low[k] = __vimax3_u32(low[k], static_cast<unsigned>(x), static_cast<unsigned>(y));
    }
  }
  float top = std::bit_cast<float>(max(high[0], high[1]));
  top = std::bit_cast<float>(max(std::bit_cast<int>(top), std::bit_cast<int>(shuffle_xor(top, 1))));
  top = std::bit_cast<float>(max(std::bit_cast<int>(top), std::bit_cast<int>(shuffle_xor(top, 2))));
  new_m = fmaxf(m, c * top);
  const float bottom = fminf(std::bit_cast<float>(max(low[0], low[1])), 0.0f);
  // Of negative scores alone top is not the maximum; then m must not need it.
  const bool is_maximum = (std::bit_cast<int>(top) >= 0) | (m >= 0.0f);
  return is_maximum & (numerics::fma(bottom, c, -new_m) > -126.0f);
}

// softmax_masked where all columns are visible (`whole`) and no exponent has to be clamped. False:
// it is otherwise for a row of the warp; nothing was done.
//
// zero is 0, which the compiler does not know.
RLK_DEVICE bool softmax_plain(bool whole, float (&s)[64], SoftmaxRow (&row)[2], float (&a)[2],
                              float c, std::uint32_t zero, bool (&in_range)[2]) {
  float m[2], minus_m[2];
  RLK_UNROLL
  for (int h = 0; h < 2; ++h) whole = whole & find_extremes(s, h, c, row[h].m, m[h]);
  if (!__all_sync(~0u, whole)) return false;
  RLK_UNROLL
  for (int h = 0; h < 2; ++h) minus_m[h] = begin_block(row[h], m[h], a[h], in_range[h]);
  constexpr int kTogether = 16;
  std::uint32_t started = 0;
  RLK_UNROLL
  for (int i0 = 0; i0 < 64; i0 += kTogether) {
    const int h = i0 / 32;
    // The next scores wait for the last of these to have its n. Left alone the compiler works on
    // all 64 at a time, and float operations without a gap leave wgmma no turn at the registers.
    const float from =
        std::bit_cast<float>((started & zero) ^ std::bit_cast<std::uint32_t>(minus_m[h]));
    RLK_UNROLL
    for (int i = i0 % 32; i < i0 % 32 + kTogether; ++i) {
      float& x = s[score_at(i, h)];
      x = numerics::fma(x, c, from);
      const float t = x + numerics::kRoundMagic;
      started = std::bit_cast<std::uint32_t>(t);
      x = exp2p_unclamped(x, t);
      float& lane = row[h].lane[score_lane(i)];
      lane = lane + x;
    }
  }
  return true;
}

// l of a split: the neighbour tree of 16 lanes, which 4 threads hold.
RLK_DEVICE float lane_tree(const float (&lane)[4]) {
  float low = lane[0] + lane[1];
  float high = lane[2] + lane[3];
  low = low + shuffle_xor(low, 1);
  high = high + shuffle_xor(high, 1);
  low = low + shuffle_xor(low, 2);
  high = high + shuffle_xor(high, 2);
  return low + high + 0.0f;
}

// y = bf16(o / l) of row h, 2 columns of every 8.
template <int kD>
RLK_DEVICE void store_quotients(bf16* y, const float (&o)[kD / 2], int h, float l) {
  const auto at = [&](int i) { return o[i / 2 * 4 + h * 2 + i % 2]; };
  float smallest[4];
  RLK_UNROLL
  for (int i = 0; i < 4; ++i) smallest[i] = numerics::abs(at(i));
  RLK_UNROLL
  for (int i = 4; i < kD / 4; ++i) smallest[i % 4] = fminf(smallest[i % 4], numerics::abs(at(i)));
  const float least = fminf(fminf(smallest[0], smallest[1]), fminf(smallest[2], smallest[3]));
  auto* const pairs = reinterpret_cast<std::uint32_t*>(y);
  // From the rounded inverse two steps give the rounded quotient (Markstein), if the remainders are
  // exact. Divisions one by one would take longer than a block of keys.
  if (least > 0x1p-60f && l < 0x1p40f) {
    const float inverse = 1.0f / l;
    const auto quotient = [&](float x) {
      float ratio = x * inverse;
      ratio = numerics::fma(numerics::fma(-l, ratio, x), inverse, ratio);
      return numerics::fma(numerics::fma(-l, ratio, x), inverse, ratio);
    };
    RLK_UNROLL
    for (int i = 0; i < kD / 8; ++i) {
      pairs[4 * i] = bf16_pair(quotient(at(2 * i)), quotient(at(2 * i + 1)));
    }
  } else {
    RLK_UNROLL
    for (int i = 0; i < kD / 8; ++i) {
      pairs[4 * i] = bf16_pair(at(2 * i) / l + 0.0f, at(2 * i + 1) / l + 0.0f);
    }
  }
}

}  // namespace rlk::gpu::sm90
