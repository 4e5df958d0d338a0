// Attention backward on one cell of queries by keys. Included after attention_tile.h.

template <typename T>
void row_dots(float* out, const float* a, std::int64_t ld, RowList<T> b, int n, int d, int lanes) {
  int vectors = 1;  // lanes past d hold +0 and change nothing in the tree
  while (vectors * kWidth < lanes && vectors * kWidth < d) vectors *= 2;
  for (int r = 0; r < n; ++r) {
    F acc[kMaxHeadDim / kWidth];
    for (int i = 0; i < vectors; ++i) acc[i] = zero();
    for (int k = 0; k < d; k += kWidth) {
      const T* row = row_of(b, r) + k;
      const F y = d - k >= kWidth ? load_value(row) : load_value_n(row, d - k);
      F& lane = acc[k / kWidth % vectors];
      lane = fma(load(a + r * ld + k), y, lane);
    }
    out[r] = neighbour_tree(acc, vectors) + 0.0f;
  }
}

// p and dp of the cell's pairs become p and ds = p * (dp - D), rounded to storage; invisible pairs
// are zeros.
template <typename T>
inline void pair_row(const GradCell& cell, int r, int visible) {
  float* p_row = cell.p + static_cast<std::int64_t>(r) * kGradStride;
  float* ds_row = cell.ds + static_cast<std::int64_t>(r) * kGradStride;
  const F c = set1(cell.c);
  const F minus_lse = set1(-cell.lse[r]);
  const F dsum = set1(cell.dsum[r]);
  for (int j = 0; j < padded(cell.keys); j += kWidth) {
    F p = zero();
    F ds = zero();
    if (j < visible) {
      p = exp2p(fma(load(p_row + j), c, minus_lse));
      ds = p * (load(ds_row + j) - dsum);
      if (visible - j < kWidth) {
        const M keep = first_lanes(visible - j);
        p = select(keep, p, zero());
        ds = select(keep, ds, zero());
      }
    }
    store(p_row + j, round_value<T>(p));
    store(ds_row + j, round_value<T>(ds));
  }
}

template <typename T>
void grad_cell(const GradCell& cell) {
  int visible[kGradQueries];
  for (int r = 0; r < cell.queries; ++r) visible[r] = at_most(cell.keys, r + cell.offset + 1);
  const auto start = [&](float* c, const float* rows, const float* columns) {
    const Left a{rows, cell.ld, 1};
    const F32Rows b{columns, cell.ldk};
    if (cell.model) {
      start_model_chains(*cell.model, c, kGradStride, a, b, cell.queries, visible, cell.d);
    } else {
      start_chains(c, kGradStride, a, b, cell.queries, visible, cell.d);
    }
  };
  start(cell.p, cell.q, cell.kt);
  start(cell.ds, cell.dy, cell.vt);
  for (int r = 0; r < cell.queries; ++r) pair_row<T>(cell, r, visible[r]);

  const auto go_on = [&](float* c, Left a, const float* b, int rows, const auto& span_of) {
    if (cell.model) {
      continue_model_chains(*cell.model, c, cell.ld, a, F32Rows{b, cell.ld}, rows, cell.d, span_of);
    } else {
      continue_chains(c, cell.ld, a, F32Rows{b, cell.ld}, rows, padded(cell.d), span_of);
    }
  };
  if (cell.dq) {
    go_on(cell.dq, {cell.ds, kGradStride, 1}, cell.k, cell.queries, [&](int r, int rows) {
      return Span{0, visible[r + rows - 1]};
    });
  }
  if (!cell.dk) return;
  // A tile of keys starts at the first query that sees its first key.
  const auto seen_by = [&](int j, int) {
    return Span{j > cell.offset ? j - cell.offset : 0, cell.queries};
  };
  go_on(cell.dk, {cell.ds, 1, kGradStride}, cell.q, cell.keys, seen_by);
  go_on(cell.dv, {cell.p, 1, kGradStride}, cell.dy, cell.keys, seen_by);
}

template <typename T>
void store_scaled(T* const* out, const float* x, std::int64_t ld, int n, int d, float scale) {
  const F s = set1(scale);
  for (int r = 0; r < n; ++r) {
    const float* row = x + r * ld;
    int k = 0;
    for (; k + kWidth <= d; k += kWidth) store_value(out[r] + k, s * (load(row + k) + zero()));
    if (k < d) store_value_n(out[r] + k, s * (load(row + k) + zero()), d - k);
  }
}

void add(float* x, const float* y, std::int64_t n) {
  for (std::int64_t i = 0; i < n; i += kWidth) store(x + i, load(x + i) + load(y + i));
}

template <typename T>
constexpr AttentionIsa<T> kAttentionTable = {
    widen_rows<T>, widen_transposed<T>, begin_split,  add_block<T>,    end_split, fold,
    finish<T>,     row_dots<T>,         grad_cell<T>, store_scaled<T>, add};
constexpr AttentionTables kAttentionTables = {kAttentionTable<std::uint16_t>,
                                              kAttentionTable<float>};
