// Filters without sorting. What a filter leaves is always the tokens from some place on in one
// order, descending z with ties by lower id, so a filter is the key of the last token it keeps.
// It is found in buckets of tokens: first by the distance of z from z_max, which leaves few tokens
// near the place looked for, then by the digits of their keys.
//
// Counts and sums are integers, so neither the order of atomics nor the parts of a row can be seen.
#pragma once

#include "rlk/kernels/gpu/logit_row.h"

namespace rlk::gpu {

inline constexpr int kBuckets = kRowThreads;  // a thread's one

// Each thread has what lies in its bucket. The lowest bucket for which keep(what lies above it)
// holds, what lies above it, and in it and above. keep must hold for nothing and not come back once
// it is false. `shared` has room for two T of each thread.
template <typename T, typename Keep>
RLK_DEVICE int find_bucket(const T& mine, T* shared, const Keep& keep, T* above, T* from) {
  T* to = shared + kBuckets;
  shared[thread()] = mine;
  barrier();
  T sum = mine;
  for (int step = 1; step < kBuckets; step *= 2) {  // sums of all from each on
    if (thread() + step < kBuckets) sum.add(shared[thread() + step]);
    to[thread()] = sum;
    barrier();
    T* const before = shared;
    shared = to;
    to = before;
  }
  const T nothing{};
  const bool kept = keep(thread() + 1 < kBuckets ? shared[thread() + 1] : nothing);
  const int bucket = barrier_count(!kept);
  *above = bucket + 1 < kBuckets ? shared[bucket + 1] : nothing;
  *from = shared[bucket];
  barrier();
  return bucket;
}

// Buckets of z_max - z >= 0, nearer ones higher: 32 for each power of two from 2^-6 on, so they fit
// any temperature.
inline constexpr std::int32_t kFirstDistance = (127 - 6) << 5;
RLK_HD inline int bucket_of(float distance) {
  const std::int32_t k = (std::bit_cast<std::int32_t>(distance) >> 18) - kFirstDistance;
  return kBuckets - 1 - (k < 0 ? 0 : k < kBuckets ? k : kBuckets - 1);
}
RLK_HD inline float largest_distance(int bucket) {
  if (bucket == 0) return numerics::kInfinity;
  return std::bit_cast<float>(((kBuckets - bucket + kFirstDistance) << 18) - 1);
}

struct NearTokens {
  std::int32_t count = 0;
  float mass = 0.0f;  // at most their share of the row, in units of e^z_max
  RLK_HD void add(const NearTokens& other) {
    count += other.count;
    mass += other.mass;
  }
};

// Adds the tokens of [begin, end) to counts[kBuckets] in shared memory.
RLK_DEVICE void count_distances(const LogitRow& row, int begin, int end, unsigned* counts) {
  for_each_pack(row, begin, end, [&](int, const float(&x)[4], int n) {
    RLK_UNROLL
    for (int l = 0; l < 4; ++l) {
      const float z = x[l] * row.scale;
      if (l < n && row.is_near(z)) atomic_add(&counts[bucket_of(row.z_max - z)], 1u);
    }
  });
}

// The filters of a row that look at the order.
struct OrderFilters {
  std::int64_t top_k;  // 0: off
  float top_p;         // 1: off

  RLK_HD OrderFilters(const SamplingParams& params, std::int64_t vocab_size)
      : top_k(params.top_k < vocab_size ? params.top_k : 0), top_p(params.top_p) {}
  RLK_HD bool any() const { return top_k > 0 || top_p < 1.0f; }
  RLK_HD bool top_p_alone() const { return top_p < 1.0f && top_k <= 0; }
};

// Raises row->min_difference so far that the first filter still keeps the same tokens; `count` is
// that of this thread's bucket, `sum` is needed for top-p alone. The f32 masses leave out far more
// than their rounding: 1/1024 of the limit.
RLK_DEVICE void narrow(LogitRow* row, const OrderFilters& filters, unsigned count,
                       const LogSumExp& sum) {
  float limit = numerics::kInfinity;
  if (filters.top_p_alone()) {
    const double whole = 1.0 + numerics::LogSumExpEnd(sum).r;
    limit = static_cast<float>(static_cast<double>(filters.top_p) * whole * (1.0 + 0x1p-10));
  }
  NearTokens near, above, from;
  near.count = static_cast<std::int32_t>(count);
  near.mass = static_cast<float>(count) * numerics::exp(-largest_distance(thread()));
  const int bucket = find_bucket(
      near, reinterpret_cast<NearTokens*>(row->shared),
      [&](const NearTokens& before) {
        return filters.top_k > 0 ? before.count < filters.top_k : before.mass < limit;
      },
      &above, &from);
  const float difference = -largest_distance(bucket);
  if (difference > row->min_difference) row->min_difference = difference;
}

// Some tokens.
struct TokenSums {
  std::int64_t count = 0;
  numerics::BinSums s{};  // relative to the row's bin
  RLK_HD void add(const TokenSums& other) {
    count += other.count;
    for (int k = 0; k < 4; ++k) s[k] += other.s[k];
  }
};

// TokenSums of kBuckets buckets in shared memory, in words of 32 bits: all that every GPU adds
// there without trying again.
template <bool kSums>
class DigitBuckets {
 public:
  static constexpr int kWords = kSums ? 9 : 1;
  RLK_DEVICE explicit DigitBuckets(ReduceBytes* shared)
      : words_(reinterpret_cast<unsigned*>(shared)) {}

  RLK_DEVICE void clear() const {
    for (int i = 0; i < kWords; ++i) words_[i * kBuckets + thread()] = 0;
  }
  RLK_DEVICE void add(int bucket, float z, std::int32_t bin) const {
    atomic_add(&words_[bucket], 1u);
    if constexpr (kSums) {
      const numerics::LogitTerm term = numerics::logit_term(z);
      const std::int64_t place = std::int64_t{bin} - term.bin();
      if (place >= 4) return;
      const auto value = static_cast<std::uint64_t>(term.q << term.shift());
      unsigned* const at = words_ + (1 + 2 * static_cast<int>(place)) * kBuckets + bucket;
      // A carry is due exactly when the low half wraps, whichever addition does it.
      const auto low = static_cast<unsigned>(value);
      const unsigned carry = atomic_add(at, low) + low < low ? 1 : 0;
      atomic_add(at + kBuckets, static_cast<unsigned>(value >> 32) + carry);
    }
  }
  // Of this thread's bucket.
  RLK_DEVICE TokenSums mine() const {
    TokenSums out;
    out.count = words_[thread()];
    if constexpr (kSums) {
      RLK_UNROLL
      for (int k = 0; k < 4; ++k) {
        const unsigned* const at = words_ + (1 + 2 * k) * kBuckets + thread();
        out.s[k] = static_cast<std::int64_t>(std::uint64_t{at[kBuckets]} << 32 | at[0]);
      }
    }
    return out;
  }

 private:
  unsigned* words_;
};

// How many low bits of the keys differ between tokens that take part. The least z is taken a little
// lower than roundings can make it.
RLK_DEVICE int digits_of(const LogitRow& row) {
  const float z_min =
      (row.z_max + row.min_difference * 1.0001f) - numerics::abs(row.z_max) * 0x1p-20f;
  std::uint64_t differ = order_key(row.z_max, 0) ^ order_key(z_min, numerics::kMaxVocab - 1);
  int bits = 0;
  for (; differ != 0; differ >>= 1) ++bits;
  return bits;
}

// A key K for which keep(what comes before a token) holds exactly for the tokens with keys from K
// on. keep must hold for nothing and not come back once it is false. Without kSums only the count
// is there.
template <bool kSums, typename Keep>
RLK_DEVICE std::uint64_t find_last_kept(const LogitRow& row, std::int32_t bin, const Keep& keep) {
  constexpr int kDigit = 9;
  static_assert(1 << kDigit == kBuckets);
  static_assert(2 * sizeof(TokenSums) <= sizeof(ReduceBytes));
  const DigitBuckets<kSums> buckets(row.shared);
  auto* const shared = reinterpret_cast<TokenSums*>(row.shared);
  TokenSums before;            // what comes before the keys that begin with `prefix`
  int shift = digits_of(row);  // digits that are not known
  std::uint64_t prefix = order_key(row.z_max, 0) >> shift;
  std::int64_t count = 2;
  // Of one token nothing has to be found out: it is kept.
  while (shift > 0 && count > 1) {
    const int digit = shift < kDigit ? shift : kDigit;
    shift -= digit;
    buckets.clear();
    barrier();
    row.for_each([&](std::int64_t j, float z) {
      const std::uint64_t key = order_key(z, j) >> shift;
      const std::uint64_t low = (std::uint64_t{1} << digit) - 1;
      if (key >> digit == prefix) buckets.add(static_cast<int>(key & low), z, bin);
    });
    barrier();
    const TokenSums mine = buckets.mine();
    barrier();
    TokenSums above, from;
    const int bucket = find_bucket(
        mine, shared,
        [&](TokenSums sums) {
          sums.add(before);
          return keep(sums);
        },
        &above, &from);
    count = from.count - above.count;
    before.add(above);
    prefix = prefix << digit | static_cast<std::uint64_t>(bucket);
  }
  return prefix << shift;
}

// The tokens that top-k and top-p keep of a row; `sum` is needed for top-p alone.
RLK_DEVICE void filter_by_order(LogitRow* row, const OrderFilters& filters, LogSumExp sum) {
  if (filters.top_k > 0) {
    const std::int64_t top_k = filters.top_k;
    row->last_kept = find_last_kept<false>(
        *row, 0, [&](const TokenSums& before) { return before.count < top_k; });
  }
  if (filters.top_p < 1.0f) {
    if (filters.top_k > 0) sum = log_sum_exp(*row);
    const double limit = static_cast<double>(filters.top_p) * sum.total();
    const std::uint64_t last = find_last_kept<true>(*row, sum.bin, [&](const TokenSums& before) {
      return numerics::join_bins(before.s) < limit;
    });
    if (last > row->last_kept) row->last_kept = last;
  }
}

}  // namespace rlk::gpu
