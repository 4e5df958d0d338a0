// rms_norm and its gradients on rows; part of rows_body.h.

// Terms of the two lane sums: step(k, acc) takes the elements at k, step_n the first `count`.
struct Squares {
  const std::uint16_t* x;
  F step(std::int64_t k, F acc) const {
    const F v = load_bf16(x + k);
    return fma(v, v, acc);
  }
  F step_n(std::int64_t k, int count, F acc) const {
    const F v = load_bf16_n(x + k, count);
    return fma(v, v, acc);
  }
};

struct WeightedProducts {
  const std::uint16_t* dy;
  const std::uint16_t* w;
  const std::uint16_t* x;
  F step(std::int64_t k, F acc) const {
    return fma(load_bf16(dy + k) * load_bf16(w + k), load_bf16(x + k), acc);
  }
  F step_n(std::int64_t k, int count, F acc) const {
    return fma(load_bf16_n(dy + k, count) * load_bf16_n(w + k, count), load_bf16_n(x + k, count),
               acc);
  }
};

// The lanes [first, first + kGroup * kWidth) of a lane sum.
template <int kGroup, typename Terms>
inline void sum_lanes(F* lane, const Terms& terms, std::int64_t first, std::int64_t n,
                      std::int64_t lanes) {
  F acc[kGroup];
#pragma GCC unroll 8
  for (int i = 0; i < kGroup; ++i) acc[i] = zero();
  std::int64_t k = first;
  for (; k + kGroup * kWidth <= n; k += lanes) {
#pragma GCC unroll 8
    for (int i = 0; i < kGroup; ++i) acc[i] = terms.step(k + i * kWidth, acc[i]);
  }
#pragma GCC unroll 8
  for (int i = 0; i < kGroup; ++i) {
    const std::int64_t at = k + i * kWidth;
    if (at + kWidth <= n) {
      acc[i] = terms.step(at, acc[i]);
    } else if (at < n) {
      acc[i] = terms.step_n(at, static_cast<int>(n - at), acc[i]);
    }
    lane[i] = acc[i];
  }
}

template <typename Terms>
inline float lane_sum(const Terms& terms, std::int64_t n, std::int64_t lanes) {
  // Lanes past the end are +0 and neutral, so a short row needs a part of the tree only.
  std::int64_t used = lanes;
  while (used > kWidth && used / 2 >= n) used /= 2;
  const int count = static_cast<int>(used / kWidth);
  F lane[1024 / kWidth];
  for (int i = 0; i < count;) {
    const std::int64_t first = std::int64_t{i} * kWidth;
    const int left = count - i;
    if (left >= 8) {
      sum_lanes<8>(lane + i, terms, first, n, lanes);
      i += 8;
    } else if (left >= 4) {
      sum_lanes<4>(lane + i, terms, first, n, lanes);
      i += 4;
    } else {
      sum_lanes<1>(lane + i, terms, first, n, lanes);
      i += 1;
    }
  }
  return neighbour_tree(lane, count) + 0.0f;
}

inline bool finite(float x) {
  return (__builtin_bit_cast(std::uint32_t, x) & 0x7f800000u) != 0x7f800000u;
}

std::int64_t rms_norm(std::uint16_t* y, std::int64_t y_stride, float* q, std::int64_t q_stride,
                      const std::uint16_t* x, std::int64_t x_stride, const std::uint16_t* w,
                      std::int64_t rows, std::int64_t n, std::int64_t lanes, float eps) {
  std::int64_t bad_row = -1;
  for (std::int64_t r = 0; r < rows; ++r) {
    const std::uint16_t* xr = x + r * x_stride;
    std::uint16_t* yr = y + r * y_stride;
    const float sum = lane_sum(Squares{xr}, n, lanes);
    if (!finite(sum) && bad_row < 0) bad_row = r;
    const float scale = 1.0f / __builtin_sqrtf(sum / static_cast<float>(n) + eps);
    const F s = set1(scale);
    std::int64_t k = 0;
    for (; k + kWidth <= n; k += kWidth) {
      store_bf16(yr + k, (load_bf16(xr + k) * s) * load_bf16(w + k));
    }
    if (k < n) {
      const int count = static_cast<int>(n - k);
      store_bf16_n(yr + k, (load_bf16_n(xr + k, count) * s) * load_bf16_n(w + k, count), count);
    }
    if (q != nullptr) q[r * q_stride] = scale;
  }
  return bad_row;
}

void rms_norm_backward(std::uint16_t* dx, std::int64_t dx_stride, const std::uint16_t* dy,
                       std::int64_t dy_stride, const std::uint16_t* x, std::int64_t x_stride,
                       const std::uint16_t* w, const float* q, std::int64_t q_stride,
                       std::int64_t rows, std::int64_t n, std::int64_t lanes) {
  for (std::int64_t r = 0; r < rows; ++r) {
    const std::uint16_t* xr = x + r * x_stride;
    const std::uint16_t* dyr = dy + r * dy_stride;
    std::uint16_t* dxr = dx + r * dx_stride;
    const float scale = q[r * q_stride];
    const float sum = lane_sum(WeightedProducts{dyr, w, xr}, n, lanes);
    const F z = set1(((scale * scale) * scale) * (sum / static_cast<float>(n)));
    const F s = set1(scale);
    std::int64_t k = 0;
    for (; k + kWidth <= n; k += kWidth) {
      const F u = load_bf16(dyr + k) * load_bf16(w + k);
      store_bf16(dxr + k, fma(u, s, neg(load_bf16(xr + k) * z)));
    }
    if (k < n) {
      const int count = static_cast<int>(n - k);
      const F u = load_bf16_n(dyr + k, count) * load_bf16_n(w + k, count);
      store_bf16_n(dxr + k, fma(u, s, neg(load_bf16_n(xr + k, count) * z)), count);
    }
  }
}

// Columns [k, k + kGroup * kWidth), or the first `count` of one vector.
template <int kGroup>
inline void weight_columns(float* dw, const std::uint16_t* dy, std::int64_t dy_stride,
                           const std::uint16_t* x, std::int64_t x_stride, const float* q,
                           std::int64_t q_stride, std::int64_t rows, bool fresh) {
  F acc[kGroup];
#pragma GCC unroll 4
  for (int i = 0; i < kGroup; ++i) acc[i] = zero();
  for (std::int64_t r = 0; r < rows; ++r) {
    const F s = set1(q[r * q_stride]);
#pragma GCC unroll 4
    for (int i = 0; i < kGroup; ++i) {
      const std::int64_t at = i * kWidth;
      acc[i] =
          fma(load_bf16(dy + r * dy_stride + at), load_bf16(x + r * x_stride + at) * s, acc[i]);
    }
  }
#pragma GCC unroll 4
  for (int i = 0; i < kGroup; ++i) {
    float* out = dw + i * kWidth;
    store(out, fresh ? acc[i] : load(out) + acc[i]);
  }
}

void rms_norm_weight(float* dw, const std::uint16_t* dy, std::int64_t dy_stride,
                     const std::uint16_t* x, std::int64_t x_stride, const float* q,
                     std::int64_t q_stride, std::int64_t rows, std::int64_t n, bool fresh) {
  std::int64_t k = 0;
  for (; k + 4 * kWidth <= n; k += 4 * kWidth) {
    weight_columns<4>(dw + k, dy + k, dy_stride, x + k, x_stride, q, q_stride, rows, fresh);
  }
  for (; k + kWidth <= n; k += kWidth) {
    weight_columns<1>(dw + k, dy + k, dy_stride, x + k, x_stride, q, q_stride, rows, fresh);
  }
  if (k == n) return;
  const int count = static_cast<int>(n - k);
  F acc = zero();
  for (std::int64_t r = 0; r < rows; ++r) {
    acc = fma(load_bf16_n(dy + r * dy_stride + k, count),
              load_bf16_n(x + r * x_stride + k, count) * set1(q[r * q_stride]), acc);
  }
  store_n(dw + k, fresh ? acc : load_n(dw + k, count) + acc, count);
}

void merge_heads(float* dw, const float* partial, std::int64_t stride, std::int64_t rows,
                 std::int64_t n, std::int64_t leaves) {
  F cut[64];
  for (std::int64_t k = 0; k < n; k += kWidth) {
    const int count = static_cast<int>(n - k < kWidth ? n - k : kWidth);
    for (std::int64_t i = 0; i < leaves; ++i) {
      F acc = zero();
      for (std::int64_t h = i * rows / leaves; h < (i + 1) * rows / leaves; ++h) {
        acc = acc + load_n(partial + h * stride + k, count);
      }
      cut[i] = acc;
    }
    for (std::int64_t m = leaves; m > 1; m /= 2) {
      for (std::int64_t i = 0; i < m / 2; ++i) cut[i] = cut[2 * i] + cut[2 * i + 1];
    }
    store_n(dw + k, cut[0] + zero(), count);
  }
}
