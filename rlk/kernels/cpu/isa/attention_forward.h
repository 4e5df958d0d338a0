// Attention forward on one tile of rows. Included after attention_tile.h; the path for few rows,
// attention_few.h, is included in the middle.

constexpr int kLaneVectors = kSoftmaxLanes / kWidth;
constexpr float kMinusInfinity = -__builtin_inff();

// Numbers of a row of o.
inline int o_columns(int d) {
  return (d + 2 * kAttentionPad - 1) / (2 * kAttentionPad) * 2 * kAttentionPad;
}

void begin_split(const AttentionTile& t, const SoftmaxState& state, int first) {
  for (int r = first; r < t.rows; ++r) {
    state.m[r] = kMinusInfinity;
    for (int i = 0; i < kSoftmaxLanes; i += kWidth) store(t.lanes + r * kSoftmaxLanes + i, zero());
    float* o = state.o + static_cast<std::int64_t>(r) * t.ld;
    for (int k = 0; k < o_columns(t.d); k += kWidth) store(o + k, zero());
  }
}

// Largest of the n scores s. A NaN is left out here and found in l.
inline float row_max(const float* s, int n) {
  F m = set1(kMinusInfinity);
  int j = 0;
  for (; j + kWidth <= n; j += kWidth) m = max(load(s + j), m);
  if (j < n) m = max(select(first_lanes(n - j), load(s + j), set1(kMinusInfinity)), m);
  return max_lane(m);
}

// m, l and o of row r become relative to the largest of its n scores of a block too.
inline void raise_max(const AttentionTile& t, const SoftmaxState& state, int r, const float* s,
                      int n) {
  const float m_old = state.m[r];
  const float block_max = t.c * row_max(s, n);
  const float m = m_old > block_max ? m_old : block_max;
  if (!(m < 0x1p22f && m > -0x1p22f)) t.fault[r] = 1;
  if (m == m_old) return;  // a = 1 changes no bit
  state.m[r] = m;
  const F a = exp2p(set1(m_old - m));
  float* lanes = t.lanes + r * kSoftmaxLanes;
  for (int i = 0; i < kSoftmaxLanes; i += kWidth) store(lanes + i, load(lanes + i) * a);
  float* o = state.o + static_cast<std::int64_t>(r) * t.ld;
  for (int k = 0; k < o_columns(t.d); k += kWidth) store(o + k, load(o + k) * a);
}

// The n scores s of row r become terms e rounded to storage, zero from n up to `end`.
template <typename T>
inline void softmax_terms(const AttentionTile& t, const SoftmaxState& state, int r, float* s, int n,
                          int end) {
  float* lanes = t.lanes + r * kSoftmaxLanes;
  F l[kLaneVectors];
  for (int i = 0; i < kLaneVectors; ++i) l[i] = load(lanes + i * kWidth);
  const F c = set1(t.c);
  const F minus_m = set1(-state.m[r]);
  int j = 0;
  for (; j + kSoftmaxLanes <= n; j += kSoftmaxLanes) {
#pragma GCC unroll 2
    for (int i = 0; i < kLaneVectors; ++i) {
      const F e = exp2p(fma(load(s + j + i * kWidth), c, minus_m));
      l[i] = l[i] + e;
      store(s + j + i * kWidth, round_number<T>(e));
    }
  }
  for (; j < end; j += kSoftmaxLanes) {
    for (int i = 0; i < kLaneVectors; ++i) {
      float* x = s + j + i * kWidth;
      const int left = n - j - i * kWidth;
      const M visible = first_lanes(left < 0 ? 0 : at_most(left, kWidth));
      const F e = select(visible, exp2p(fma(load(x), c, minus_m)), zero());
      l[i] = l[i] + e;
      store(x, round_number<T>(e));
    }
  }
  for (int i = 0; i < kLaneVectors; ++i) store(lanes + i * kWidth, l[i]);
}

#include "rlk/kernels/cpu/isa/attention_few.h"

template <typename T>
void add_block(const AttentionTile& t, const SoftmaxState& state, int first,
               const KvBlock<T>& block) {
  if (t.rows <= kFewRows && !t.model) return add_block_few(t, state, first, block);
  widen_transposed(t.kt, t.lds, block.k, block.n, t.d);
  widen_rows(t.v, t.ld, block.v, block.n, t.d);
  for (int r0 = first; r0 < t.rows; r0 += kAttentionRows) {
    const int rows = at_most(kAttentionRows, t.rows - r0);
    const int* visible = block.visible + r0;
    const Left q{t.q + static_cast<std::int64_t>(r0) * t.ld, t.ld, 1};
    const F32Rows keys{t.kt, t.lds};
    if (t.model) {
      start_model_chains(*t.model, t.s, t.lds, q, keys, rows, visible, t.d);
    } else {
      start_chains(t.s, t.lds, q, keys, rows, visible, t.d);
    }
    // All maxima first: one has to wait for a row, the next rows need not wait for it.
    for (int r = 0; r < rows; ++r) raise_max(t, state, r0 + r, t.s + r * t.lds, visible[r]);
    // A tile of rows goes on through the keys that its last row sees.
    const auto seen = [=](int r, int tile_rows) { return Span{0, visible[r + tile_rows - 1]}; };
    const int step = t.model ? kModelRows : kTileRows;
    for (int r = 0; r < rows; r += step) {
      const int tile_rows = at_most(step, rows - r);
      const int end = padded(seen(r, tile_rows).end);
      for (int i = r; i < r + tile_rows; ++i) {
        softmax_terms<T>(t, state, r0 + i, t.s + i * t.lds, visible[i], end);
      }
    }
    float* o = state.o + static_cast<std::int64_t>(r0) * t.ld;
    const Left terms{t.s, t.lds, 1};
    const F32Rows values{t.v, t.ld};
    if (t.model) {
      continue_model_chains(*t.model, o, t.ld, terms, values, rows, t.d, seen);
    } else {
      continue_chains(o, t.ld, terms, values, rows, padded(t.d), seen);
    }
  }
}

void end_split(const AttentionTile& t, const SoftmaxState& state, int first) {
  for (int r = first; r < t.rows; ++r) {
    F x[kLaneVectors];
    for (int i = 0; i < kLaneVectors; ++i) x[i] = load(t.lanes + r * kSoftmaxLanes + i * kWidth);
    state.l[r] = neighbour_tree(x, kLaneVectors);
    if (state.l[r] != state.l[r]) t.fault[r] = 1;
  }
}

void fold(const AttentionTile& t, const SoftmaxState& total, const SoftmaxState& next, int first) {
  for (int r = first; r < t.rows; ++r) {
    const float m1 = total.m[r];
    const float m2 = next.m[r];
    const float m = m1 < m2 ? m2 : m1;
    const F a1 = exp2p(set1(m1 - m));
    const F a2 = exp2p(set1(m2 - m));
    total.m[r] = m;
    total.l[r] = lane0(fma(set1(total.l[r]), a1, set1(next.l[r]) * a2));
    float* o = total.o + static_cast<std::int64_t>(r) * t.ld;
    const float* o2 = next.o + static_cast<std::int64_t>(r) * t.ld;
    for (int k = 0; k < o_columns(t.d); k += kWidth)
      store(o + k, fma(load(o + k), a1, load(o2 + k) * a2));
  }
}

template <typename T>
void finish(const AttentionTile& t, const SoftmaxState& total, T* const* y, float* lse) {
  for (int r = 0; r < t.rows; ++r) {
    const float* o = total.o + static_cast<std::int64_t>(r) * t.ld;
    float x[kMaxHeadDim];
    if (t.rows <= kFewRows && !t.model) o = in_order<T>(o, x, t.d);
    const F l = set1(total.l[r]);
    int k = 0;
    for (; k + kWidth <= t.d; k += kWidth) store_value(y[r] + k, load(o + k) / l + zero());
    if (k < t.d) store_value_n(y[r] + k, load(o + k) / l + zero(), t.d - k);
  }
  // l is at least about 1: the largest term is exp2p of almost 0.
  for (int r = 0; r < t.rows; r += kWidth) {
    store(lse + r, fma(log_normal(load(total.l + r)), set1(0x1.715476p+0f), load(total.m + r)));
  }
}
