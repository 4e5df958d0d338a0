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
    const numerics::LogitTerm term = numerics::logit_term(z);
    raise_to(term.bin());
    z_max_ = z > z_max_ ? z : z_max_;
    const std::int64_t k = std::int64_t{bin_} - term.bin();
    RLK_UNROLL
    for (int i = 0; i < 4; ++i) {
      if (k != i) continue;
      s_[i] += term.q << term.shift();
      if constexpr (kEntropy) e_[i] += numerics::entropy_value(term);
    }
  }

  // The same for N logits, if all are below 2^12 and in no higher bin than the ones before: then
  // f32 and 32-bit integers are enough. Else returns false, and nothing is added.
  template <int N>
  RLK_DEVICE bool add_plain(const float (&logit)[N]) {
    bool plain = true;
    float z_max = z_max_, z_min = numerics::kInfinity;
    RLK_UNROLL
    for (int i = 0; i < N; ++i) {
      const float z = logit[i] * scale_;
      plain = plain & (numerics::abs(z) < 0x1p12f);
      z_max = z > z_max ? z : z_max;
      z_min = z < z_min ? z : z_min;
    }
    if (!plain) return false;
    z_max_ = z_max;
    raise_to(n_of(rounded(z_max)) >> 4);
    const std::int32_t below = bin_ - (n_of(rounded(z_min)) >> 4);
    if (below <= 1) {
      add_all<2>(logit);
    } else {
      add_all<4>(logit);
    }
    return true;
  }

  RLK_DEVICE numerics::EntropySumExp result() const {
    numerics::EntropySumExp out;
    out.sum.z_max = z_max_ + 0.0f;
    out.sum.any = any_;
    out.sum.bad = bad_;
    out.sum.bin = bin_;
    RLK_UNROLL
    for (std::size_t i = 0; i < 4; ++i) {
      out.sum.s[i] = s_[i];
      out.e[i] = e_[i];
    }
    return out;
  }

 private:
  // n + kRoundMagic, whose low bits are n.
  RLK_DEVICE static float rounded(float z) {
    return numerics::fma(z, numerics::kLog2E, numerics::kRoundMagic);
  }
  RLK_DEVICE static std::int32_t n_of(float t) {
    return std::bit_cast<std::int32_t>(t) - std::bit_cast<std::int32_t>(numerics::kRoundMagic);
  }

  // Plain logits of which all are in the highest kBins bins, or with kBins = 4 below the window.
  // numerics::logit_term and entropy_value without 64-bit operations.
  template <int kBins, int N>
  RLK_DEVICE void add_all(const float (&logit)[N]) {
    static_assert(kBins == 2 || kBins == 4);
    std::int64_t both = 0, highest = 0;
    RLK_UNROLL
    for (int j = 0; j < N; ++j) {
      const float z = logit[j] * scale_;
      const float t = rounded(z);
      const float whole = t - numerics::kRoundMagic;
      const float f =
          numerics::fma(z, numerics::kLog2ELow, numerics::fma(z, numerics::kLog2E, -whole));
      const float power = numerics::exp2m(f);
      // power is in [1/2, 2), so 2^24 * power is its significand, once or twice.
      const std::uint32_t u = std::bit_cast<std::uint32_t>(power);
      const std::uint32_t significand = (u & 0x7fffffu) | 0x800000u;
      const std::uint32_t twice = (u >> 23) - 126u;
      const std::int32_t n = n_of(t);
      const std::uint32_t shift = static_cast<std::uint32_t>(n) & 15u;
      const std::int32_t k = bin_ - (n >> 4);
      const std::uint32_t unit = std::uint32_t{1} << (shift + twice);
      if constexpr (kBins == 2) {
        both += static_cast<std::int64_t>(std::uint64_t{significand} * unit);
        highest += static_cast<std::int64_t>(std::uint64_t{significand} * (k == 0 ? unit : 0));
      } else {
        RLK_UNROLL
        for (int i = 0; i < 4; ++i) {
          s_[i] += static_cast<std::int64_t>(std::uint64_t{significand} * (k == i ? unit : 0));
        }
      }
      if constexpr (kEntropy) {
        const float qf = (power * 0x1p24f) * f;
        const float magic = qf < 0.0f ? -0x1p23f : 0x1p23f;
        const float rint = numerics::abs(qf) < 0x1p23f ? (qf + magic) - magic : qf;
        const std::int32_t value =  // below 2^28
            static_cast<std::int32_t>(significand << twice) *
                (static_cast<std::int32_t>(shift) - 8) +
            static_cast<std::int32_t>(rint);
        const std::int32_t factor = std::int32_t{1} << shift;
        RLK_UNROLL
        for (int i = 0; i < kBins; ++i) e_[i] += std::int64_t{value} * (k == i ? factor : 0);
      }
    }
    if constexpr (kBins == 2) {
      s_[0] += highest;
      s_[1] += both - highest;
    }
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

  float scale_;
  float z_max_ = -numerics::kInfinity;
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
  constexpr int kInFlight = 4;  // packs of a thread
  ThreadSums<kEntropy> sums(scale);
  const int n = static_cast<int>(vocab_size);  // at most 2^20
  int j = thread() * kPack;
  // The long way is rare; it reads again, so that what was read can stay in registers.
  const auto add_packs = [&]<int kPacks>() {
    float x[kPacks * kPack];
    RLK_UNROLL
    for (int i = 0; i < kPacks; ++i) {
      float pack[kPack];
      Pack<float, kPack>::read(logits + j + i * kThreads * kPack).get(pack);
      RLK_UNROLL
      for (int l = 0; l < kPack; ++l) x[i * kPack + l] = pack[l];
    }
    if (sums.add_plain(x)) return;
    for (int i = 0; i < kPacks * kPack; ++i) {
      sums.add(logits[j + i / kPack * kThreads * kPack + i % kPack]);
    }
  };
  if (stride == 1 && reinterpret_cast<std::uintptr_t>(logits) % sizeof(Pack<float, kPack>) == 0) {
    constexpr int kStep = kThreads * kPack;
    for (; j + (kInFlight - 1) * kStep + kPack <= n; j += kInFlight * kStep) {
      add_packs.template operator()<kInFlight>();
    }
    for (; j + kPack <= n; j += kStep) add_packs.template operator()<1>();
  }
  for (; j < n; j += kThreads * kPack) {
    for (int i = 0; i < kPack && j + i < n; ++i) sums.add(logits[(j + i) * stride]);
  }
  return block_reduce<kThreads>(sums.result(), shared,
                                [](numerics::EntropySumExp a, const numerics::EntropySumExp& b) {
                                  a.merge(b);
                                  return a;
                                });
}

}  // namespace rlk::gpu
