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
  start_chains(cell.p, kGradStride, {cell.q, cell.ld, 1}, {cell.kt, cell.ldk}, cell.queries,
               visible, cell.d);
  start_chains(cell.ds, kGradStride, {cell.dy, cell.ld, 1}, {cell.vt, cell.ldk}, cell.queries,
               visible, cell.d);
  for (int r = 0; r < cell.queries; ++r) pair_row<T>(cell, r, visible[r]);

  const int columns = padded(cell.d);
  if (cell.dq) {
    continue_chains(cell.dq, cell.ld, Left{cell.ds, kGradStride, 1}, F32Rows{cell.k, cell.ld},
                    cell.queries, columns, [&](int r, int rows) {
                      return Span{0, visible[r + rows - 1]};
                    });
  }
  if (!cell.dk) return;
  // A tile of keys starts at the first query that sees its first key.
  const auto seen_by = [&](int j, int) {
    return Span{j > cell.offset ? j - cell.offset : 0, cell.queries};
  };
  continue_chains(cell.dk, cell.ld, Left{cell.ds, 1, kGradStride}, F32Rows{cell.q, cell.ld},
                  cell.keys, columns, seen_by);
  continue_chains(cell.dv, cell.ld, Left{cell.p, 1, kGradStride}, F32Rows{cell.dy, cell.ld},
                  cell.keys, columns, seen_by);
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
