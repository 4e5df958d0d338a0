// Sampling and filters: one text for every instruction set. Included after logprob_body.h.

using rlk::cpu::BestToken;
using rlk::cpu::LogitHistogram;
using rlk::cpu::LogitList;
using rlk::cpu::LogprobIsa;
using rlk::cpu::SampleDraw;

inline void multiply_wide(I a, std::uint32_t b, I* low, I* high) {
  const L factor = set1_i64(std::int64_t{b});
  const L even = multiply_u32(even_lanes(a), factor);
  const L odd = multiply_u32(odd_lanes(a), factor);
  *low = join_low(even, odd);
  *high = join_high(even, odd);
}

inline I word(std::uint32_t x) { return set1(static_cast<std::int32_t>(x)); }

// Words of kWidth token groups, four tokens each: x[i] are those of 4 * group + i.
inline void philox(const SampleDraw& draw, I group, I (&x)[4]) {
  I c0 = group, c1 = word(draw.position), c2 = word(draw.request[0]), c3 = word(draw.request[1]);
  std::uint32_t k0 = draw.key[0], k1 = draw.key[1];
  for (int round = 0; round < 10; ++round) {
    I low0, high0, low1, high1;
    multiply_wide(c0, 0xD2511F53u, &low0, &high0);
    multiply_wide(c2, 0xCD9E8D57u, &low1, &high1);
    c0 = high1 ^ c1 ^ word(k0);
    c2 = high0 ^ c3 ^ word(k1);
    c1 = low1;
    c3 = low0;
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  x[0] = c0;
  x[1] = c1;
  x[2] = c2;
  x[3] = c3;
}

// Words of 4 * kWidth token ids in order: x[i] are those of group * 4 + i * kWidth + lane.
inline void token_words(const SampleDraw& draw, std::uint32_t group, I (&x)[4]) {
  // Lane 4b + i holds the group that the transpose brings to block b of x[i].
  std::int32_t offset[kWidth];
  for (std::int32_t lane = 0; lane < kWidth; ++lane) {
    offset[lane] = (kWidth / 4) * (lane % 4) + lane / 4;
  }
  philox(draw, load(offset) + word(group), x);
  transpose_fours(x);
}

inline F gumbel_of(I words) {
  const F u = (to_f32(shift_right_logical<9>(words)) + set1(0.5f)) * set1(0x1p-23f);
  return neg(log_normal(neg(log_normal(u))));
}

struct BestLanes {
  F score = set1(-__builtin_inff());
  I id = set1(std::int32_t{0});

  void add(F x, I ids, M part) {
    const M better = part & less(score, x);  // a tie leaves the lower id
    score = select(better, x, score);
    id = select(better, ids, id);
  }
};

// kCut: only some tokens take part, and x has been checked.
template <bool kGumbel, bool kCut>
inline void best_of(BestToken* out, const LogitPiece& piece, const SampleDraw& draw) {
  Range range;
  BestLanes best;
  F z_max = set1(-__builtin_inff());
  I words[4] = {};
  Part<true> part(piece);
  for (std::int64_t k = 0; k < piece.n; k += 4 * kWidth) {
    const std::int64_t left = (piece.n - k + kWidth - 1) / kWidth;
    const int vectors = left < 4 ? static_cast<int>(left) : 4;
    F z[4];
    M in[4];
    bool some = false;
    for (int i = 0; i < vectors; ++i) {
      const std::int64_t at = k + i * kWidth;
      const int count = piece.n - at < kWidth ? static_cast<int>(piece.n - at) : kWidth;
      const F logit = load_lanes(piece.x + at, count);
      z[i] = logit * set1(piece.scale);
      in[i] = part.of(z[i], first_lanes(count));
      if constexpr (kCut) {
        some = some || any(in[i]);
      } else {
        range.add_n(logit, count);
        z_max = max(select(first_lanes(count), z[i], z_max), z_max);
      }
    }
    if (kCut && !some) continue;
    if constexpr (kGumbel) {
      token_words(draw, static_cast<std::uint32_t>((piece.first_id + k) / 4), words);
    }
    I ids = set1(static_cast<std::int32_t>(piece.first_id + k)) + lane_numbers();
    for (int i = 0; i < vectors; ++i) {
      best.add(kGumbel ? z[i] + gumbel_of(words[i]) : z[i], ids, in[i]);
      ids = ids + set1(std::int32_t{kWidth});
    }
  }
  *out = BestToken{};
  out->bad = !kCut && (range.largest() >= kInfinityBits || max_lane(z_max) > kHighest);
  float scores[kWidth];
  std::int32_t lane_ids[kWidth];
  store(scores, best.score);
  store(lane_ids, best.id);
  for (int i = 0; i < kWidth; ++i) {
    if (!(scores[i] > -__builtin_inff())) continue;
    const bool better =
        !out->any || scores[i] > out->score || (scores[i] == out->score && lane_ids[i] < out->id);
    if (!better) continue;
    out->any = true;
    out->score = scores[i];
    out->id = lane_ids[i];
  }
}

void best(BestToken* out, const LogitPiece& piece, const SampleDraw& draw) {
  if (piece.cut) {
    draw.gumbel ? best_of<true, true>(out, piece, draw) : best_of<false, true>(out, piece, draw);
  } else {
    draw.gumbel ? best_of<true, false>(out, piece, draw) : best_of<false, false>(out, piece, draw);
  }
}

// q and the entry of the histogram, kNoEntry where a token takes no part.
constexpr std::int32_t kRest = LogitHistogram::kSize - 1, kNoEntry = LogitHistogram::kSize;

struct Entry {
  F z;
  I entry, q;
};
inline Entry entry_of(const float* x, int count, M lanes, float scale, std::int32_t bin,
                      float floor) {
  const F z = load_lanes(x, count) * set1(scale);
  const M in = lanes & less_equal(set1(floor), z);
  const Terms terms = terms_of<true>(z, in, bin);
  const I d = terms.n - set1(16 * bin - 48);
  const I entry = select(less(d, set1(std::int32_t{0})), set1(kRest), d);
  return {z + zero(), select(in, entry, set1(kNoEntry)),
          to_i32(power_of(terms.f) * set1(0x1p24f))};
}

void histogram(LogitHistogram* out, const LogitPiece& piece, std::int32_t bin, float floor) {
  // Neighbours often share an entry: four tables, so that an addition need not wait for the last.
  std::uint64_t table[4][LogitHistogram::kSize + 1] = {};
  for_each_vector(piece.n, [&](std::int64_t k, M lanes, int count) {
    const Entry e = entry_of(piece.x + k, count, lanes, piece.scale, bin, floor);
    std::int32_t entry[kWidth], q[kWidth];
    store(entry, e.entry);
    store(q, e.q);
    for (int i = 0; i < kWidth; ++i) {
      table[i % 4][entry[i]] +=
          (std::uint64_t{1} << LogitHistogram::kCountShift) + static_cast<std::uint32_t>(q[i]);
    }
  });
  for (int i = 0; i < LogitHistogram::kSize; ++i) {
    out->count_and_sum[i] = table[0][i] + table[1][i] + table[2][i] + table[3][i];
  }
}

void list(LogitList* out, const LogitPiece& piece, std::int32_t bin, float floor, int entry) {
  const I wanted = set1(std::int32_t{entry});
  std::int64_t size = 0;
  for_each_vector(piece.n, [&](std::int64_t k, M lanes, int count) {
    const Entry e = entry_of(piece.x + k, count, lanes, piece.scale, bin, floor);
    if (!any(equal(e.entry, wanted))) return;
    float z[kWidth];
    std::int32_t entries[kWidth], q[kWidth];
    store(z, e.z);
    store(entries, e.entry);
    store(q, e.q);
    for (int i = 0; i < count; ++i) {  // writes before it knows: no branch
      out->z[size] = z[i];
      out->id[size] = static_cast<std::int32_t>(piece.first_id + k + i);
      out->q[size] = q[i];
      size += entries[i] == entry ? 1 : 0;
    }
  });
  out->size = size;
}

constexpr LogprobIsa kTable = {.sums = sums,
                               .gradient_bf16 = gradient_bf16,
                               .gradient_f32 = gradient_f32,
                               .best = best,
                               .log_softmax = log_softmax,
                               .lane_sums = lane_sums,
                               .log_softmax_gradient_bf16 = log_softmax_gradient_bf16,
                               .log_softmax_gradient_f32 = log_softmax_gradient_f32,
                               .histogram = histogram,
                               .list = list};
