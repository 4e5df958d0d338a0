// Row by row operators, one text for every instruction set. Included inside its anonymous namespace
// after the vectors. Sums run in a few vectors that are added at the end.

using rlk::production::RowsIsa;
using rlk::production::SoftmaxGradient;
using rlk::production::SoftmaxRow;
using rlk::production::SoftmaxSums;

inline float sum_lanes(F x) { return neighbour_tree(&x, 1); }

// Sum over k in [0, n): whole(k) and rest(k, count) give the terms of one vector.
template <typename Whole, typename Rest>
inline float sum_terms(std::int64_t n, const Whole& whole, const Rest& rest) {
  F acc[4] = {zero(), zero(), zero(), zero()};
  std::int64_t k = 0;
  for (; k + 4 * kWidth <= n; k += 4 * kWidth) {
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) acc[i] = whole(k + i * kWidth, acc[i]);
  }
  for (; k + kWidth <= n; k += kWidth) acc[0] = whole(k, acc[0]);
  if (k < n) acc[1] = rest(k, static_cast<int>(n - k), acc[1]);
  return sum_lanes((acc[0] + acc[1]) + (acc[2] + acc[3]));
}

std::int64_t rms_norm(std::uint16_t* y, std::int64_t y_stride, float* q, std::int64_t q_stride,
                      const std::uint16_t* x, std::int64_t x_stride, const std::uint16_t* w,
                      std::int64_t rows, std::int64_t n, float eps) {
  std::int64_t bad_row = -1;
  for (std::int64_t r = 0; r < rows; ++r, x += x_stride, y += y_stride) {
    const float sum = sum_terms(
        n,
        [&](std::int64_t k, F acc) {
          const F v = load_bf16(x + k);
          return fma(v, v, acc);
        },
        [&](std::int64_t k, int count, F acc) {
          const F v = load_bf16_n(x + k, count);
          return fma(v, v, acc);
        });
    if (!(sum < __builtin_inff()) && bad_row < 0) bad_row = r;
    const float scale = 1.0f / __builtin_sqrtf(sum / static_cast<float>(n) + eps);
    const F s = set1(scale);
    std::int64_t k = 0;
    for (; k + kWidth <= n; k += kWidth) {
      store_bf16(y + k, (load_bf16(x + k) * s) * load_bf16(w + k));
    }
    if (k < n) {
      const int count = static_cast<int>(n - k);
      store_bf16_n(y + k, (load_bf16_n(x + k, count) * s) * load_bf16_n(w + k, count), count);
    }
    if (q != nullptr) q[r * q_stride] = scale;
  }
  return bad_row;
}

void rms_norm_backward(std::uint16_t* dx, std::int64_t dx_stride, const std::uint16_t* dy,
                       std::int64_t dy_stride, const std::uint16_t* x, std::int64_t x_stride,
                       const std::uint16_t* w, const float* q, std::int64_t q_stride,
                       std::int64_t rows, std::int64_t n) {
  for (std::int64_t r = 0; r < rows; ++r, x += x_stride, dy += dy_stride, dx += dx_stride) {
    const float scale = q[r * q_stride];
    const float sum = sum_terms(
        n,
        [&](std::int64_t k, F acc) {
          return fma(load_bf16(dy + k) * load_bf16(w + k), load_bf16(x + k), acc);
        },
        [&](std::int64_t k, int count, F acc) {
          return fma(load_bf16_n(dy + k, count) * load_bf16_n(w + k, count),
                     load_bf16_n(x + k, count), acc);
        });
    const F z = set1(scale * scale * scale * (sum / static_cast<float>(n)));
    const F s = set1(scale);
    std::int64_t k = 0;
    for (; k + kWidth <= n; k += kWidth) {
      const F u = load_bf16(dy + k) * load_bf16(w + k);
      store_bf16(dx + k, u * s - load_bf16(x + k) * z);
    }
    if (k < n) {
      const int count = static_cast<int>(n - k);
      const F u = load_bf16_n(dy + k, count) * load_bf16_n(w + k, count);
      store_bf16_n(dx + k, u * s - load_bf16_n(x + k, count) * z, count);
    }
  }
}

// e^x for x <= 0 with a relative error near 2^-22; below about -87 the result is nearly 0.
inline F fast_exp(F x) {
  const F magic = set1(0x1.8p23f);
  x = max(x, set1(-87.0f));
  const F t = fma(x, set1(0x1.715476p+0f), magic);
  const F n = t - magic;
  const F r = fma(n, set1(0x1.05c61p-29f), fma(n, set1(-0x1.62e43p-1f), x));
  F p = fma(set1(0x1.6a23dp-10f), r, set1(0x1.123a2p-7f));
  p = fma(p, r, set1(0x1.5558f2p-5f));
  p = fma(p, r, set1(0x1.555492p-3f));
  p = fma(p, r, set1(0x1.fffffcp-2f));
  p = fma(p, r * r, r) + set1(1.0f);
  return from_bits(bits(p) + shift_left<23>(bits(t)));
}

// -2^30, below which a logit is a mask
constexpr float kMask = -0x1p30f;

SoftmaxSums softmax_sums(const SoftmaxRow& row, bool entropy) {
  const F scale = set1(row.scale);
  const F limit = set1(-kMask);
  const F largest = set1(__FLT_MAX__);
  const F minus_infinity = set1(-__builtin_inff());
  F top[2] = {minus_infinity, minus_infinity};
  M good = first_lanes(kWidth);
  const auto look = [&](std::int64_t k, int count, F* m) {
    const M inside = first_lanes(count);
    const F x = count == kWidth ? load(row.x + k) : load_n(row.x + k, count);
    const F z = x * scale;
    M fine = less_equal(z, limit);
    if (!row.filtered) fine = fine & less_equal(abs(x), largest);
    good = good & (fine | !inside);
    *m = max(select(inside, z, minus_infinity), *m);
  };
  std::int64_t k = 0;
  for (; k + 2 * kWidth <= row.n; k += 2 * kWidth) {
    look(k, kWidth, &top[0]);
    look(k + kWidth, kWidth, &top[1]);
  }
  for (; k < row.n; k += kWidth) {
    look(k, row.n - k < kWidth ? static_cast<int>(row.n - k) : kWidth, &top[0]);
  }
  const float max_z = max_lane(max(top[0], top[1]));
  if (!all(good) || !(max_z >= kMask)) return {max_z, 0, 0, true};

  const F m = set1(max_z);
  const F lowest = set1(-87.0f);
  F weighted = zero();
  const auto term = [&](F x, M inside, F acc) {
    const F z = x * scale - m;
    const F e = select(inside & less(lowest, z), fast_exp(z), zero());
    if (entropy) weighted = fma(e, max(z, lowest), weighted);
    return acc + e;
  };
  const float sum = sum_terms(
      row.n, [&](std::int64_t i, F acc) { return term(load(row.x + i), first_lanes(kWidth), acc); },
      [&](std::int64_t i, int count, F acc) {
        return term(load_n(row.x + i, count), first_lanes(count), acc);
      });
  return {max_z, sum, entropy ? sum_lanes(weighted) : 0.0f, false};
}

void softmax_gradient(std::uint16_t* dz, const SoftmaxRow& row, const SoftmaxGradient& g) {
  const F scale = set1(row.scale);
  const F m = set1(g.max);
  const F inverse = set1(g.inverse);
  const F lowest = set1(-87.0f);
  const F rate = set1(-g.g * g.out_scale);
  const F entropy_rate = set1(-g.g_entropy * g.out_scale);
  const F shift = set1(g.entropy - g.log_sum);
  const auto gradient = [&](F x) {
    const F z = x * scale - m;
    const F p = select(less(lowest, z), fast_exp(z) * inverse, zero());
    if (g.g_entropy == 0.0f) return p * rate;
    return p * fma(max(z, lowest) + shift, entropy_rate, rate);
  };
  std::int64_t k = 0;
  for (; k + kWidth <= row.n; k += kWidth) store_bf16(dz + k, gradient(load(row.x + k)));
  if (k < row.n) {
    const int count = static_cast<int>(row.n - k);
    store_bf16_n(dz + k, gradient(load_n(row.x + k, count)), count);
  }
}

double sum_of_squares(const float* x, std::int64_t n) {
  constexpr int kSums = 16;
  double acc[kSums] = {};
  std::int64_t k = 0;
  for (; k + kSums <= n; k += kSums) {
    for (int i = 0; i < kSums; ++i) {
      const double v = static_cast<double>(x[k + i]);
      acc[i] += v * v;
    }
  }
  double sum = 0;
  for (; k < n; ++k) sum += static_cast<double>(x[k]) * static_cast<double>(x[k]);
  for (int i = 0; i < kSums; ++i) sum += acc[i];
  return sum;
}

constexpr RowsIsa kTable = {
    .rms_norm = rms_norm,
    .rms_norm_backward = rms_norm_backward,
    .softmax_sums = softmax_sums,
    .softmax_gradient = softmax_gradient,
    .sum_of_squares = sum_of_squares,
};
