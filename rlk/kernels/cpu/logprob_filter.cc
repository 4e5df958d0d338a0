// min-p, top-k and top-p without sorting the row: what they keep is the row up to one last token in
// descending order (z, ties by lower id), and that token is found by counting.
//
// The row is counted by n of e^z = P(f) 2^n, which never falls as z rises: 64 entries cover the
// four bins that weigh anything, and an entry's weight is one integer sum. Only the tokens of the
// entry in which a filter ends are looked at one by one, by their bits, some ten bits at a time.
#include <algorithm>
#include <bit>
#include <limits>

#include "rlk/kernels/cpu/logprob_rows.h"
#include "rlk/numerics/math.h"

namespace rlk::cpu {
namespace {

constexpr int kRest = LogitHistogram::kSize - 1;

// Rises with z; -0 does not occur.
std::uint32_t key_of(float z) {
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(z);
  return bits >> 31 ? ~bits : bits | 0x80000000u;
}
float z_of(std::uint32_t key) { return std::bit_cast<float>(key >> 31 ? key & 0x7fffffffu : ~key); }

// The smallest z with z - z_max >= log(min_p).
float min_p_floor(float min_p, float z_max) {
  const float limit = numerics::log(min_p);
  std::uint32_t low = key_of(-0x1p30f), high = key_of(z_max);  // high is kept: limit <= 0
  while (low < high) {
    const std::uint32_t middle = low + (high - low) / 2;
    if (z_of(middle) - z_max >= limit) {
      high = middle;
    } else {
      low = middle + 1;
    }
  }
  return z_of(high);
}

// The first tokens in descending order: how many, and the sum of their q.
struct Prefix {
  std::int64_t count = 0;
  std::int64_t q = 0;

  Prefix operator+(const Prefix& b) const { return {count + b.count, q + b.q}; }
};

// Entries in descending order of n: kSize - 2 down to 0, then the rest.
struct Entries {
  Prefix at[LogitHistogram::kSize];

  void add(const LogitHistogram& piece) {
    for (int i = 0; i < LogitHistogram::kSize; ++i) {
      const std::uint64_t x = piece.count_and_sum[i];
      const std::uint64_t sum = x & ((std::uint64_t{1} << LogitHistogram::kCountShift) - 1);
      at[i] = at[i] + Prefix{static_cast<std::int64_t>(x >> LogitHistogram::kCountShift),
                             static_cast<std::int64_t>(sum)};
    }
  }
  static int next(int entry) { return entry == 0 ? kRest : entry - 1; }
};

// Bins of section 5 with an entry's tokens added.
numerics::BinSums plus(numerics::BinSums bins, int entry, std::int64_t q) {
  if (entry != kRest) bins[static_cast<std::size_t>(3 - entry / 16)] += q << (entry % 16);
  return bins;
}

// The shortest prefix of the tokens in `list` that is enough; all of them are. `list`, in order of
// ids, is used up.
template <typename Enough>
Prefix shortest_prefix(LogitList& list, const Enough& enough, TokenCut* cut) {
  constexpr int kBuckets = 1024;
  Prefix before;
  while (true) {
    std::uint32_t low = std::numeric_limits<std::uint32_t>::max(), high = 0;
    for (std::int64_t i = 0; i < list.size; ++i) {
      const std::uint32_t key = key_of(list.z[i]);
      low = std::min(low, key);
      high = std::max(high, key);
    }
    if (low == high) break;
    int shift = 0;
    while ((high - low) >> shift >= kBuckets) ++shift;
    Prefix buckets[kBuckets] = {};
    for (std::int64_t i = 0; i < list.size; ++i) {
      Prefix& bucket = buckets[(high - key_of(list.z[i])) >> shift];
      bucket = bucket + Prefix{1, list.q[i]};
    }
    std::uint32_t last = 0;
    while (!enough(before + buckets[last])) before = before + buckets[last++];
    std::int64_t size = 0;
    for (std::int64_t i = 0; i < list.size; ++i) {
      const bool in = (high - key_of(list.z[i])) >> shift == last;
      list.z[size] = list.z[i];
      list.id[size] = list.id[i];
      list.q[size] = list.q[i];
      size += in ? 1 : 0;
    }
    list.size = size;
  }
  std::int64_t i = 0;  // ties
  before = before + Prefix{1, list.q[i]};
  while (!enough(before)) before = before + Prefix{1, list.q[++i]};
  cut->z = list.z[i];
  cut->id = list.id[i];
  return before;
}

// The tokens of one entry, gathered from what the pieces give.
void list_entry(LogprobRow& row, float floor, int entry) {
  row.for_each_piece([&](std::int64_t i, const LogitPiece& piece) {
    LogitList part{row.list.z + piece.first_id, row.list.id + piece.first_id,
                   row.list.q + piece.first_id, 0};
    row.isa->list(&part, piece, row.cut.bin, floor, entry);
    row.parts[i].list_size = part.size;
  });
  row.list.size = 0;
  for (std::int64_t i = 0; i < row.num_pieces(); ++i) {
    const std::int64_t from = i * kPieceColumns, size = row.parts[i].list_size;
    std::copy_n(row.list.z + from, size, row.list.z + row.list.size);
    std::copy_n(row.list.id + from, size, row.list.id + row.list.size);
    std::copy_n(row.list.q + from, size, row.list.q + row.list.size);
    row.list.size += size;
  }
}

void keep_top_k(LogprobRow& row, std::int64_t top_k, float floor, Entries* entries) {
  Prefix before;
  int entry = kRest - 1;
  while (before.count + entries->at[entry].count < top_k) {
    if (entry == kRest) return;  // there are not more than k
    before = before + entries->at[entry];
    entry = Entries::next(entry);
  }
  list_entry(row, floor, entry);
  const auto enough = [&](const Prefix& p) { return before.count + p.count >= top_k; };
  entries->at[entry] = shortest_prefix(row.list, enough, &row.cut);
  while (entry != kRest) entries->at[entry = Entries::next(entry)] = {};
}

void keep_top_p(LogprobRow& row, float top_p, float floor, const Entries& entries) {
  numerics::BinSums bins{};
  for (int i = 0; i < kRest; ++i) bins = plus(bins, i, entries.at[i].q);
  const double limit = static_cast<double>(top_p) * numerics::join_bins(bins);
  const auto reached = [&](const numerics::BinSums& b) { return numerics::join_bins(b) >= limit; };
  bins = {};
  int entry = kRest - 1;
  while (!reached(plus(bins, entry, entries.at[entry].q))) {
    bins = plus(bins, entry, entries.at[entry].q);
    entry = Entries::next(entry);
  }
  list_entry(row, floor, entry);
  shortest_prefix(
      row.list, [&](const Prefix& p) { return reached(plus(bins, entry, p.q)); }, &row.cut);
}

}  // namespace

bool LogprobRow::find_cut(const SamplingParams& params) {
  bool wide = false;
  const numerics::EntropySumExp sums = sum_pieces(false, &wide);
  if (sums.status() != numerics::LogitStatus::kOk) return false;
  float floor = -0x1p30f;
  if (params.min_p > 0.0f) floor = min_p_floor(params.min_p, sums.sum.z_max);
  cut = {floor, std::numeric_limits<std::int32_t>::max(), sums.sum.z_max, sums.sum.bin};
  if (params.top_k > 0 || params.top_p < 1.0f) {
    for_each_piece([&](std::int64_t i, const LogitPiece& piece) {
      isa->histogram(&parts[i].histogram, piece, cut.bin, floor);
    });
    Entries entries;
    for (std::int64_t i = 0; i < num_pieces(); ++i) entries.add(parts[i].histogram);
    if (params.top_k > 0) keep_top_k(*this, params.top_k, floor, &entries);
    if (params.top_p < 1.0f) keep_top_p(*this, params.top_p, floor, entries);
  }
  filtered = true;
  return true;
}

}  // namespace rlk::cpu
