// Chains by the model of a matrix instruction. Included after attention_tile.h.
//
// As start_chains and continue_chains, in taller tiles, whose groups of products begin at multiples
// of 16. Sums of columns up to the next whole panel are written too.

using rlk::numerics::mma::ColumnsIsa;
constexpr int kModelRows = 48;

inline void model_chains(const ColumnsIsa& model, float* c, std::int64_t ldc, Left a, F32Rows b,
                         int rows, int columns, int count) {
  for (int n = 0; n < columns; n += model.panel) {
    model.chains({c + n, ldc, a.data, a.row, a.step, b.data + n, b.ld, rows, count});
  }
}

void start_model_chains(const ColumnsIsa& model, float* c, std::int64_t ldc, Left a, F32Rows b,
                        int rows, const int* limit, int count) {
  for (int r = 0; r < rows; r += kModelRows) {
    const int tile_rows = at_most(kModelRows, rows - r);
    const int columns = limit[r + tile_rows - 1];
    for (int i = r; i < r + tile_rows; ++i) {
      for (int n = 0; n < columns; n += 2 * kWidth) {  // whole panels
        store(c + i * ldc + n, zero());
        store(c + i * ldc + n + kWidth, zero());
      }
    }
    model_chains(model, c + r * ldc, ldc, {a.data + r * a.row, a.row, a.step}, b, tile_rows,
                 columns, count);
  }
}

template <typename SpanOf>
inline void continue_model_chains(const ColumnsIsa& model, float* c, std::int64_t ldc, Left a,
                                  F32Rows b, int rows, int columns, SpanOf span_of) {
  for (int r = 0; r < rows; r += kModelRows) {
    const int tile_rows = at_most(kModelRows, rows - r);
    const Span span = span_of(r, tile_rows);
    const int begin = span.begin / 16 * 16;
    if (begin >= span.end) continue;
    model_chains(model, c + r * ldc, ldc, {a.data + r * a.row + begin * a.step, a.row, a.step},
                 b.from(begin, 0), tile_rows, columns, span.end - begin);
  }
}
