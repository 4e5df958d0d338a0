// The order-free log-sum-exp of one row of logits (section 5 of the contract). The sum of
// exponentials is an integer, so tiles, chunks and ranks may be added and merged in any order and
// any split gives the same bits.
//
//   LogSumExp sum;
//   for (float z : row) sum.add(z);        // or several sums, then sum.merge(other)
//   if (sum.status() != LogitStatus::kOk) ...
//   const LogSumExpEnd end(sum);
//   end.logp(z_target), end.p(z), end.lse, end.entropy(sums)
//
// Why any order gives the same state: z_max and B are maxima. A term of bin b is dropped exactly
// when a bin B' > b + 3 has been seen; B' never exceeds the B of the whole row, so a term inside
// the final window B-3..B is never dropped, and a term below it is dropped at the latest when the
// final B arrives, because sums are kept for four bins only. What is kept are integers, added
// exactly. Why int64 is enough for V <= 2^20: q <= 2^24 * 2^0.501 < 2^24.51, shifted by at most 15
// bits and added 2^20 times stays below 2^59.51. Entropy: |q*((n&15)-8) + rint(q*f)| is largest at
// n&15 = 15 (7.501 q; at n&15 = 0 it is 8.501 q, but unshifted), so its sum stays below
// 2^(2.91+59.51) = 2^62.42.
#pragma once

#include <array>
#include <cstdint>

#include "rlk/numerics/f64_math.h"
#include "rlk/numerics/math.h"

namespace rlk::numerics {

inline constexpr std::int64_t kMaxVocab = std::int64_t{1} << 20;

// What a logit, or a whole row, is. Larger wins when sums are merged.
enum class LogitStatus : std::uint8_t {
  kMasked,  // a logit: -inf or below -2^30, takes no part; a row: nothing took part (an error)
  kOk,
  kNonFinite,  // NaN, +inf or above 2^30: an error
};

RLK_HD inline LogitStatus classify_logit(float z) {
  if (z < -0x1p30f) return LogitStatus::kMasked;
  if (z <= 0x1p30f) return LogitStatus::kOk;
  return LogitStatus::kNonFinite;  // NaN compares false above
}

// e^z = P(f) * 2^n with q = 2^24 * P(f) an integer; for logits that take part.
struct LogitTerm {
  std::int32_t n;
  float f;
  float power;     // P(f)
  std::int64_t q;  // below 2^24.51

  RLK_HD int bin() const { return n >> 4; }
  RLK_HD int shift() const { return n & 15; }
};

RLK_HD inline LogitTerm logit_term(float z) {
  LogitTerm term;
  if (abs(z) < 0x1p12f) {
    const float n = fma(z, kLog2E, kRoundMagic) - kRoundMagic;
    term.f = fma(z, kLog2ELow, fma(z, kLog2E, -n));
    term.n = static_cast<std::int32_t>(n);
  } else {
    const double x = static_cast<double>(z) * 0x1.71547652b82fep+0;
    const double n = (x + 0x1.8p52) - 0x1.8p52;  // rint
    term.f = static_cast<float>(x - n);
    term.n = static_cast<std::int32_t>(n);
  }
  term.power = exp2m(term.f);
  term.q = static_cast<std::int64_t>(term.power * 0x1p24f);
  return term;
}

// The integer sums of four bins, [0] the highest.
using BinSums = std::array<std::int64_t, 4>;

// Moves the window up by `bins` > 0; what falls out at the low end is dropped. (Here and below a
// bin is found by comparing, not by an index: arrays with constant indices alone stay in a GPU's
// registers.)
RLK_HD inline void shift_bins(BinSums* sums, std::int64_t bins) {
  for (std::int64_t i = bins < 4 ? bins : 4; i > 0; --i) {
    for (int k = 3; k > 0; --k) (*sums)[k] = (*sums)[k - 1];
    (*sums)[0] = 0;
  }
}

// ((x3*2^-16 + x2)*2^-16 + x1)*2^-16 + x0
RLK_HD inline double join_bins(double x3, double x2, double x1, double x0) {
  return ((x3 * 0x1p-16 + x2) * 0x1p-16 + x1) * 0x1p-16 + x0;
}
RLK_HD inline double join_bins(const BinSums& s) {
  return join_bins(static_cast<double>(s[3]), static_cast<double>(s[2]), static_cast<double>(s[1]),
                   static_cast<double>(s[0]));
}

// The state of part of a row: what crosses tiles, chunks and ranks.
struct LogSumExp {
  float z_max = 0.0f;    // never -0; meaningless until any
  bool any = false;      // a logit took part
  bool bad = false;      // a logit was kNonFinite
  std::int32_t bin = 0;  // B
  BinSums s{};

  bool operator==(const LogSumExp&) const = default;

  RLK_HD LogitStatus status() const {
    if (bad) return LogitStatus::kNonFinite;
    return any ? LogitStatus::kOk : LogitStatus::kMasked;
  }

  // S: the sum in units of 2^(16B-24). Sampling compares the S of the logits so far, taken in
  // descending order, with the S of the row: the first logit is z_max, so both have the same B.
  RLK_HD double total() const { return join_bins(s); }

  RLK_HD LogitStatus add(float z) {
    const LogitStatus status = classify_logit(z);
    if (status == LogitStatus::kNonFinite) bad = true;
    if (status == LogitStatus::kOk) add_term(z, logit_term(z), nullptr, 0);
    return status;
  }

  RLK_HD void merge(const LogSumExp& other) { merge_sums(other, nullptr, nullptr); }

 private:
  friend struct EntropySumExp;

  // `entropy` and `value`: the second set of sums, which moves with the first.
  RLK_HD void add_term(float z, const LogitTerm& term, BinSums* entropy, std::int64_t value) {
    raise_to(z, term.bin(), entropy);
    const std::int64_t place = std::int64_t{bin} - term.bin();
    for (int k = 0; k < 4; ++k) {
      s[k] += k == place ? term.q << term.shift() : 0;
      if (entropy != nullptr) (*entropy)[k] += k == place ? value : 0;
    }
  }

  RLK_HD void merge_sums(const LogSumExp& other, BinSums* entropy, const BinSums* other_entropy) {
    bad = bad || other.bad;
    if (!other.any) return;
    raise_to(other.z_max, other.bin, entropy);
    const std::int64_t offset = std::int64_t{bin} - other.bin;
    for (int k = 0; k < 4; ++k) {
      for (int i = 0; i <= k; ++i) {
        s[k] += k - i == offset ? other.s[i] : 0;
        if (entropy != nullptr) (*entropy)[k] += k - i == offset ? (*other_entropy)[i] : 0;
      }
    }
  }

  RLK_HD void raise_to(float z, std::int32_t new_bin, BinSums* entropy) {
    if (!any || z > z_max) z_max = z + 0.0f;
    if (!any) bin = new_bin;
    any = true;
    if (new_bin <= bin) return;
    const std::int64_t up = std::int64_t{new_bin} - bin;
    shift_bins(&s, up);
    if (entropy != nullptr) shift_bins(entropy, up);
    bin = new_bin;
  }
};

// The contribution of a term to E_b. A product, not a shift: the value may be negative.
RLK_HD inline std::int64_t entropy_value(const LogitTerm& term) {
  const float qf = static_cast<float>(term.q) * term.f;  // f32(q) is exact
  const std::int64_t rounded =
      static_cast<std::int64_t>((static_cast<double>(qf) + 0x1.8p52) - 0x1.8p52);
  return (term.q * (term.shift() - 8) + rounded) * (std::int64_t{1} << term.shift());
}

// LogSumExp with the entropy sums E beside it.
struct EntropySumExp {
  LogSumExp sum;
  BinSums e{};

  bool operator==(const EntropySumExp&) const = default;

  RLK_HD LogitStatus status() const { return sum.status(); }

  RLK_HD LogitStatus add(float z) {
    const LogitStatus status = classify_logit(z);
    if (status == LogitStatus::kNonFinite) sum.bad = true;
    if (status == LogitStatus::kOk) {
      const LogitTerm term = logit_term(z);
      sum.add_term(z, term, &e, entropy_value(term));
    }
    return status;
  }

  RLK_HD void merge(const EntropySumExp& other) { sum.merge_sums(other.sum, &e, &other.e); }
};

// The end of a row, in f64. Requires state.status() == kOk.
struct LogSumExpEnd {
  float z_max = 0.0f;
  std::int32_t bin = 0;  // B
  LogitTerm top{};       // the term of z_max
  double rest = 0.0;     // T: the sum without one term of z_max, in units of 2^(16B-24)
  double r = 0.0;        // T relative to e^z_max: sum of the others' e^(z - z_max)
  double c = 0.0;        // log(1 + r)
  double lse = 0.0;      // z_max + c
  float inverse = 0.0f;  // i = f32(2^24 / S)

  LogSumExpEnd() = default;
  RLK_HD explicit LogSumExpEnd(const LogSumExp& state) : z_max(state.z_max), bin(state.bin) {
    top = logit_term(z_max);
    BinSums others = state.s;
    others[0] -= top.q << top.shift();
    rest = join_bins(others);
    inverse = static_cast<float>(0x1p24 / state.total());

    constexpr double kLog2e = 0x1.71547652b82fep+0;
    constexpr double kLog2eLow = 0x1.777d0ffda0d24p-56;
    const double z = static_cast<double>(z_max);
    const double n = (z * kLog2e + 0x1.8p52) - 0x1.8p52;  // N
    const double f = fma(z, kLog2eLow, fma(z, kLog2e, -n));
    r = (rest * exp2_64(-f)) * pow2_f64(16 * bin - 24 - static_cast<int>(n));
    c = log1p64(r);
    lse = z + c;
  }

  // f32(log softmax) of a logit of the row that takes part; never positive. -inf for one that does
  // not.
  RLK_HD float logp(float z) const {
    if (classify_logit(z) != LogitStatus::kOk) return -kInfinity;
    return static_cast<float>((static_cast<double>(z) - static_cast<double>(z_max)) - c);
  }

  // The probability that backward uses: f32, 0 below the window and for logits that take no part.
  RLK_HD float p(float z) const {
    if (classify_logit(z) != LogitStatus::kOk) return 0.0f;
    const LogitTerm term = logit_term(z);
    if (term.bin() < bin - 3) return 0.0f;
    return (term.power * inverse) * pow2_f32(term.n - 16 * bin);
  }

  // H = -sum p log p of the same row, in f64 (an f32 entropy is this, rounded once). Terms below
  // the window count as 0.
  RLK_HD double entropy(const EntropySumExp& sums) const {
    if (rest == 0.0) return 0.0;
    constexpr double kLn2 = 0x1.62e42fefa39efp-1;
    BinSums s = sums.sum.s;
    BinSums e = sums.e;
    s[0] -= top.q << top.shift();
    e[0] -= entropy_value(top);
    // 16 k s' would not fit int64, so the difference is taken in f64, with one rounding.
    const auto part = [&](int k) {
      return fma(-16.0 * k, static_cast<double>(s[k]), static_cast<double>(e[k]));
    };
    const double q = join_bins(part(3), part(2), part(1), part(0));
    const double offset = static_cast<double>(z_max) - (16.0 * bin + 8.0) * kLn2;
    return c + r / (1.0 + r) * (offset - kLn2 * q / rest);
  }
};

}  // namespace rlk::numerics
