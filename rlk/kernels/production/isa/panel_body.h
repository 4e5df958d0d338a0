// Products of few rows by a packed weight, one text for every instruction set. Included inside its
// anonymous namespace after the vectors and `dot`:
//   dot(a, w, low, high)  adds the products of both halves of the pairs a and w to the sums

using rlk::production::kPanelColumns;
using rlk::production::PanelProduct;

constexpr int kVectorsPerPanel = kPanelColumns / kWidth;

inline std::int32_t pair_at(const std::uint16_t* a) {
  std::int32_t pair;
  __builtin_memcpy(&pair, a, sizeof pair);
  return pair;
}

// c of kRows rows by kPanels panels, over all of k. With few sums in flight there are two sets of
// them, so that one addition need not wait for the other.
template <int kRows, int kPanels>
void panel_tile(const PanelProduct& t, std::int64_t row, std::int64_t column) {
  constexpr int kVectors = kPanels * kVectorsPerPanel;
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
  const std::int64_t panel_size = (t.k + 1) / 2 * kPanelColumns;
  const std::uint16_t* a = t.a + row * t.lda;
  const std::uint32_t* w = t.panels + column / kPanelColumns * panel_size;
  const auto step = [&](std::int64_t pair, F (&low)[kRows][kVectors], F (&high)[kRows][kVectors],
                        auto load_pair) {
    I x[kVectors];
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) {
      const std::uint32_t* at = w + v / kVectorsPerPanel * panel_size + pair * kPanelColumns +
                                v % kVectorsPerPanel * kWidth;
      x[v] = load(reinterpret_cast<const std::int32_t*>(at));
    }
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
      const I y = set1(load_pair(a + r * t.lda + 2 * pair));
#pragma GCC unroll 8
      for (int v = 0; v < kVectors; ++v) dot(y, x[v], &low[r][v], &high[r][v]);
    }
  };
  const auto whole_pair = [](const std::uint16_t* x) {
    std::int32_t pair;
    __builtin_memcpy(&pair, x, sizeof pair);
    return pair;
  };
  const auto half_pair = [](const std::uint16_t* x) { return std::int32_t{*x}; };
  const std::int64_t pairs = t.k / 2;
  std::int64_t p = 0;
  for (; p + 2 <= pairs; p += 2) {
    step(p, acc[0], acc[kSets - 1], whole_pair);
    step(p + 1, acc[kSets - 1], acc[0], whole_pair);
  }
  if (p < pairs) step(p, acc[0], acc[kSets - 1], whole_pair);
  if (t.k % 2 != 0) step(pairs, acc[0], acc[kSets - 1], half_pair);

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

template <int kRows>
void panel_rows(const PanelProduct& t, std::int64_t row) {
  std::int64_t column = 0;
  for (; column + (kWide - 1) * kPanelColumns < t.columns; column += kWide * kPanelColumns) {
    panel_tile<kRows, kWide>(t, row, column);
  }
  for (; column < t.columns; column += kPanelColumns) panel_tile<kRows, 1>(t, row, column);
}

void product(const PanelProduct& t) {
  std::int64_t row = 0;
  for (; row + kTall <= t.rows; row += kTall) panel_rows<kTall>(t, row);
  switch (t.rows - row) {
    case 1: return panel_rows<1>(t, row);
    case 2: return panel_rows<2>(t, row);
    case 3: return panel_rows<3>(t, row);
    case 4: return panel_rows<4>(t, row);
    case 5: return panel_rows<5>(t, row);
    default: return;
  }
}
