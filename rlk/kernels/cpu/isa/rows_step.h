// The optimizer step on arrays of numbers; part of rows_body.h.

void adamw(const AdamwRows& c, std::int64_t begin, std::int64_t end) {
  const F b1 = set1(c.b1), b2 = set1(c.b2), f1 = set1(c.f1), f2 = set1(c.f2);
  const F h1 = set1(c.h1), h2 = set1(c.h2), eps = set1(c.eps), wd = set1(c.wd);
  const F minus_lr = set1(-c.lr), scale = set1(c.grad_scale);
  const auto step = [&](F dw, F* w, F* m, F* v) {
    const F g = dw * scale;  // times 1 changes nothing
    *m = fma(b1, *m, f1 * g);
    *v = fma(b2, *v, f2 * (g * g));
    const F u = (*m / h1) / (sqrt(*v / h2) + eps);
    *w = fma(minus_lr, fma(wd, *w, u), *w);
  };
  std::int64_t i = begin;
  for (; i + kWidth <= end; i += kWidth) {
    F w = load(c.master + i), m = load(c.m + i), v = load(c.v + i);
    step(load(c.dw + i), &w, &m, &v);
    store(c.master + i, w);
    store(c.m + i, m);
    store(c.v + i, v);
    store_bf16(c.w + i, w);
  }
  if (i == end) return;
  const int count = static_cast<int>(end - i);
  F w = load_n(c.master + i, count), m = load_n(c.m + i, count), v = load_n(c.v + i, count);
  step(load_n(c.dw + i, count), &w, &m, &v);
  store_n(c.master + i, w, count);
  store_n(c.m + i, m, count);
  store_n(c.v + i, v, count);
  store_bf16_n(c.w + i, w, count);
}

int max_exponent(const float* x, std::int64_t n) {
  const I mask = set1(std::int32_t{0x7f800000});
  I largest[4];
  for (I& m : largest) m = set1(std::int32_t{0});
  std::int64_t k = 0;
  for (; k + 4 * kWidth <= n; k += 4 * kWidth) {
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) {
      largest[i] = max(largest[i], bits(load(x + k + i * kWidth)) & mask);
    }
  }
  for (; k < n; k += kWidth) {
    const int count = static_cast<int>(n - k < kWidth ? n - k : kWidth);
    largest[0] = max(largest[0], bits(load_n(x + k, count)) & mask);
  }
  std::int32_t lane[kWidth];
  store(lane, max(max(largest[0], largest[1]), max(largest[2], largest[3])));
  std::int32_t m = 1 << 23;
  for (std::int32_t l : lane) m = l > m ? l : m;
  return m >> 23;
}

// Terms of the norm of the even lanes, or of the odd ones: mant^2 * 2^16 >> shift.
inline void add_squares(L mant, L shift, L* low, L* high) {
  const L term = shift_right(shift_left(multiply_u32(mant, mant), set1_i64(16)), shift);
  *low = *low + (term & set1_i64(0xffffffff));
  *high = *high + shift_right(term, set1_i64(32));
}

WideSum square_sum(const float* x, std::int64_t n, int exponent) {
  const I one = set1(std::int32_t{1});
  L low[2], high[2];
  for (int i = 0; i < 2; ++i) low[i] = high[i] = set1_i64(0);
  for (std::int64_t k = 0; k < n; k += kWidth) {
    const F v = n - k < kWidth ? load_n(x + k, static_cast<int>(n - k)) : load(x + k);
    const I e = shift_right_logical<23>(bits(v)) & set1(std::int32_t{0xff});
    const M normal = less(set1(std::int32_t{0}), e);
    const I fraction = bits(v) & set1(std::int32_t{0x7fffff});
    const I mant = select(normal, fraction | set1(std::int32_t{0x800000}), fraction);
    const I distance = set1(std::int32_t{exponent}) - max(e, one);
    const I shift = distance + distance;
    add_squares(even_lanes(mant), even_lanes(shift), &low[0], &high[0]);
    add_squares(odd_lanes(mant), odd_lanes(shift), &low[1], &high[1]);
  }
  std::int64_t lanes_low[kWidth / 2], lanes_high[kWidth / 2];
  store(lanes_low, low[0] + low[1]);
  store(lanes_high, high[0] + high[1]);
  WideSum sum{0, 0};
  for (int i = 0; i < kWidth / 2; ++i) {
    sum.low += static_cast<std::uint64_t>(lanes_low[i]);
    sum.high += static_cast<std::uint64_t>(lanes_high[i]);
  }
  return sum;
}
