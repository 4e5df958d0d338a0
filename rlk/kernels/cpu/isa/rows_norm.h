// rms_norm and its gradients on rows; part of rows_body.h.

// The lanes [first, first + kGroup * kPair) of a lane sum, folded once: kGroup vectors of sums of
// neighbouring lanes. term(k, acc) adds the elements at k, term_n(k, count, acc) the first `count`.
template <typename T, int kGroup, typename Term, typename TermN>
inline void sum_lanes(F* sums, const Term& term, const TermN& term_n, std::int64_t first,
                      std::int64_t n, std::int64_t lanes) {
  P acc[kGroup];
#pragma GCC unroll 4
  for (int i = 0; i < kGroup; ++i) acc[i] = both(zero());
  std::int64_t k = first;
  for (; k + kGroup * kPair <= n; k += lanes) {
#pragma GCC unroll 4
    for (int i = 0; i < kGroup; ++i) acc[i] = term(k + i * kPair, acc[i]);
  }
#pragma GCC unroll 4
  for (int i = 0; i < kGroup; ++i) {
    const std::int64_t at = k + i * kPair;
    if (at + kPair <= n) {
      acc[i] = term(at, acc[i]);
    } else if (at < n) {
      acc[i] = term_n(at, static_cast<int>(n - at), acc[i]);
    }
    sums[i] = add_neighbours<T>(acc[i]);
  }
}

// A lane sum up to the last vector: what is left of its neighbour tree is in the vector. `lanes` is
// a power of two from kPair to 1024.
template <typename T, typename Term, typename TermN>
inline F lane_sum(const Term& term, const TermN& term_n, std::int64_t n, std::int64_t lanes) {
  // Lanes past the end are +0 and neutral, so a short row needs a part of the tree only.
  std::int64_t used = lanes;
  while (used > kPair && used / 2 >= n) used /= 2;
  const int count = static_cast<int>(used / kPair);
  F sums[1024 / kPair];
  int i = 0;
  for (; i + 4 <= count; i += 4) {
    sum_lanes<T, 4>(sums + i, term, term_n, std::int64_t{i} * kPair, n, lanes);
  }
  for (; i < count; ++i) {
    sum_lanes<T, 1>(sums + i, term, term_n, std::int64_t{i} * kPair, n, lanes);
  }
  for (int left = count; left > 1; left /= 2) {
    for (int j = 0; j < left / 2; ++j) sums[j] = pair_add(sums[2 * j], sums[2 * j + 1]);
  }
  return sums[0];
}

// Lane r is the sum of x[r] by the neighbour tree, ending with + (+0); x is overwritten.
inline F row_sums(F (&x)[kWidth]) {
#pragma GCC unroll 4
  for (int left = kWidth; left > 1; left /= 2) {
#pragma GCC unroll 8
    for (int i = 0; i < left / 2; ++i) x[i] = pair_add(x[2 * i], x[2 * i + 1]);
  }
  return x[0] + zero();
}

// Rows that are read twice or more and together stay in the first-level cache.
template <typename T>
inline std::int64_t rows_together(std::int64_t n) {
  constexpr std::int64_t kBytes = 16384;
  const std::int64_t fit = kBytes / (static_cast<std::int64_t>(sizeof(T)) * (n + 1));
  return fit < 1 ? 1 : fit < kWidth ? fit : kWidth;
}

template <typename T>
std::int64_t rms_norm(const NormRows<T>& r) {
  const F infinity = set1(__builtin_inff());
  const std::int64_t step = rows_together<T>(r.n);
  std::int64_t bad_row = -1;
  for (std::int64_t begin = 0; begin < r.rows; begin += step) {
    const int count = static_cast<int>(r.rows - begin < step ? r.rows - begin : step);
    F parts[kWidth];
    for (int i = 0; i < kWidth; ++i) parts[i] = zero();
    for (int i = 0; i < count; ++i) {
      const T* x = r.x + (begin + i) * r.x_stride;
      if (r.residual != nullptr) {
        T* sum = r.residual_out + (begin + i) * r.residual_out_stride;
        residual_add(sum, r.residual + (begin + i) * r.residual_stride, x, r.n);
        x = sum;
      }
      parts[i] = lane_sum<T>(
          [x](std::int64_t k, P acc) {
            prefetch(x + k);
            const P v = load_pair(x + k);
            return fma(v, v, acc);
          },
          [x](std::int64_t k, int some, P acc) {
            const P v = load_pair_n(x + k, some);
            return fma(v, v, acc);
          },
          r.n, r.lanes);
    }
    const F sums = row_sums(parts);
    float sum[kWidth], scale[kWidth];
    store(sum, sums);
    store(scale, set1(1.0f) / sqrt(sums / set1(static_cast<float>(r.n)) + set1(r.eps)));
    if (bad_row < 0 && !all(less(sums, infinity))) {
      int i = 0;
      while (sum[i] < __builtin_inff()) ++i;
      bad_row = begin + i;
    }
    for (int i = 0; i < count; ++i) {
      const T* x = r.residual != nullptr ? r.residual_out + (begin + i) * r.residual_out_stride
                                         : r.x + (begin + i) * r.x_stride;
      const P q = both(set1(scale[i]));
      map_pairs<false>(
          r.n, r.y + (begin + i) * r.y_stride, [&](P v, P w) { return (v * q) * w; }, x, r.w);
      if (r.q != nullptr) r.q[(begin + i) * r.q_stride] = scale[i];
    }
  }
  return bad_row;
}

template <typename T>
void rms_norm_backward(const NormGradientRows<T>& r) {
  const std::int64_t step = rows_together<T>(2 * r.n);
  for (std::int64_t begin = 0; begin < r.rows; begin += step) {
    const int count = static_cast<int>(r.rows - begin < step ? r.rows - begin : step);
    F parts[kWidth];
    float scale[kWidth] = {};
    for (int i = 0; i < kWidth; ++i) parts[i] = zero();
    for (int i = 0; i < count; ++i) {
      const T* x = r.x + (begin + i) * r.x_stride;
      const T* dy = r.dy + (begin + i) * r.dy_stride;
      scale[i] = r.q[(begin + i) * r.q_stride];
      parts[i] = lane_sum<T>(
          [&](std::int64_t k, P acc) {
            prefetch(dy + k);
            prefetch(x + k);
            return fma(load_pair(dy + k) * load_pair(r.w + k), load_pair(x + k), acc);
          },
          [&](std::int64_t k, int some, P acc) {
            return fma(load_pair_n(dy + k, some) * load_pair_n(r.w + k, some),
                       load_pair_n(x + k, some), acc);
          },
          r.n, r.lanes);
    }
    const F q = load(scale);
    float slope[kWidth];
    store(slope, ((q * q) * q) * (row_sums(parts) / set1(static_cast<float>(r.n))));
    for (int i = 0; i < count; ++i) {
      const P s = both(set1(scale[i]));
      const P z = both(set1(slope[i]));
      map_pairs<false>(
          r.n, r.dx + (begin + i) * r.dx_stride,
          [&](P dy, P w, P x) { return fms(dy * w, s, x * z); }, r.dy + (begin + i) * r.dy_stride,
          r.w, r.x + (begin + i) * r.x_stride);
    }
  }
}

// dw of kGroup pairs of columns, or of the first `count` elements of one.
template <typename T, int kGroup>
inline void weight_columns(float* dw, const NormGradientRows<T>& r, std::int64_t k, int count,
                           bool fresh) {
  P acc[kGroup];
#pragma GCC unroll 2
  for (int i = 0; i < kGroup; ++i) acc[i] = both(zero());
  const auto read = [&](const T* p) {
    return kGroup > 1 || count == kPair ? load_pair(p) : load_pair_n(p, count);
  };
  for (std::int64_t row = 0; row < r.rows; ++row) {
    const P q = both(set1(r.q[row * r.q_stride]));
    const T* dy = r.dy + row * r.dy_stride + k;
    const T* x = r.x + row * r.x_stride + k;
#pragma GCC unroll 2
    for (int i = 0; i < kGroup; ++i) {
      acc[i] = fma(read(dy + i * kPair), read(x + i * kPair) * q, acc[i]);
    }
  }
#pragma GCC unroll 2
  for (int i = 0; i < kGroup; ++i) {
    float* out = dw + k + i * kPair;
    const P sum = in_order<T>(acc[i]);
    store_numbers_n(out, fresh ? sum : load_pair_n(out, count) + sum, count);
  }
}

template <typename T>
void rms_norm_weight(float* dw, const NormGradientRows<T>& r, bool fresh) {
  std::int64_t k = 0;
  for (; k + 2 * kPair <= r.n; k += 2 * kPair) weight_columns<T, 2>(dw, r, k, kPair, fresh);
  for (; k < r.n; k += kPair) {
    weight_columns<T, 1>(dw, r, k, static_cast<int>(r.n - k < kPair ? r.n - k : kPair), fresh);
  }
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
