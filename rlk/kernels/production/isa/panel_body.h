// Products of few rows by a packed weight, one text for every instruction set. Included inside its
// anonymous namespace after the vectors.

using rlk::production::kPanelColumns;
using rlk::production::PanelProduct;

// c of kRows rows by kVectors vectors of columns, which lie in one panel, over all of k. With few
// sums in flight even and odd k have sums of their own, so that one addition need not wait for the
// other.
template <int kRows, int kVectors>
void panel_tile(const PanelProduct& t, std::int64_t row, std::int64_t column) {
  constexpr int kSets = kRows * kVectors <= 8 ? 2 : 1;
  F acc[kSets][kRows][kVectors];
#pragma GCC unroll 2
  for (int s = 0; s < kSets; ++s) {
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 8
      for (int v = 0; v < kVectors; ++v) acc[s][r][v] = zero();
    }
  }
  constexpr int kAhead = 16 * kPanelColumns;  // pairs that are asked for before their use
  const std::int64_t pairs = (t.k + 1) / 2;
  const float* a = t.a + row * t.lda;
  const std::uint32_t* w =
      t.panels + column / kPanelColumns * pairs * kPanelColumns + column % kPanelColumns;
  const I upper = set1(static_cast<std::int32_t>(0xffff0000u));
  for (std::int64_t p = 0; p < pairs; ++p, a += 2, w += kPanelColumns) {
    F low[kVectors], high[kVectors];
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) {
      __builtin_prefetch(w + kAhead + v * kWidth);
      const I x = load(reinterpret_cast<const std::int32_t*>(w + v * kWidth));
      low[v] = from_bits(shift_left<16>(x));
      high[v] = from_bits(x & upper);
    }
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
      const F even = set1(a[r * t.lda]);
      const F odd = set1(a[r * t.lda + 1]);
#pragma GCC unroll 8
      for (int v = 0; v < kVectors; ++v) acc[0][r][v] = fma(even, low[v], acc[0][r][v]);
#pragma GCC unroll 8
      for (int v = 0; v < kVectors; ++v) {
        acc[kSets - 1][r][v] = fma(odd, high[v], acc[kSets - 1][r][v]);
      }
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) {
      const std::int64_t first = column + v * kWidth;
      const std::int64_t left = t.columns - first;
      if (left <= 0) continue;
      const int n = left < kWidth ? static_cast<int>(left) : kWidth;
      F sum = acc[0][r][v];
      if constexpr (kSets == 2) sum = sum + acc[1][r][v];
      if (t.bias != nullptr) sum = sum + load_bf16_n(t.bias + first, n);
      const std::int64_t at = (row + r) * t.ldc + first;
      if (t.c_is_f32) {
        store_n(static_cast<float*>(t.c) + at, sum, n);
      } else {
        store_bf16_n(static_cast<std::uint16_t*>(t.c) + at, sum, n);
      }
    }
  }
}

// All rows by kVectors vectors of columns: the weight comes from memory for the first rows only.
template <int kVectors>
void panel_columns(const PanelProduct& t, std::int64_t column) {
  std::int64_t row = 0;
  for (; row + kTall <= t.rows; row += kTall) panel_tile<kTall, kVectors>(t, row, column);
  switch (t.rows - row) {
    case 1: return panel_tile<1, kVectors>(t, row, column);
    case 2: return panel_tile<2, kVectors>(t, row, column);
    case 3: return panel_tile<3, kVectors>(t, row, column);
    case 4: return panel_tile<4, kVectors>(t, row, column);
    default: return;
  }
}

void product(const PanelProduct& t) {
  std::int64_t column = 0;
  for (; column + (kWide - 1) * kWidth < t.columns; column += kWide * kWidth) {
    panel_columns<kWide>(t, column);
  }
  for (; column < t.columns; column += kWidth) panel_columns<1>(t, column);
}

// A square of kWidth rows by kWidth pairs.
inline void pack_square(std::uint32_t* to, const std::uint16_t* const* row, std::int64_t element) {
  I x[kWidth];
#pragma GCC unroll 16
  for (int i = 0; i < kWidth; ++i) x[i] = load_pairs(row[i] + element);
  transpose(x);
#pragma GCC unroll 16
  for (int i = 0; i < kWidth; ++i) {
    store(reinterpret_cast<std::int32_t*>(to + i * kPanelColumns), x[i]);
  }
}

void pack(std::uint32_t* panel, const std::uint16_t* w, std::int64_t row_stride, std::int64_t rows,
          std::int64_t pairs) {
  for (std::int64_t j = 0; j < rows; j += kWidth) {
    const std::uint16_t* row[kWidth];
    for (int i = 0; i < kWidth; ++i) row[i] = w + (j + i < rows ? j + i : rows - 1) * row_stride;
    std::int64_t p = 0;
    for (; p + kWidth <= pairs; p += kWidth) pack_square(panel + p * kPanelColumns + j, row, 2 * p);
    if (p == pairs) continue;
    const int count = static_cast<int>(pairs - p);
    I x[kWidth];
#pragma GCC unroll 16
    for (int i = 0; i < kWidth; ++i) x[i] = load_pairs_n(row[i] + 2 * p, count);
    transpose(x);
    for (int i = 0; i < count; ++i) {
      store(reinterpret_cast<std::int32_t*>(panel + (p + i) * kPanelColumns + j), x[i]);
    }
  }
}
