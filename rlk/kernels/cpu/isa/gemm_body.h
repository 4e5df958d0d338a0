// The functions of gemm_isa.h on the vectors of vec_*.h, one text for every instruction set.
// Included inside an anonymous namespace, after the vectors and after
//   kMaxRows                 rows of the register tile
//   panels_at_once(rows)     packed panels that fit beside each other in registers
//   transpose(v)             of kWidth vectors

#define RLK_ALWAYS [[gnu::always_inline]] inline

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
  RLK_ALWAYS void read(const float* acc) {
    above.read(acc);
    lo = load(acc + (R - 1) * kPanel);
    hi = load(acc + (R - 1) * kPanel + kWidth);
  }
  RLK_ALWAYS void write(float* acc) const {
    above.write(acc);
    store(acc + (R - 1) * kPanel, lo);
    store(acc + (R - 1) * kPanel + kWidth, hi);
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
  RLK_ALWAYS void read(const float*) {}
  RLK_ALWAYS void write(float*) const {}
  RLK_ALWAYS void step(const float*, F, F) {}
};

template <int R>
void tile(float* acc, const float* a, const float* b, std::int64_t depth, bool fresh) {
  Rows<R> rows;
  if (fresh) {
    rows.clear();
  } else {
    rows.read(acc);
  }
  for (std::int64_t k = 0; k < depth; ++k) {
    rows.step(a + k, load(b), load(b + kWidth));
    b += kPanel;
  }
  rows.write(acc);
}

// The two vectors of one packed row of a panel.
struct Pair {
  F lo, hi;
};
RLK_ALWAYS Pair load_packed(const std::uint16_t* p) {
  const I both = load(reinterpret_cast<const std::int32_t*>(p));
  return {from_bits(shift_left<16>(both)),
          from_bits(both & set1(static_cast<std::int32_t>(0xffff0000u)))};
}

// R rows by P packed panels: few rows need several panels to keep the multipliers busy.
template <int R, int P>
struct Panels {
  Panels<R, P - 1> before;
  Rows<R> rows;

  RLK_ALWAYS void clear() {
    before.clear();
    rows.clear();
  }
  RLK_ALWAYS void read(const float* acc, std::int64_t acc_stride) {
    before.read(acc, acc_stride);
    rows.read(acc + (P - 1) * acc_stride);
  }
  RLK_ALWAYS void write(float* acc, std::int64_t acc_stride) const {
    before.write(acc, acc_stride);
    rows.write(acc + (P - 1) * acc_stride);
  }
  RLK_ALWAYS void step(const float* a, const std::uint16_t* packed, std::int64_t panel_stride) {
    before.step(a, packed, panel_stride);
    const Pair b = load_packed(packed + (P - 1) * panel_stride);
    rows.step(a, b.lo, b.hi);
  }
};
template <int R>
struct Panels<R, 0> {
  RLK_ALWAYS void clear() {}
  RLK_ALWAYS void read(const float*, std::int64_t) {}
  RLK_ALWAYS void write(float*, std::int64_t) const {}
  RLK_ALWAYS void step(const float*, const std::uint16_t*, std::int64_t) {}
};

template <int R, int P>
void tile_packed(float* acc, std::int64_t acc_stride, const float* a, const std::uint16_t* packed,
                 std::int64_t panel_stride, std::int64_t depth, bool fresh) {
  Panels<R, P> panels;
  if (fresh) {
    panels.clear();
  } else {
    panels.read(acc, acc_stride);
  }
  for (std::int64_t k = 0; k < depth; ++k) {
    panels.step(a + k, packed, panel_stride);
    packed += kPanel;
  }
  panels.write(acc, acc_stride);
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

void product(float* acc, const float* a, const float* b, std::int64_t rows, std::int64_t depth,
             bool fresh) {
  for_each_tile(rows, [=](std::int64_t begin, std::int64_t count) {
    with_rows<kMaxRows>(count, [=]<int R>() {
      tile<R>(acc + begin * kPanel, a + begin * kGemmStrideA, b, depth, fresh);
    });
  });
}

void product_packed(float* acc, const float* a, const std::uint16_t* packed,
                    std::int64_t panel_stride, std::int64_t num_panels, std::int64_t rows,
                    std::int64_t depth, bool fresh) {
  const std::int64_t acc_stride = rows * kPanel;
  for_each_tile(rows, [=](std::int64_t begin, std::int64_t count) {
    with_rows<kMaxRows>(count, [=]<int R>() {
      constexpr int kP = panels_at_once(R);
      float* y = acc + begin * kPanel;
      const float* x = a + begin * kGemmStrideA;
      std::int64_t p = 0;
      for (; p + kP <= num_panels; p += kP) {
        tile_packed<R, kP>(y + p * acc_stride, acc_stride, x, packed + p * panel_stride,
                           panel_stride, depth, fresh);
      }
      for (; p < num_panels; ++p) {
        tile_packed<R, 1>(y + p * acc_stride, acc_stride, x, packed + p * panel_stride,
                          panel_stride, depth, fresh);
      }
    });
  });
}

void widen_rows(float* dst, std::int64_t dst_stride, const std::uint16_t* src,
                std::int64_t stride_i, std::int64_t rows, std::int64_t cols) {
  for (std::int64_t i = 0; i < rows; ++i) {
    const std::uint16_t* x = src + i * stride_i;
    float* y = dst + i * dst_stride;
    std::int64_t j = 0;
    for (; j + kWidth <= cols; j += kWidth) store(y + j, load_bf16(x + j));
    if (j < cols) store_n(y + j, load_bf16_n(x + j, cols - j), cols - j);
  }
}

// src has its rows beside each other: squares of kWidth are turned in registers.
void widen_columns(float* dst, std::int64_t dst_stride, const std::uint16_t* src,
                   std::int64_t stride_j, std::int64_t rows, std::int64_t cols) {
  for (std::int64_t j = 0; j < cols; j += kWidth) {
    const std::int64_t nj = cols - j < kWidth ? cols - j : kWidth;
    for (std::int64_t i = 0; i < rows; i += kWidth) {
      const std::int64_t ni = rows - i < kWidth ? rows - i : kWidth;
      const std::uint16_t* x = src + i + j * stride_j;
      float* y = dst + i * dst_stride + j;
      F v[kWidth];
      if (ni == kWidth && nj == kWidth) {
        for (int l = 0; l < kWidth; ++l) v[l] = load_bf16(x + l * stride_j);
        transpose(v);
        for (int l = 0; l < kWidth; ++l) store(y + l * dst_stride, v[l]);
      } else {
        for (int l = 0; l < kWidth; ++l) v[l] = l < nj ? load_bf16_n(x + l * stride_j, ni) : zero();
        transpose(v);
        for (int l = 0; l < ni; ++l) store_n(y + l * dst_stride, v[l], nj);
      }
    }
  }
}

void widen(float* dst, std::int64_t dst_stride, const std::uint16_t* src, std::int64_t stride_i,
           std::int64_t stride_j, std::int64_t rows, std::int64_t cols) {
  if (stride_j == 1) {
    widen_rows(dst, dst_stride, src, stride_i, rows, cols);
  } else if (stride_i == 1) {
    widen_columns(dst, dst_stride, src, stride_j, rows, cols);
  } else {
    for (std::int64_t i = 0; i < rows; ++i) {
      for (std::int64_t j = 0; j < cols; ++j) {
        const std::uint32_t bits = std::uint32_t{src[i * stride_i + j * stride_j]} << 16;
        dst[i * dst_stride + j] = __builtin_bit_cast(float, bits);
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
    const Pair pair = load_packed(packed + k * kPanel);
    store(b + k * kPanel, pair.lo);
    store(b + k * kPanel + kWidth, pair.hi);
  }
}

void add(float* dst, const float* src, std::int64_t n) {
  std::int64_t i = 0;
  for (; i + kWidth <= n; i += kWidth) store(dst + i, load(dst + i) + load(src + i));
  if (i < n) store_n(dst + i, load_n(dst + i, n - i) + load_n(src + i, n - i), n - i);
}

RLK_ALWAYS void put(float* y, F x, std::int64_t n) { n == kWidth ? store(y, x) : store_n(y, x, n); }
RLK_ALWAYS void put(std::uint16_t* y, F x, std::int64_t n) {
  n == kWidth ? store_bf16(y, x) : store_bf16_n(y, x, n);
}

template <typename T>
RLK_ALWAYS void finish(T* y, std::int64_t y_stride, const float* acc, const std::uint16_t* bias,
                       std::int64_t rows, std::int64_t cols) {
  for (std::int64_t j = 0; j < cols; j += kWidth) {
    const std::int64_t n = cols - j < kWidth ? cols - j : kWidth;
    const F shift = bias ? load_bf16_n(bias + j, n) : zero();
    for (std::int64_t i = 0; i < rows; ++i) {
      const F sum = load(acc + i * kPanel + j) + zero();
      put(y + i * y_stride + j, sum + shift, n);  // sum is not -0, so adding +0 changes nothing
    }
  }
}

void finish_f32(float* y, std::int64_t y_stride, const float* acc, const std::uint16_t* bias,
                std::int64_t rows, std::int64_t cols) {
  finish(y, y_stride, acc, bias, rows, cols);
}
void finish_bf16(std::uint16_t* y, std::int64_t y_stride, const float* acc,
                 const std::uint16_t* bias, std::int64_t rows, std::int64_t cols) {
  finish(y, y_stride, acc, bias, rows, cols);
}

void add_block_sum(float* total, const std::uint16_t* x, std::int64_t x_stride, std::int64_t rows,
                   std::int64_t cols) {
  std::int64_t j = 0;
  for (; j + kWidth <= cols; j += kWidth) {
    F acc = zero();
    for (std::int64_t i = 0; i < rows; ++i) acc = acc + load_bf16(x + i * x_stride + j);
    store(total + j, load(total + j) + acc);
  }
  if (j < cols) {
    const std::int64_t n = cols - j;
    F acc = zero();
    for (std::int64_t i = 0; i < rows; ++i) acc = acc + load_bf16_n(x + i * x_stride + j, n);
    store_n(total + j, load_n(total + j, n) + acc, n);
  }
}

constexpr rlk::cpu::GemmIsa kTable = {kPanel,     kDirectRows, widen,          pack,
                                      unpack,     product,     product_packed, add,
                                      finish_f32, finish_bf16, add_block_sum};

#undef RLK_ALWAYS
