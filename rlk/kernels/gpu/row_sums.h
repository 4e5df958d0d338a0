// The log-sum-exp of a row of logits without filters, in one pass. A thread keeps the sums of four
// bins in registers; numerics/log_sum_exp.h says why any order gives the same bits.
#pragma once

#include <bit>

#include "rlk/kernels/gpu/block_reduce.h"
#include "rlk/kernels/gpu/views.h"
#include "rlk/numerics/log_sum_exp.h"

namespace rlk::gpu {

template <bool kEntropy>
class ThreadSums {
 public:
  RLK_DEVICE explicit ThreadSums(float scale) : scale_(scale) {}

  RLK_DEVICE void add(float logit) {
    const float z = logit * scale_;
    const numerics::LogitStatus status = numerics::classify_logit(z);
    bad_ = bad_ || !numerics::is_finite(logit) || status == numerics::LogitStatus::kNonFinite;
    if (status != numerics::LogitStatus::kOk) return;
    z_max_ = z > z_max_ ? z : z_max_;
    const numerics::LogitTerm term = numerics::logit_term(z);
    raise_to(term.bin());
    add_term(term.n, term.f);
  }

  // The same for N logits, if all are in two neighbouring bins, the window: then f32 and 32-bit
  // integers are enough. Else returns false, and nothing is added.
  template <int N>
  RLK_DEVICE bool add_plain(const float (&logit)[N]) {
    float z[N];
    float t[N];
    std::int32_t least = kZero;
    std::int32_t most = kZero;
    // Of f32 numbers of which one is not negative, the largest is that of their bits.
    std::int32_t z_most = std::bit_cast<std::int32_t>(-numerics::kInfinity);
    RLK_UNROLL
    for (int i = 0; i < N; ++i) {
      z[i] = logit[i] * scale_;
      t[i] = numerics::fma(z[i], numerics::kLog2E, magic_);
      const std::int32_t z_bits = std::bit_cast<std::int32_t>(z[i]);
      z_most = z_bits > z_most ? z_bits : z_most;
      // Far outside of the window, and of a NaN, these bits lie on either side of it.
      const std::int32_t bits = std::bit_cast<std::int32_t>(t[i]);
      least = bits < least ? bits : least;
      most = bits > most ? bits : most;
    }
    if (least < kZero - 16 || most >= kZero + 16) return false;
    float z_max = std::bit_cast<float>(z_most);
    if (z_most < 0) {
      z_max = z[0];
      RLK_UNROLL
      for (int i = 1; i < N; ++i) z_max = z[i] > z_max ? z[i] : z_max;
    }
    z_max_ = z_max > z_max_ ? z_max : z_max_;
    add_in_window(z, t);
    return true;
  }

  // The same where all are below 2^12 in magnitude, in any bins; then the window goes to theirs.
  template <int N>
  RLK_DEVICE bool add_spread(const float (&logit)[N]) {
    float z[N];
    bool plain = true;
    float z_max = -numerics::kInfinity;
    RLK_UNROLL
    for (int i = 0; i < N; ++i) {
      z[i] = logit[i] * scale_;
      plain = plain & (numerics::abs(z[i]) < 0x1p12f);
      z_max = z[i] > z_max ? z[i] : z_max;
    }
    if (!plain) return false;
    z_max_ = z_max > z_max_ ? z_max : z_max_;
    const std::int32_t bin = plain_n(z_max) >> 4;
    raise_to(bin);
    RLK_UNROLL
    for (int i = 0; i < N; ++i) {
      const std::int32_t n = plain_n(z[i]);
      add_term(n, fraction(z[i], static_cast<float>(n)));
    }
    // Where |z| is below 2^12 in both of its bins.
    if (bin != window_ && bin > -366 && bin < 366) {
      leave_window();
      window_ = bin;
      magic_ = numerics::kRoundMagic - static_cast<float>(16 * bin);
    }
    return true;
  }

  // Of all threads of a block; each gets it.
  template <int kThreads>
  RLK_DEVICE numerics::EntropySumExp block_sum(ReduceBytes* shared) {
    constexpr int kWidth = 32;  // threads that exchange among each other
    constexpr int kSums = kEntropy ? 8 : 4;
    static_assert(kSums * kWidth <= kThreads && kSums * 8 <= kMaxReduceBytes);
    leave_window();
    float* const maxima = reinterpret_cast<float*>(shared);
    float z_max = z_max_;
    for (int mask = 1; mask < kWidth; mask *= 2) z_max = larger(z_max, shuffle_xor(z_max, mask));
    if (thread() % kWidth == 0) maxima[thread() / kWidth] = z_max;
    numerics::EntropySumExp out;
    out.sum.bad = barrier_count(bad_) != 0;
    z_max = maxima[0];
    for (int i = 1; i < kThreads / kWidth; ++i) z_max = larger(z_max, maxima[i]);
    out.sum.z_max = z_max + 0.0f;
    out.sum.any = z_max != -numerics::kInfinity;
    if (!out.sum.any) return out;  // an error: nobody writes `shared` again
    out.sum.bin = numerics::logit_term(z_max).bin();
    if (any_) raise_to(out.sum.bin);
    barrier();
    auto* const parts = reinterpret_cast<std::uint64_t*>(shared);
    RLK_UNROLL
    for (int k = 0; k < 4; ++k) {
      parts[k * kThreads + thread()] = static_cast<std::uint64_t>(s_[k]);
      if constexpr (kEntropy) {
        parts[(4 + k) * kThreads + thread()] = static_cast<std::uint64_t>(e_[k]);
      }
    }
    barrier();
    std::uint64_t sum = 0;
    if (thread() < kSums * kWidth) {
      const std::uint64_t* const part = parts + thread() / kWidth * kThreads + thread() % kWidth;
      RLK_UNROLL
      for (int i = 0; i < kThreads / kWidth; ++i) sum += part[i * kWidth];
      for (int mask = 1; mask < kWidth; mask *= 2) sum += exchange(sum, mask);
    }
    barrier();
    if (thread() < kSums * kWidth && thread() % kWidth == 0) parts[thread() / kWidth] = sum;
    barrier();
    RLK_UNROLL
    for (std::size_t k = 0; k < 4; ++k) {
      out.sum.s[k] = static_cast<std::int64_t>(parts[k]);
      if constexpr (kEntropy) out.e[k] = static_cast<std::int64_t>(parts[4 + k]);
    }
    barrier();
    return out;
  }

 private:
  RLK_DEVICE static std::uint64_t exchange(std::uint64_t x, int mask) {
    const auto half = [&](std::uint64_t part) {
      const float bits = std::bit_cast<float>(static_cast<std::uint32_t>(part));
      return std::uint64_t{std::bit_cast<std::uint32_t>(shuffle_xor(bits, mask))};
    };
    return half(x) | half(x >> 32) << 32;
  }
  // What z * log2(e) is above its n.
  RLK_DEVICE static float fraction(float z, float n) {
    return numerics::fma(z, numerics::kLog2ELow, numerics::fma(z, numerics::kLog2E, -n));
  }
  // 2^24 * exp2m(f): every operation is that of exp2m, scaled exactly. Below 2^24.51, an integer.
  RLK_DEVICE static float power_of(float f) {
    return numerics::horner(f, 0x1.665fe4p+11f, 0x1.5fe442p+14f, 0x1.3afb86p+17f, 0x1.c6ad62p+19f,
                            0x1.ebfc18p+21f, 0x1.62e432p+23f, 0x1p24f);
  }
  // numerics::entropy_value before its shift, below 2^28 in magnitude.
  RLK_DEVICE static std::int32_t value_of(std::uint32_t q, float power, float f,
                                          std::int32_t shift) {
    const float qf = power * f;
    const float magic = qf < 0.0f ? -0x1p23f : 0x1p23f;
    const float rint = numerics::abs(qf) < 0x1p23f ? (qf + magic) - magic : qf;
    return static_cast<std::int32_t>(q) * (shift - 8) + static_cast<std::int32_t>(rint);
  }

  // z * log2(e) rounded to an integer, of |z| < 2^12.
  RLK_DEVICE static std::int32_t plain_n(float z) {
    const float t = numerics::fma(z, numerics::kLog2E, numerics::kRoundMagic);
    return std::bit_cast<std::int32_t>(t) - kZero;
  }
  // Adds a term of a bin that is not above bin_.
  RLK_DEVICE void add_term(std::int32_t n, float f) {
    const float power = power_of(f);
    const auto q = static_cast<std::uint32_t>(power);
    const std::uint32_t unit = std::uint32_t{1} << (static_cast<std::uint32_t>(n) & 15u);
    std::int32_t value = 0;
    if constexpr (kEntropy) value = value_of(q, power, f, n & 15);
    const std::int32_t place = bin_ - (n >> 4);
    RLK_UNROLL
    for (int k = 0; k < 4; ++k) {
      const std::uint32_t unit_here = k == place ? unit : 0;
      s_[k] += static_cast<std::int64_t>(std::uint64_t{q} * unit_here);
      if constexpr (kEntropy) e_[k] += std::int64_t{value} * static_cast<std::int32_t>(unit_here);
    }
  }

  // Logits of the window's two bins; t = z * log2(e) + magic_, rounded.
  template <int N>
  RLK_DEVICE void add_in_window(const float (&z)[N], const float (&t)[N]) {
    RLK_UNROLL
    for (int i = 0; i < N; ++i) {
      const float f = fraction(z[i], t[i] - magic_);
      const float power = power_of(f);
      const auto q = static_cast<std::uint32_t>(power);
      // The low five bits of t are 0 .. 15 in the higher bin and 16 .. 31 in the lower one.
      const std::uint32_t bits = std::bit_cast<std::uint32_t>(t[i]);
      const std::uint32_t unit = std::uint32_t{1} << (bits & 31u);
      const std::uint32_t high_unit = unit & 0xffffu;
      const std::uint32_t low_unit = unit >> 16;
      high_ += std::uint64_t{q} * high_unit;
      low_ += std::uint64_t{q} * low_unit;
      if constexpr (kEntropy) {
        const std::int32_t value = value_of(q, power, f, static_cast<std::int32_t>(bits & 15u));
        e_high_ += std::int64_t{value} * static_cast<std::int32_t>(high_unit);
        e_low_ += std::int64_t{value} * static_cast<std::int32_t>(low_unit);
      }
    }
  }

  // Adds the window's sums to the four bins.
  RLK_DEVICE void leave_window() {
    if ((high_ | low_) == 0) return;
    raise_to(high_ != 0 ? window_ : window_ - 1);
    const std::int32_t place = bin_ - window_;  // of the higher bin; -1 where it is empty
    RLK_UNROLL
    for (int k = 0; k < 4; ++k) {
      s_[k] += static_cast<std::int64_t>((k == place ? high_ : 0) + (k == place + 1 ? low_ : 0));
      if constexpr (kEntropy) {
        e_[k] += (k == place ? e_high_ : 0) + (k == place + 1 ? e_low_ : 0);
      }
    }
    high_ = low_ = 0;
    e_high_ = e_low_ = 0;
  }

  RLK_DEVICE void raise_to(std::int32_t bin) {
    if (any_ && bin <= bin_) return;
    if (!any_) bin_ = bin;
    any_ = true;
    // Four steps empty all bins; the rest of the way needs none.
    for (int step = 0; step < 4 && bin_ < bin; ++step) {
      RLK_UNROLL
      for (int i = 3; i > 0; --i) {
        s_[i] = s_[i - 1];
        if constexpr (kEntropy) e_[i] = e_[i - 1];
      }
      s_[0] = 0;
      e_[0] = 0;
      ++bin_;
    }
    if (bin_ < bin) bin_ = bin;
  }

  static constexpr std::int32_t kZero = std::bit_cast<std::int32_t>(numerics::kRoundMagic);

  float scale_;
  float z_max_ = -numerics::kInfinity;

  // The window: sums of bins window_ and window_ - 1 that are not in s_ yet.
  std::int32_t window_ = 0;
  float magic_ = numerics::kRoundMagic;  // kRoundMagic - 16 * window_, exact
  std::uint64_t high_ = 0;
  std::uint64_t low_ = 0;
  std::int64_t e_high_ = 0;
  std::int64_t e_low_ = 0;

  std::int32_t bin_ = 0;
  bool any_ = false;
  bool bad_ = false;
  std::int64_t s_[4] = {0, 0, 0, 0};
  std::int64_t e_[4] = {0, 0, 0, 0};
};

// Of a row, by a block of kThreads; each thread gets it. Without kEntropy its e is not there.
template <bool kEntropy, int kThreads>
RLK_DEVICE numerics::EntropySumExp row_sums(const float* logits, std::int64_t stride,
                                            std::int64_t vocab_size, float scale,
                                            ReduceBytes* shared) {
  constexpr int kPack = 4;
  constexpr int kPlain = 2;  // packs that are added together
  constexpr int kStep = kThreads * kPack;
  ThreadSums<kEntropy> sums(scale);
  const int n = static_cast<int>(vocab_size);  // at most 2^20
  int j = thread() * kPack;
  const auto add_packs = [&]<int kParts>() {
    Pack<float, kPack> pack[kParts][kPlain];
    RLK_UNROLL
    for (int i = 0; i < kParts * kPlain; ++i) {
      pack[i / kPlain][i % kPlain] = Pack<float, kPack>::read(logits + j + i * kStep);
    }
    unsigned left = 0;  // parts that are not plain
    RLK_UNROLL
    for (int part = 0; part < kParts; ++part) {
      float x[kPlain * kPack];
      RLK_UNROLL
      for (int i = 0; i < kPlain; ++i) {
        float four[kPack];
        pack[part][i].get(four);
        RLK_UNROLL
        for (int l = 0; l < kPack; ++l) x[i * kPack + l] = four[l];
      }
      left |= sums.add_plain(x) || sums.add_spread(x) ? 0u : 1u << part;
    }
    if (left == 0) return;
    // Rare; it reads again, so that what was read can stay in registers.
    for (int i = 0; i < kParts * kPlain * kPack; ++i) {
      if ((left >> i / (kPlain * kPack) & 1u) == 0) continue;
      sums.add(logits[j + i / kPack * kStep + i % kPack]);
    }
  };
  if (stride == 1 && reinterpret_cast<std::uintptr_t>(logits) % sizeof(Pack<float, kPack>) == 0) {
    for (; j + 3 * kStep + kPack <= n; j += 4 * kStep) add_packs.template operator()<2>();
    for (; j + kStep + kPack <= n; j += 2 * kStep) add_packs.template operator()<1>();
  }
  for (; j < n; j += kStep) {
    for (int i = 0; i < kPack && j + i < n; ++i) sums.add(logits[(j + i) * stride]);
  }
  return sums.template block_sum<kThreads>(shared);
}

}  // namespace rlk::gpu
