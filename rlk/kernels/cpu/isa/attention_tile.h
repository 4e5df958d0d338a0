// Chains of a tile of rows by a tile of columns, and the f32 copies they run on. One text for every
// instruction set, included inside its anonymous namespace after the vectors.

constexpr int kTileRows = 6;
constexpr int kTileColumns = kTileVectors * kWidth;

inline int at_most(int a, int b) { return a < b ? a : b; }
inline int padded(int n) { return (n + kAttentionPad - 1) / kAttentionPad * kAttentionPad; }

template <typename T>
inline const T* row_of(const RowList<T>& list, int i) {
  return list.rows[i] + list.offset;
}

// A word is 32 bits of storage: two bf16 or one f32. Words are moved and transposed whole.
template <typename T>
constexpr int kPerWord = 4 / static_cast<int>(sizeof(T));
inline I load_words(const std::uint16_t* p) { return load_pairs(p); }
inline I load_words(const float* p) { return bits(load(p)); }
inline I load_words_n(const std::uint16_t* p, int n) { return load_pairs_n(p, n); }
inline I load_words_n(const float* p, int n) { return bits(load_n(p, n)); }
// x[i] = number i of every word
inline void split_words(I word, F (&x)[2]) {
  x[0] = from_bits(shift_left<16>(word));
  x[1] = from_bits(word & set1(static_cast<std::int32_t>(0xffff0000u)));
}
inline void split_words(I word, F (&x)[1]) { x[0] = from_bits(word); }

// The rounding to storage of a number, as f32; NaN may come out as any NaN.
template <typename T>
inline F round_number(F x);
template <>
inline F round_number<std::uint16_t>(F x) {
  return round_bf16_number(x);
}
template <>
inline F round_number<float>(F x) {
  return x;
}

// Right operand of a chain: row i of it.
struct F32Rows {
  const float* data;
  std::int64_t ld;
  F load_at(int i, int vector) const { return load(data + i * ld + vector * kWidth); }
  F32Rows from(int i, int n) const { return {data + i * ld + n, ld}; }  // row i, column n
};

// Left operand: element i of row r is data[r * row + i * step].
struct Left {
  const float* data;
  std::int64_t row;
  std::int64_t step;
};

// c[r, n] goes on (or starts) through i in [0, count): fma(a[r, i], b[i, n], c[r, n]).
template <int kRows, int kVectors, typename Right>
void tile(float* c, std::int64_t ldc, Left a, Right b, int count, bool start) {
  F acc[kRows][kVectors];
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) acc[r][v] = start ? zero() : load(c + r * ldc + v * kWidth);
  }
  for (int i = 0; i < count; ++i) {
    F x[kVectors];
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) x[v] = b.load_at(i, v);
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
      const F y = set1(a.data[r * a.row]);
#pragma GCC unroll 8
      for (int v = 0; v < kVectors; ++v) acc[r][v] = fma(y, x[v], acc[r][v]);
    }
    a.data += a.step;
  }
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) store(c + r * ldc + v * kWidth, acc[r][v]);
  }
}

template <typename Right>
struct Tiles {
  using Fn = void (*)(float*, std::int64_t, Left, Right, int, bool);
  template <int kRows>
  static Fn with_rows(int vectors) {
    if constexpr (kTileVectors == 4) {
      if (vectors == 4) return tile<kRows, 4, Right>;
      if (vectors == 3) return tile<kRows, 3, Right>;
    }
    return vectors == 2 ? tile<kRows, 2, Right> : tile<kRows, 1, Right>;
  }
  static Fn get(int rows, int vectors) {
    switch (rows) {
      case 1: return with_rows<1>(vectors);
      case 2: return with_rows<2>(vectors);
      case 3: return with_rows<3>(vectors);
      case 4: return with_rows<4>(vectors);
      case 5: return with_rows<5>(vectors);
      default: return with_rows<6>(vectors);
    }
  }
};

// c[r, n] = chain of a[r] by column n of b over [0, count), for n < limit[r] (never falling) and
// some columns more. The final (+0) of a chain is left out: nothing that follows here can tell -0.
void start_chains(float* c, std::int64_t ldc, Left a, F32Rows b, int rows, const int* limit,
                  int count) {
  for (int n = 0; n < limit[rows - 1]; n += kTileColumns) {
    for (int r = 0; r < rows; r += kTileRows) {
      const int tile_rows = at_most(kTileRows, rows - r);
      const int columns = at_most(kTileColumns, limit[r + tile_rows - 1] - n);
      if (columns <= 0) continue;
      const auto fn = Tiles<F32Rows>::get(tile_rows, (columns + kWidth - 1) / kWidth);
      fn(c + r * ldc + n, ldc, {a.data + r * a.row, a.row, a.step}, b.from(0, n), count, true);
    }
  }
}

struct Span {
  int begin;
  int end;
};

// c[r, 0..columns) goes on through i in span(r, tile_rows), one span for each tile of rows. Columns
// outside, rows inside: the columns of b stay in the nearest cache.
template <typename Right, typename SpanOf>
inline void continue_chains(float* c, std::int64_t ldc, Left a, Right b, int rows, int columns,
                            SpanOf span_of) {
  for (int n = 0; n < columns; n += kTileColumns) {
    const int vectors = at_most(kTileVectors, (columns - n) / kWidth);
    for (int r = 0; r < rows; r += kTileRows) {
      const int tile_rows = at_most(kTileRows, rows - r);
      const Span span = span_of(r, tile_rows);
      if (span.begin >= span.end) continue;
      const auto fn = Tiles<Right>::get(tile_rows, vectors);
      fn(c + r * ldc + n, ldc, {a.data + r * a.row + span.begin * a.step, a.row, a.step},
         b.from(span.begin, n), span.end - span.begin, false);
    }
  }
}

template <typename T>
void widen_rows(float* out, std::int64_t ld, RowList<T> rows, int n, int d) {
  for (int r = 0; r < n; ++r) {
    const T* row = row_of(rows, r);
    float* to = out + r * ld;
    int k = 0;
    for (; k + kWidth <= d; k += kWidth) store(to + k, load_value(row + k));
    for (; k < padded(d); k += kWidth) store(to + k, k < d ? load_value_n(row + k, d - k) : zero());
  }
}

// x[w] = word w of rows [j, j + kWidth) of n, from element k on; `words` of them. A row past the
// last is the last.
template <typename T>
inline void load_transposed(I (&x)[kWidth], const RowList<T>& rows, int j, int n, int k,
                            int words) {
  if (words == kWidth && j + kWidth <= n) {
#pragma GCC unroll 16
    for (int i = 0; i < kWidth; ++i) x[i] = load_words(row_of(rows, j + i) + k);
  } else {
    for (int i = 0; i < kWidth; ++i) {
      x[i] = load_words_n(row_of(rows, at_most(j + i, n - 1)) + k, words);
    }
  }
  transpose(x);
}

template <typename T>
void widen_transposed(float* out, std::int64_t ld, RowList<T> rows, int n, int d) {
  constexpr int kPer = kPerWord<T>;
  for (int j = 0; j < n; j += kWidth) {
    for (int k = 0; k < d; k += kPer * kWidth) {
      const int words = at_most(kWidth, (d - k) / kPer);
      I x[kWidth];
      load_transposed(x, rows, j, n, k, words);
      float* to = out + k * ld + j;
      for (int w = 0; w < words; ++w) {
        F numbers[kPer];
        split_words(x[w], numbers);
        for (int i = 0; i < kPer; ++i, to += ld) store(to, numbers[i]);
      }
    }
  }
}
