// Attention forward, one text for every instruction set: blocks with a running softmax for many
// queries, whole rows of scores for one. Included after the vectors and attention_tile.h.

constexpr float kMinusInfinity = -__builtin_inff();

// Right operand of a chain: rows of bf16 where they lie.
struct Bf16Rows {
  const std::uint16_t* const* rows;
  int first;
  F load_at(int i, int vector) const { return load_bf16(rows[i] + first + vector * kWidth); }
  Bf16Rows from(int i, int n) const { return {rows + i, first + n}; }
};

inline float sum_lanes(F x) { return neighbour_tree(&x, 1); }

// Largest of the n scores s, NaN where one is NaN.
inline float largest(const float* s, int n) {
  F m = set1(kMinusInfinity);
  M bad = first_lanes(0);
  for (int j = 0; j < n; j += kWidth) {
    const F x = select(first_lanes(at_most(n - j, kWidth)), load(s + j), set1(kMinusInfinity));
    bad = bad | is_nan(x);
    m = max(x, m);
  }
  return any(bad) ? __builtin_nanf("") : max_lane(m);
}

// s = exp2(c s - m) for j < n and zero up to `end`; returns the sum.
inline float exponentials(float* s, int n, int end, float c, float m) {
  const F scale = set1(c);
  const F minus_m = set1(-m);
  F sum = zero();
  int j = 0;
  for (; j + kWidth <= n; j += kWidth) {
    const F e = exp2p(fma(load(s + j), scale, minus_m));
    sum = sum + e;
    store(s + j, e);
  }
  for (; j < end; j += kWidth) {
    const M visible = first_lanes(n > j ? n - j : 0);
    const F e = select(visible, exp2p(fma(load(s + j), scale, minus_m)), zero());
    sum = sum + e;
    store(s + j, e);
  }
  return sum_lanes(sum);
}

inline void flash_row(const FlashTile& t, int r, float* s, int n, int end) {
  const float m_old = t.m[r];
  const float block_max = t.c * largest(s, n);
  const float m = m_old > block_max ? m_old : block_max;
  t.m[r] = m;
  if (m != m_old && m_old != kMinusInfinity) {
    const F a = exp2p(set1(m_old - m));
    t.l[r] = lane0(set1(t.l[r]) * a);
    float* o = t.o + static_cast<std::int64_t>(r) * t.ld;
    for (int k = 0; k < t.ld; k += kWidth) store(o + k, load(o + k) * a);
  }
  t.l[r] += exponentials(s, n, end, t.c, m);
}

void flash_block(const FlashTile& t, const FlashBlock& block) {
  constexpr std::int64_t kStride = kFlashStride;
  widen_transposed(t.kt, kStride, Bf16RowList{block.k, 0}, block.n, t.d);
  widen_rows(t.v, t.ld, Bf16RowList{block.v, 0}, block.n, t.d);
  int first = 0;
  while (first < t.rows && block.visible[first] <= 0) ++first;
  for (int r0 = first; r0 < t.rows; r0 += kFlashRows) {
    const int rows = at_most(kFlashRows, t.rows - r0);
    const int* visible = block.visible + r0;
    const auto keys_of = [&](int r, int tile_rows) { return Span{0, visible[r + tile_rows - 1]}; };
    const Left q{t.q + static_cast<std::int64_t>(r0) * t.ld, t.ld, 1};
    start_chains(t.s, kStride, q, F32Rows{t.kt, kStride}, rows, visible, t.d);
    for (int r = 0; r < rows; ++r) {
      const int tile = r / kTileRows * kTileRows;
      const int end = padded(keys_of(tile, at_most(kTileRows, rows - tile)).end);
      flash_row(t, r0 + r, t.s + r * kStride, visible[r], end);
    }
    float* o = t.o + static_cast<std::int64_t>(r0) * t.ld;
    continue_chains(o, t.ld, Left{t.s, kStride, 1}, F32Rows{t.v, t.ld}, rows, padded(t.d), keys_of);
  }
}

inline void store_row(std::uint16_t* y, const float* o, float l, int d) {
  const F scale = set1(1.0f / l);
  int k = 0;
  for (; k + kWidth <= d; k += kWidth) store_bf16(y + k, load(o + k) * scale);
  if (k < d) store_bf16_n(y + k, load(o + k) * scale, d - k);
}

void flash_end(const FlashTile& t, std::uint16_t* const* y) {
  for (int r = 0; r < t.rows; ++r) {
    store_row(y[r], t.o + static_cast<std::int64_t>(r) * t.ld, t.l[r], t.d);
  }
}

// s[j] = q . k_j for kWidth keys from k on, as far as there are n; lanes run over the head.
inline void decode_scores(float* s, const float* q, const std::uint16_t* const* k, int n, int d) {
  F x[kWidth];
#pragma GCC unroll 4
  for (int i = 0; i < kWidth; ++i) {
    const std::uint16_t* key = k[at_most(i, n - 1)];
    F acc = zero();
    int e = 0;
    for (; e + kWidth <= d; e += kWidth) acc = fma(load(q + e), load_bf16(key + e), acc);
    if (e < d) acc = fma(load(q + e), load_bf16_n(key + e, d - e), acc);
    x[i] = acc;
  }
#pragma GCC unroll 4
  for (int count = kWidth; count > 1; count /= 2) {
    for (int i = 0; i < count / 2; ++i) x[i] = pair_add(x[2 * i], x[2 * i + 1]);
  }
  store(s, x[0]);
}

// Keys and values are asked for ahead of their use.
inline void prefetch_row(const std::uint16_t* row, int d) {
  constexpr int kLine = 32;
  for (int k = 0; k < d; k += kLine) __builtin_prefetch(row + k);
}

// o = sum_j e[j] v_j for vector `at` of the head; several sums so that additions do not wait.
inline F decode_values(const float* e, const std::uint16_t* const* v, int n, int at, int left) {
  F acc[4] = {zero(), zero(), zero(), zero()};
  if (left >= kWidth) {
    int j = 0;
    for (; j + 4 <= n; j += 4) {
#pragma GCC unroll 4
      for (int i = 0; i < 4; ++i) {
        acc[i] = fma(set1(e[j + i]), load_bf16(v[j + i] + at), acc[i]);
      }
    }
    for (; j < n; ++j) acc[0] = fma(set1(e[j]), load_bf16(v[j] + at), acc[0]);
  } else {
    for (int j = 0; j < n; ++j) acc[0] = fma(set1(e[j]), load_bf16_n(v[j] + at, left), acc[0]);
  }
  return (acc[0] + acc[1]) + (acc[2] + acc[3]);
}

// o = sum_j e[j] v_j of all heads. Wide heads read each value once, in tiles.
inline void decode_values_of(const DecodeRow& row, std::int64_t lds) {
  if (row.d <= 2 * kWidth || row.d % kWidth != 0) {
    for (int h = 0; h < row.heads; ++h) {
      float* o = row.o + static_cast<std::int64_t>(h) * row.ld;
      for (int k = 0; k < row.d; k += kWidth) {
        store(o + k, decode_values(row.s + h * lds, row.v, row.n, k, row.d - k));
      }
    }
    return;
  }
  for (int h = 0; h < row.heads; ++h) {
    float* o = row.o + static_cast<std::int64_t>(h) * row.ld;
    for (int k = 0; k < row.d; k += kWidth) store(o + k, zero());
  }
  constexpr int kKeys = 32;
  for (int j = 0; j < row.n; j += kKeys) {
    const int n = at_most(kKeys, row.n - j);
    for (int i = 0; i < kKeys && j + kKeys + i < row.n; ++i) {
      prefetch_row(row.v[j + kKeys + i], row.d);
    }
    continue_chains(row.o, row.ld, Left{row.s + j, lds, 1}, Bf16Rows{row.v + j, 0}, row.heads,
                    row.d, [n](int, int) {
                      return Span{0, n};
                    });
  }
}

void decode(const DecodeRow& row) {
  const std::int64_t lds = padded(row.n);
  widen_rows(row.wide_q, row.ld, Bf16RowList{row.q, 0}, row.heads, row.d);
  for (int j = 0; j < row.n; j += kWidth) {
    for (int i = j + kWidth; i < at_most(row.n, j + 2 * kWidth); ++i) {
      prefetch_row(row.k[i], row.d);
    }
    for (int h = 0; h < row.heads; ++h) {
      decode_scores(row.s + h * lds + j, row.wide_q + static_cast<std::int64_t>(h) * row.ld,
                    row.k + j, row.n - j, row.d);
    }
  }
  for (int h = 0; h < row.heads; ++h) {
    float* s = row.s + h * lds;
    row.m[h] = row.c * largest(s, row.n);
    row.l[h] = exponentials(s, row.n, static_cast<int>(lds), row.c, row.m[h]);
  }
  decode_values_of(row, lds);
  for (int h = 0; h < row.heads; ++h) {
    store_row(row.y[h], row.o + static_cast<std::int64_t>(h) * row.ld, row.l[h], row.d);
  }
}

constexpr AttentionIsa kTable = {
    .widen_rows = widen_rows<std::uint16_t>,
    .flash_block = flash_block,
    .flash_end = flash_end,
    .decode = decode,
};
