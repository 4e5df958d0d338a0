// What the attention drivers ask of an instruction set: raw pointers and sizes, so that a file
// compiled with other flags shares no code with the rest. T is the storage type of a call: float,
// or std::uint16_t for the bits of bf16.
#pragma once

#include <cstdint>

#include "rlk/kernels/cpu/row_list.h"
#include "rlk/numerics/mma/columns_isa.h"

namespace rlk {
enum class Isa : std::uint8_t;
}

namespace rlk::cpu {

// Rows of f32 scratch hold a multiple of this many numbers, the widest vector of all; rows of o a
// multiple of twice as many.
inline constexpr int kAttentionPad = 16;
inline constexpr int kSoftmaxLanes = 16;
inline constexpr int kMaxHeadDim = 256;

// Rows of a tile that share one pass over a packed block.
inline constexpr int kAttentionRows = 48;

// A tile of at most so many rows reads keys and values where they lie: to widen a block first pays
// only with more rows.
inline constexpr int kFewRows = 16;

// Softmax state of the rows of a tile inside one split. A row is one query of one head; all rows of
// a tile share a KV head and stand in order of position. In a tile of few rows the columns of o
// stand in an order of the instruction set's own until `finish`.
struct SoftmaxState {
  float* m;  // [rows]
  float* l;  // [rows], set by end_split
  float* o;  // [rows, ld]
};

// `model`: how chains of another profile than portable go; null for fma.
struct AttentionTile {
  const numerics::mma::ColumnsIsa* model;
  int rows;
  int d;
  int ld;            // leading dimension of q, o and v
  float c;           // log2(e) / sqrt(d)
  const float* q;    // [rows, ld]
  float* lanes;      // [rows, kSoftmaxLanes], lanes of l
  int* fault;        // [rows], set to 1 where a score is NaN or |m'| >= 2^22
  std::int64_t lds;  // leading dimension of kt and s
  float* kt;         // scratch [d, lds]
  float* v;          // scratch [keys, ld]
  float* s;          // scratch [kAttentionRows, lds]
};

// Keys and values of one block, as many as the last row sees.
template <typename T>
struct KvBlock {
  RowList<T> k;
  RowList<T> v;
  int n;
  const int* visible;  // [rows], keys of the block that each row sees, never falling
  // Rows of `ahead_width` numbers that will be needed soon, `ahead` each of keys and of values.
  const T* const* ahead_k;
  const T* const* ahead_v;
  int ahead;
  int ahead_width;
};

// Queries against keys, both from one sequence and head: the pairs of one cell of the score matrix.
struct GradCell {
  const numerics::mma::ColumnsIsa* model;  // as in AttentionTile
  int queries;
  int keys;
  int offset;  // query i sees the keys j <= i + offset
  int d;
  int ld;            // at least d rounded up to kAttentionPad
  std::int64_t ldk;  // of kt and vt
  float c;
  const float* q;     // [queries, ld]
  const float* dy;    // [queries, ld]
  const float* lse;   // [queries]
  const float* dsum;  // [queries], D of the contract
  const float* kt;    // [d, keys]
  const float* vt;    // [d, keys]
  const float* k;     // [keys, ld]; only with dq
  float* p;           // scratch [queries, kGradStride]
  float* ds;          // scratch [queries, kGradStride]
  float* dq;          // chains [queries, ld]; absent: not wanted
  float* dk;          // chains [keys, ld]; absent: not wanted, nor dv
  float* dv;          // chains [keys, ld]
};

inline constexpr int kGradQueries = 128;
inline constexpr int kGradKeys = 128;
inline constexpr int kGradStride = kGradKeys + kAttentionPad;

template <typename T>
struct AttentionIsa {
  // out[r, 0..d) = f32 of row r, zeros up to the next multiple of kAttentionPad
  void (*widen_rows)(float* out, std::int64_t ld, RowList<T> rows, int n, int d);
  // out[k, j] = f32 of element k of row j; columns up to the next multiple of kAttentionPad are
  // written too. d is even.
  void (*widen_transposed)(float* out, std::int64_t ld, RowList<T> rows, int n, int d);

  // Sets rows [first, rows) to the start of a split; goes on with them through one block; adds up
  // the lanes of l; left-folds `next` onto `total`.
  void (*begin_split)(const AttentionTile& tile, const SoftmaxState& state, int first);
  void (*add_block)(const AttentionTile& tile, const SoftmaxState& state, int first,
                    const KvBlock<T>& block);
  void (*end_split)(const AttentionTile& tile, const SoftmaxState& state, int first);
  void (*fold)(const AttentionTile& tile, const SoftmaxState& total, const SoftmaxState& next,
               int first);
  // y[r] = o / l + (+0), rounded to storage; lse[r] = fma(log(l), L2E, m), rounded up to
  // kAttentionPad rows
  void (*finish)(const AttentionTile& tile, const SoftmaxState& total, T* const* y, float* lse);

  // out[r] = lane sum of a[r] by row r of b
  void (*row_dots)(float* out, const float* a, std::int64_t ld, RowList<T> b, int n, int d,
                   int lanes);
  void (*grad_cell)(const GradCell& cell);
  // row r of out = scale * (x[r] + (+0)), rounded to storage
  void (*store_scaled)(T* const* out, const float* x, std::int64_t ld, int n, int d, float scale);
  // x = x + y over n numbers, a multiple of kAttentionPad
  void (*add)(float* x, const float* y, std::int64_t n);
};

struct AttentionTables {
  AttentionIsa<std::uint16_t> bf16;
  AttentionIsa<float> f32;
};
extern const AttentionTables kAttentionScalar;
extern const AttentionTables kAttentionAvx2;
extern const AttentionTables kAttentionAvx512;

const AttentionTables& attention_tables(Isa isa);

}  // namespace rlk::cpu
