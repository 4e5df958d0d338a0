// The functions of gemm_isa.h on the vectors of vec_*.h, one text for every instruction set.
// Included inside an anonymous namespace, after the vectors and after
//   kMaxRows                 rows of the register tile
//   panels_at_once(rows)     packed panels that fit beside each other in registers
//   transpose(v)             of kWidth vectors
//   store_bf16_pair(p, x, y) two vectors beside each other, rounded

#define RLK_ALWAYS [[gnu::always_inline]] inline

using rlk::cpu::GemmAcc;
using rlk::cpu::GemmPiece;
using rlk::cpu::GemmRun;
using rlk::cpu::kGemmStrideA;
constexpr int kPanel = 2 * kWidth;

// R rows by two vectors of accumulators. Recursion instead of arrays, so that every compiler keeps
// each accumulator in a register of its own.
template <int R>
struct Rows {
  Rows<R - 1> above;
  F lo, hi;

  RLK_ALWAYS void clear() {
    above.clear();
    lo = zero();
    hi = zero();
  }
  RLK_ALWAYS void read(const float* acc, std::int64_t stride) {
    above.read(acc, stride);
    lo = load(acc + (R - 1) * stride);
    hi = load(acc + (R - 1) * stride + kWidth);
  }
  RLK_ALWAYS void add(const float* acc, std::int64_t stride) {
    above.add(acc, stride);
    lo = load(acc + (R - 1) * stride) + lo;
    hi = load(acc + (R - 1) * stride + kWidth) + hi;
  }
  RLK_ALWAYS void write(float* acc, std::int64_t stride) const {
    above.write(acc, stride);
    store(acc + (R - 1) * stride, lo);
    store(acc + (R - 1) * stride + kWidth, hi);
  }
  RLK_ALWAYS void step(const float* a, F b_lo, F b_hi) {
    above.step(a, b_lo, b_hi);
    const F x = set1(a[(R - 1) * kGemmStrideA]);
    lo = fma(x, b_lo, lo);
    hi = fma(x, b_hi, hi);
  }
};
template <>
struct Rows<0> {
  RLK_ALWAYS void clear() {}
  RLK_ALWAYS void read(const float*, std::int64_t) {}
  RLK_ALWAYS void add(const float*, std::int64_t) {}
  RLK_ALWAYS void write(float*, std::int64_t) const {}
  RLK_ALWAYS void step(const float*, F, F) {}
};

// The two vectors of one row of a panel.
struct Pair {
  F lo, hi;
};
RLK_ALWAYS Pair load_pair(const float* p) { return {load(p), load(p + kWidth)}; }
RLK_ALWAYS Pair load_pair(const std::uint16_t* p) {
  const I both = load(reinterpret_cast<const std::int32_t*>(p));
  return {from_bits(shift_left<16>(both)),
          from_bits(both & set1(static_cast<std::int32_t>(0xffff0000u)))};
}

// R rows by P panels: few rows need several panels to keep the multipliers busy.
template <int R, int P>
struct Panels {
  Panels<R, P - 1> before;
  Rows<R> rows;

  RLK_ALWAYS void clear() {
    before.clear();
    rows.clear();
  }
  RLK_ALWAYS void read(const float* acc, const GemmAcc& at) {
    before.read(acc, at);
    rows.read(acc + (P - 1) * at.panel_stride, at.row_stride);
  }
  RLK_ALWAYS void add(const float* acc, const GemmAcc& at) {
    before.add(acc, at);
    rows.add(acc + (P - 1) * at.panel_stride, at.row_stride);
  }
  RLK_ALWAYS void write(float* acc, const GemmAcc& at) const {
    before.write(acc, at);
    rows.write(acc + (P - 1) * at.panel_stride, at.row_stride);
  }
  template <typename T>
  RLK_ALWAYS void step(const float* a, const T* b, std::int64_t panel_stride) {
    before.step(a, b, panel_stride);
    const Pair pair = load_pair(b + (P - 1) * panel_stride);
    rows.step(a, pair.lo, pair.hi);
  }
};
template <int R>
struct Panels<R, 0> {
  RLK_ALWAYS void clear() {}
  RLK_ALWAYS void read(const float*, const GemmAcc&) {}
  RLK_ALWAYS void add(const float*, const GemmAcc&) {}
  RLK_ALWAYS void write(float*, const GemmAcc&) const {}
  template <typename T>
  RLK_ALWAYS void step(const float*, const T*, std::int64_t) {}
};

// R rows from `row` on by P panels from `panel` on, through all runs of the piece.
template <int R, int P, typename T>
void tile(const GemmPiece& piece, std::int64_t row, std::int64_t panel) {
  const GemmAcc at = piece.acc;
  const std::int64_t panel_stride = piece.b_panel_stride;
  const float* a_rows = piece.a + row * kGemmStrideA;
  const T* b_panel = static_cast<const T*>(piece.b) + panel * panel_stride;
  float* sums_of_tile = at.data + panel * at.panel_stride + row * at.row_stride;
  // The sums of the next tile are asked for early: in matrices the hardware does not guess them.
  const float* next =
      sums_of_tile + (panel + P < piece.num_panels ? P * at.panel_stride : R * at.row_stride);
  for (int r = 0; r < R; ++r) {
    __builtin_prefetch(next + r * at.row_stride, 1);
    __builtin_prefetch(next + r * at.row_stride + kWidth, 1);
  }
  Panels<R, P> sums;
  sums.clear();
  for (std::int64_t i = 0; i < piece.num_runs; ++i) {
    const GemmRun& run = piece.runs[i];
    float* acc = sums_of_tile + run.level * at.level_stride;
    if (run.start == GemmRun::kFresh) {
      sums.clear();
    } else if (run.start == GemmRun::kLoad) {
      sums.read(acc, at);
    }
    const float* a = a_rows + run.a;
    const T* b = b_panel + run.b * kPanel;
    for (const float* end = a + run.depth; a != end; ++a) {
      sums.step(a, b, panel_stride);
      b += kPanel;
    }
    for (std::int32_t m = 0; m < run.merges; ++m) {
      acc -= at.level_stride;
      sums.add(acc, at);
    }
    if (run.store) sums.write(acc, at);
  }
}

// Rows are spread evenly over the tiles: 15 rows are 8 + 7, not 14 + 1.
template <typename Tile>
RLK_ALWAYS void for_each_tile(std::int64_t rows, const Tile& body) {
  const std::int64_t tiles = (rows + kMaxRows - 1) / kMaxRows;
  std::int64_t begin = 0;
  for (std::int64_t t = 0; t < tiles; ++t) {
    const std::int64_t count = rows / tiles + (t < rows % tiles ? 1 : 0);
    body(begin, count);
    begin += count;
  }
}

// Calls body.template operator()<R>() for R = rows <= kMaxRows.
template <int R, typename Body>
RLK_ALWAYS void with_rows(std::int64_t rows, const Body& body) {
  if constexpr (R > 1) {
    if (rows < R) return with_rows<R - 1>(rows, body);
  }
  body.template operator()<R>();
}

template <typename T>
void product(const GemmPiece& piece) {
  for_each_tile(piece.rows, [&](std::int64_t begin, std::int64_t count) {
    with_rows<kMaxRows>(count, [&]<int R>() {
      constexpr int kP = panels_at_once(R);
      std::int64_t p = 0;
      for (; p + kP <= piece.num_panels; p += kP) tile<R, kP, T>(piece, begin, p);
      for (; p < piece.num_panels; ++p) tile<R, 1, T>(piece, begin, p);
    });
  });
}

// Rows of a piece are short, and the hardware does not guess where the next one begins.
constexpr std::int64_t kRowsAhead = 6;

template <typename T>
void widen_rows(float* dst, std::int64_t dst_stride, const T* src, std::int64_t stride_i,
                std::int64_t rows, std::int64_t cols) {
  for (std::int64_t i = 0; i < rows; ++i) {
    const T* x = src + i * stride_i;
    float* y = dst + i * dst_stride;
    std::int64_t j = 0;
    for (; j + kWidth <= cols; j += kWidth) {
      __builtin_prefetch(x + kRowsAhead * stride_i + j);
      store(y + j, load_value(x + j));
    }
    if (j < cols) store_n(y + j, load_value_n(x + j, cols - j), cols - j);
  }
}

// src has its rows beside each other: squares of kWidth are turned in registers.
template <typename T>
void widen_columns(float* dst, std::int64_t dst_stride, const T* src, std::int64_t stride_j,
                   std::int64_t rows, std::int64_t cols) {
  for (std::int64_t j = 0; j < cols; j += kWidth) {
    const std::int64_t nj = cols - j < kWidth ? cols - j : kWidth;
    for (std::int64_t i = 0; i < rows; i += kWidth) {
      const std::int64_t ni = rows - i < kWidth ? rows - i : kWidth;
      const T* x = src + i + j * stride_j;
      float* y = dst + i * dst_stride + j;
      F v[kWidth];
      if (ni == kWidth && nj == kWidth) {
        for (int l = 0; l < kWidth; ++l) v[l] = load_value(x + l * stride_j);
        transpose(v);
        for (int l = 0; l < kWidth; ++l) store(y + l * dst_stride, v[l]);
      } else {
        for (int l = 0; l < kWidth; ++l)
          v[l] = l < nj ? load_value_n(x + l * stride_j, ni) : zero();
        transpose(v);
        for (int l = 0; l < ni; ++l) store_n(y + l * dst_stride, v[l], nj);
      }
    }
  }
}

inline float widened(float x) { return x; }
inline float widened(std::uint16_t x) {
  return __builtin_bit_cast(float, static_cast<std::uint32_t>(x) << 16);
}

template <typename T>
void widen(float* dst, std::int64_t dst_stride, const T* src, std::int64_t stride_i,
           std::int64_t stride_j, std::int64_t rows, std::int64_t cols) {
  if (stride_j == 1) {
    widen_rows(dst, dst_stride, src, stride_i, rows, cols);
  } else if (stride_i == 1) {
    widen_columns(dst, dst_stride, src, stride_j, rows, cols);
  } else {
    for (std::int64_t i = 0; i < rows; ++i) {
      for (std::int64_t j = 0; j < cols; ++j) {
        dst[i * dst_stride + j] = widened(src[i * stride_i + j * stride_j]);
      }
    }
  }
}

void pack(std::uint16_t* packed, const float* b, std::int64_t depth) {
  for (std::int64_t k = 0; k < depth; ++k) {
    const I lo = shift_right_logical<16>(bits(load(b + k * kPanel)));
    const I hi = bits(load(b + k * kPanel + kWidth));
    store(reinterpret_cast<std::int32_t*>(packed + k * kPanel), lo | hi);
  }
}

void unpack(float* b, const std::uint16_t* packed, std::int64_t depth) {
  for (std::int64_t k = 0; k < depth; ++k) {
    const Pair pair = load_pair(packed + k * kPanel);
    store(b + k * kPanel, pair.lo);
    store(b + k * kPanel + kWidth, pair.hi);
  }
}

void add(float* dst, const float* src, std::int64_t n) {
  std::int64_t i = 0;
  for (; i + kWidth <= n; i += kWidth) store(dst + i, load(dst + i) + load(src + i));
  if (i < n) store_n(dst + i, load_n(dst + i, n - i) + load_n(src + i, n - i), n - i);
}

// One row of a panel; n <= kPanel numbers are there.
RLK_ALWAYS void put(float* y, F lo, F hi, std::int64_t n) {
  if (n == kPanel) {
    store_value(y, lo);
    store_value(y + kWidth, hi);
    return;
  }
  store_value_n(y, lo, n < kWidth ? n : kWidth);
  if (n > kWidth) store_value_n(y + kWidth, hi, n - kWidth);
}
RLK_ALWAYS void put(std::uint16_t* y, F lo, F hi, std::int64_t n) {
  if (n == kPanel) return store_bf16_pair(y, lo, hi);
  store_bf16_n(y, lo, n < kWidth ? n : kWidth);
  if (n > kWidth) store_bf16_n(y + kWidth, hi, n - kWidth);
}

template <typename T>
void finish(T* y, std::int64_t y_stride, const float* acc, const float* bias, std::int64_t rows,
            std::int64_t cols) {
  F lo = zero(), hi = zero();  // a sum is not -0, so adding +0 once more changes nothing
  if (bias != nullptr) {
    lo = load_n(bias, cols < kWidth ? cols : kWidth);
    if (cols > kWidth) hi = load_n(bias + kWidth, cols - kWidth);
  }
  for (std::int64_t i = 0; i < rows; ++i, y += y_stride, acc += kPanel) {
    put(y, (load(acc) + zero()) + lo, (load(acc + kWidth) + zero()) + hi, cols);
  }
}

template <typename T>
void add_block_sum(float* total, const T* x, std::int64_t x_stride, std::int64_t rows,
                   std::int64_t cols) {
  std::int64_t j = 0;
  for (; j + kWidth <= cols; j += kWidth) {
    F acc = zero();
    for (std::int64_t i = 0; i < rows; ++i) acc = acc + load_value(x + i * x_stride + j);
    store(total + j, load(total + j) + acc);
  }
  if (j < cols) {
    const std::int64_t n = cols - j;
    F acc = zero();
    for (std::int64_t i = 0; i < rows; ++i) acc = acc + load_value_n(x + i * x_stride + j, n);
    store_n(total + j, load_n(total + j, n) + acc, n);
  }
}

constexpr rlk::cpu::GemmIsa kTable = {kPanel,
                                      kDirectRows,
                                      widen<std::uint16_t>,
                                      widen<float>,
                                      pack,
                                      unpack,
                                      product<float>,
                                      product<std::uint16_t>,
                                      add,
                                      finish<float>,
                                      finish<std::uint16_t>,
                                      add_block_sum<std::uint16_t>,
                                      add_block_sum<float>};

#undef RLK_ALWAYS
