// One block for a tile of few rows: bound by reading keys and values, so they are read as they lie.
// Included after attention_tile.h and kFewTileRows, few_key_vectors(rows), few_value_vectors(rows).
//
// Columns of o stand in the order in which the words of a value row split: for bf16 the even
// elements of kWidth words, then the odd ones.

// Memory that is needed soon, asked for a little at a time, beside the arithmetic, and line after
// line: so the hardware notices and reads ahead of us, for requests of ours alone are too few at a
// time to keep the memory busy. It reads ahead inside a page of memory only, so several places are
// read at once, which gives each of them more time.
constexpr int kStreams = 4;
struct Ahead {
  struct Stream {
    const void* const* row;
    const void* const* last;  // rows
    const char* at;
    const char* end;  // of the row
  };
  Stream streams[kStreams];
  std::int64_t bytes;  // of a row
  int next;

  void begin_row(Stream& s) const {
    s.at = static_cast<const char*>(*s.row);
    s.end = s.at + bytes;
  }
  void ask(int lines) {
    for (; lines > 0; --lines) {
      Stream& s = streams[next];
      next = (next + 1) % kStreams;
      if (s.row == s.last) continue;
      __builtin_prefetch(s.at, 0, 2);
      s.at += 64;
      if (s.at >= s.end && ++s.row != s.last) begin_row(s);
    }
  }
};
template <typename T>
inline Ahead start_ahead(const KvBlock<T>& block) {
  Ahead ahead;
  ahead.bytes = static_cast<std::int64_t>(block.ahead_width) * static_cast<int>(sizeof(T));
  ahead.next = 0;
  constexpr int kHalf = kStreams / 2;
  for (int i = 0; i < kStreams; ++i) {
    const T* const* list = i % 2 == 0 ? block.ahead_k : block.ahead_v;
    Ahead::Stream& s = ahead.streams[i];
    s.row = reinterpret_cast<const void* const*>(list + block.ahead * (i / 2) / kHalf);
    s.last = reinterpret_cast<const void* const*>(list + block.ahead * (i / 2 + 1) / kHalf);
    if (s.row != s.last) ahead.begin_row(s);
  }
  return ahead;
}

// s[r, j] = chain of q[r] by key j, keys in kVectors vectors of their transposed words.
template <typename T, int kRows, int kVectors>
void few_scores(float* s, std::int64_t lds, const float* q, std::int64_t ldq, const float* words,
                std::int64_t ldw, int count, Ahead& ahead) {
  constexpr int kPer = kPerWord<T>;
  constexpr int kKeys = kVectors * kWidth;  // as many half lines of memory per word
  F acc[kRows][kVectors];
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) acc[r][v] = zero();
  }
  for (int w = 0; w < count; ++w, words += ldw, q += kPer) {
    if constexpr (kKeys >= 32) {
      ahead.ask(kKeys / 32);
    } else if (kKeys == 16 && w % 2 == 0) {
      ahead.ask(1);
    }
    F x[kVectors][kPer];
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) split_words(bits(load(words + v * kWidth)), x[v]);
#pragma GCC unroll 2
    for (int i = 0; i < kPer; ++i) {
#pragma GCC unroll 8
      for (int r = 0; r < kRows; ++r) {
        const F y = set1(q[r * ldq + i]);
#pragma GCC unroll 8
        for (int v = 0; v < kVectors; ++v) acc[r][v] = fma(y, x[v][i], acc[r][v]);
      }
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) store(s + r * lds + v * kWidth, acc[r][v]);
  }
}

// o[r, ..] goes on through n keys with kVectors vectors of words of each value row, from element k
// on; a single vector may be cut to `words`.
template <typename T, int kRows, int kVectors>
void few_values(float* o, std::int64_t ldo, const float* e, std::int64_t lde, RowList<T> v, int n,
                int words, Ahead& ahead) {
  constexpr int kPer = kPerWord<T>;
  F acc[kRows][kVectors * kPer];
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 8
    for (int c = 0; c < kVectors * kPer; ++c) acc[r][c] = load(o + r * ldo + c * kWidth);
  }
  for (int j = 0; j < n; ++j) {
    const T* row = row_of(v, j);
    ahead.ask((kVectors * kWidth * 4 + 63) / 64);
#pragma GCC unroll 8
    for (int w = 0; w < kVectors; ++w) {
      F x[kPer];
      const T* from = row + w * kWidth * kPer;
      split_words(kVectors == 1 ? load_words_n(from, words) : load_words(from), x);
#pragma GCC unroll 8
      for (int r = 0; r < kRows; ++r) {
        const F y = set1(e[r * lde + j]);
#pragma GCC unroll 2
        for (int i = 0; i < kPer; ++i) acc[r][w * kPer + i] = fma(y, x[i], acc[r][w * kPer + i]);
      }
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 8
    for (int c = 0; c < kVectors * kPer; ++c) store(o + r * ldo + c * kWidth, acc[r][c]);
  }
}

template <typename T, int kRows>
void few_score_rows(float* s, std::int64_t lds, const float* q, std::int64_t ldq,
                    const float* words, std::int64_t ldw, int count, int keys, Ahead& ahead) {
  constexpr int kVectors = few_key_vectors(kRows);
  int j = 0;
  for (; j + kVectors * kWidth <= padded(keys); j += kVectors * kWidth) {
    few_scores<T, kRows, kVectors>(s + j, lds, q, ldq, words + j, ldw, count, ahead);
  }
  for (; j < keys; j += kWidth) {
    few_scores<T, kRows, 1>(s + j, lds, q, ldq, words + j, ldw, count, ahead);
  }
}

template <typename T, int kRows>
void few_value_rows(float* o, std::int64_t ldo, const float* e, std::int64_t lde, RowList<T> v,
                    int n, int d, Ahead& ahead) {
  constexpr int kPer = kPerWord<T>;
  constexpr int kVectors = few_value_vectors(kRows) / kPer;
  constexpr int kStep = kVectors * kPer * kWidth;
  int k = 0;
  for (; k + kStep <= d; k += kStep, v.offset += kStep) {
    few_values<T, kRows, kVectors>(o + k, ldo, e, lde, v, n, kWidth, ahead);
  }
  for (; k < d; k += kPer * kWidth, v.offset += kPer * kWidth) {
    const int words = at_most(kWidth, (d - k) / kPer);
    few_values<T, kRows, 1>(o + k, ldo, e, lde, v, n, words, ahead);
  }
}

// Calls body.operator()<rows>() for rows in [1, kFewTileRows].
template <int kRows, typename Body>
inline void with_few_rows(int rows, const Body& body) {
  if constexpr (kRows > 1) {
    if (rows < kRows) return with_few_rows<kRows - 1>(rows, body);
  }
  body.template operator()<kRows>();
}

// out[w, j] = word w of key j
template <typename T>
inline void transpose_words(float* out, std::int64_t ld, const KvBlock<T>& block, int begin,
                            int end, int d, Ahead& ahead) {
  constexpr int kPer = kPerWord<T>;
  for (int j = begin; j < end; j += kWidth) {
    for (int k = 0; k < d; k += kPer * kWidth) {
      const int words = at_most(kWidth, (d - k) / kPer);
      ahead.ask(kWidth * kWidth / 32);
      I x[kWidth];
      load_transposed(x, block.k, j, end, k, words);
      float* to = out + k / kPer * ld + (j - begin);
      for (int w = 0; w < words; ++w) store(to + w * ld, from_bits(x[w]));
    }
  }
}

template <typename T>
void add_block_few(const AttentionTile& t, const SoftmaxState& state, int first,
                   const KvBlock<T>& block) {
  constexpr int kKeys = kFewKeyVectors * kWidth;
  const int rows = t.rows - first;
  const int* visible = block.visible + first;
  const float* q = t.q + static_cast<std::int64_t>(first) * t.ld;
  Ahead ahead = start_ahead(block);
  for (int j = 0; j < block.n; j += kKeys) {
    const int keys = at_most(kKeys, block.n - j);
    transpose_words(t.kt, t.lds, block, j, j + keys, t.d, ahead);
    for (int r = 0; r < rows; r += kFewTileRows) {
      with_few_rows<kFewTileRows>(at_most(kFewTileRows, rows - r), [&]<int kRows>() {
        few_score_rows<T, kRows>(t.s + r * t.lds + j, t.lds,
                                 q + static_cast<std::int64_t>(r) * t.ld, t.ld, t.kt, t.lds,
                                 t.d / kPerWord<T>, keys, ahead);
      });
    }
  }
  for (int r = 0; r < rows; ++r) raise_max(t, state, first + r, t.s + r * t.lds, visible[r]);
  for (int r = 0; r < rows; ++r) {
    softmax_terms<T>(t, state, first + r, t.s + r * t.lds, visible[r], padded(block.n));
  }
  float* o = state.o + static_cast<std::int64_t>(first) * t.ld;
  for (int r = 0; r < rows; r += kFewTileRows) {
    const int tile_rows = at_most(kFewTileRows, rows - r);
    with_few_rows<kFewTileRows>(tile_rows, [&]<int kRows>() {
      few_value_rows<T, kRows>(o + static_cast<std::int64_t>(r) * t.ld, t.ld, t.s + r * t.lds,
                               t.lds, block.v, visible[r + tile_rows - 1], t.d, ahead);
    });
  }
}

// The row o in the order of columns. x is scratch.
template <typename T>
inline const float* in_order(const float* o, float* x, int d) {
  constexpr int kPer = kPerWord<T>;
  if constexpr (kPer == 1) return o;
  for (int k = 0; k < d; k += kPer * kWidth) {
    for (int i = 0; i < kPer * kWidth; ++i) {
      x[k + i] = o[k + i % kPer * kWidth + i / kPer];
    }
  }
  return x;
}
