// rope and its gradient on the rows of one position; part of rows_body.h.

// |y| < 2^56 after the rounding to T, for what comes before it. bf16 rounds from the middle of the
// last two numbers on, a tie, up to 2^56.
template <typename T>
constexpr float kRopeLimit = sizeof(T) == 2 ? 0x1.ffp55f : 0x1p56f;

// A number that is not below the limit, or NaN, whose bits are larger still.
template <typename T>
inline bool any_outside(P y1, P y2) {
  const I magnitude = set1(std::int32_t{0x7fffffff});
  const I largest = max(max(bits(y1.a) & magnitude, bits(y1.b) & magnitude),
                        max(bits(y2.a) & magnitude, bits(y2.b) & magnitude));
  return any(!less(largest, bits(set1(kRopeLimit<T>))));
}

// Calls rotate(x1, x2, cos, sin, &y1, &y2) for the pairs (k, k + half) of every row. Returns the
// first row with a result that any_outside finds, or -1.
template <typename T, typename Rotate>
inline std::int64_t rotate_rows(const RopeRows<T>& r, const Rotate& rotate) {
  constexpr int kChunk = 8;
  P cos[kChunk], sin[kChunk];
  std::int64_t bad_row = -1;
  for (std::int64_t first = 0; first < r.half; first += kChunk * kPair) {
    const std::int64_t n = r.half - first < kChunk * kPair ? r.half - first : kChunk * kPair;
    for (int i = 0; i * kPair < n; ++i) {
      const std::int64_t k = first + i * kPair;
      const int count = static_cast<int>(r.half - k < kPair ? r.half - k : kPair);
      cos[i] = arranged<T>(load_pair_n(r.cos + k, count));
      sin[i] = arranged<T>(load_pair_n(r.sin + k, count));
    }
    for (std::int64_t row = 0; row < r.rows; ++row) {
      const T* x1 = r.x + row * r.x_stride + first;
      T* y1 = r.y + row * r.y_stride + first;
      const T* x2 = x1 + r.half;
      T* y2 = y1 + r.half;
      bool bad = false;
      P out1, out2;
      for_pairs(
          n,
          [&](std::int64_t k) {
            prefetch(x1 + k);
            prefetch(x2 + k);
            rotate(load_pair(x1 + k), load_pair(x2 + k), cos[k / kPair], sin[k / kPair], &out1,
                   &out2);
            if (__builtin_expect(any_outside<T>(out1, out2), 0)) {
              bad = true;
              store_pair(y1 + k, out1);
              store_pair(y2 + k, out2);
            } else {
              store_numbers(y1 + k, out1);
              store_numbers(y2 + k, out2);
            }
          },
          [&](std::int64_t k, int count) {
            rotate(load_pair_n(x1 + k, count), load_pair_n(x2 + k, count), cos[k / kPair],
                   sin[k / kPair], &out1, &out2);
            bad = bad || any_outside<T>(out1, out2);
            store_pair_n(y1 + k, out1, count);
            store_pair_n(y2 + k, out2, count);
          });
      if (bad && (bad_row < 0 || row < bad_row)) bad_row = row;
    }
  }
  return bad_row;
}

template <typename T>
std::int64_t rope(const RopeRows<T>& r) {
  return rotate_rows(r, [](P x1, P x2, P c, P s, P* y1, P* y2) {
    *y1 = fms(x1, c, x2 * s);
    *y2 = fma(x2, c, x1 * s);
  });
}

template <typename T>
std::int64_t rope_backward(const RopeRows<T>& r) {
  rotate_rows(r, [](P x1, P x2, P c, P s, P* y1, P* y2) {
    *y1 = fma(x1, c, x2 * s);
    *y2 = fms(x2, c, x1 * s);
  });
  return -1;
}
