// How a product C = A B^T is cut into blocks for threads and caches. A block goes through its whole
// K on one thread; nothing here can reach a bit.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>

#include "rlk/core/tensor.h"
#include "rlk/core/workspace.h"
#include "rlk/kernels/cpu/gemm_isa.h"
#include "rlk/kernels/kernel_table.h"

namespace rlk::cpu {

const GemmIsa& gemm_isa(Isa isa, Profile profile);

// dst[i * dst_stride + j] = f32(x[row + i, col + j]), x of either storage type with any strides.
void widen(const GemmIsa& isa, float* dst, std::int64_t dst_stride, const ConstTensorView& x,
           std::int64_t row, std::int64_t col, std::int64_t rows, std::int64_t cols);

// A chain may be cut at multiples of this many elements from its start, whatever the profile.
inline constexpr std::int64_t kChainStep = 16;

// The stretches of K that the chains go through, in order. A piece begins where run.a is 0.
class GemmRuns {
 public:
  GemmRuns() = default;
  // Room for the runs of `parts` parts of K, which is `k` long. With `direct` the panels of B are
  // those of the whole K, else those of a piece.
  GemmRuns(Workspace::Frame& frame, std::int64_t parts, std::int64_t k, bool direct)
      : runs_(frame.take<GemmRun>(parts + k / kGemmDepth + 1)), direct_(direct) {}

  // A chain, or a leaf tree: leaf i is one chain through leaf i of each segment. An empty leaf is
  // +0 and left out: adding +0 changes at most the sign of a zero, and the sum ends with + (+0).
  void add_tree(const std::array<std::int64_t, 3>& segments, int leaves);
  // A chain over [begin, end).
  void add_chain(std::int64_t begin, std::int64_t end, GemmRun::Start start);

  bool empty() const { return count_ == 0; }
  const GemmRun* begin() const { return runs_; }
  const GemmRun* end() const { return runs_ + count_; }

 private:
  bool add_subtree(const std::array<std::int64_t, 3>& segments, int leaves, int first, int count,
                   int level);
  void add(std::int64_t begin, std::int64_t end, int level, GemmRun::Start start);

  GemmRun* runs_ = nullptr;
  std::int64_t count_ = 0;
  std::int64_t used_ = 0;  // length of the last piece
  bool direct_ = false;
};

// K so short that reading and writing the sums is most of the work.
inline constexpr std::int64_t kShortDepth = 64;

struct GemmProblem {
  std::int64_t m = 0, n = 0, k = 0;
  ConstTensorView a;             // [m, k]
  ConstTensorView b;             // [n, k]
  const void* packed = nullptr;  // b as panels of its type; optional
  bool direct = false;           // the packed panels are used as they are
};

// Rows [row, row + rows) and columns [col, col + cols) of C; col starts a panel.
struct GemmBlock {
  std::int64_t row, rows;
  std::int64_t col, cols;
};

struct GemmCut {
  std::int64_t m, n;
  std::int64_t rows;  // of a block
  std::int64_t cols;  // of a block, whole panels
  std::int64_t row_blocks, col_blocks;
  std::int64_t grain;  // for parallel_for over size()

  std::int64_t size() const { return row_blocks * col_blocks; }
  GemmBlock at(std::int64_t i) const;
};

// With 256 columns to a block at most, a widened piece of A, one of B and the sums stay in the
// second-level cache together: 256 * 272 * 4 B + 256 * 256 * 4 B + 256 * 256 * 4 B = 784 KiB.
inline constexpr std::int64_t kBlockCols = 256;
GemmCut cut_gemm(const GemmIsa& isa, std::int64_t m, std::int64_t n, std::int64_t k,
                 std::int64_t block_cols, int threads);

// Scratch of one thread.
struct GemmScratch {
  float* a = nullptr;    // [rows, kGemmStrideA]
  float* b = nullptr;    // [panels of the block][kGemmDepth][panel]
  float* acc = nullptr;  // [levels][panels of the block][rows][panel]
};

// Takes what `threads` threads need; scratch i is at(i).
class GemmScratches {
 public:
  GemmScratches(Workspace::Frame& frame, const GemmCut& cut, std::int64_t acc_size, int threads);
  GemmScratch at(int thread) const;

 private:
  float* data_;
  std::int64_t a_size_, b_size_, size_;
};

// The pieces of A and B that a block needs for runs [first, last), in scratch where they have to be
// widened.
GemmPiece load_piece(const GemmIsa& isa, const GemmProblem& problem, const GemmBlock& block,
                     const GemmScratch& scratch, const GemmAcc& acc, const GemmRun* first,
                     const GemmRun* last);
// Panels [begin, begin + count) of the piece.
void multiply(const GemmIsa& isa, const GemmProblem& problem, const GemmBlock& block,
              const GemmScratch& scratch, GemmPiece piece, std::int64_t begin, std::int64_t count);

// Takes the sums of a block through the runs and calls done(panel) for each panel.
template <typename Done>
void accumulate(const GemmIsa& isa, const GemmProblem& problem, const GemmBlock& block,
                const GemmScratch& scratch, const GemmAcc& acc, const GemmRuns& runs,
                const Done& done) {
  const std::int64_t num_panels = (block.cols + isa.panel - 1) / isa.panel;
  for (const GemmRun *first = runs.begin(), *last; first != runs.end(); first = last) {
    last = std::find_if(first + 1, runs.end(), [](const GemmRun& run) { return run.a == 0; });
    const GemmPiece piece = load_piece(isa, problem, block, scratch, acc, first, last);
    // A panel stays in the first-level cache for all rows; few rows stay there for all panels. Rows
    // of sums that lie in a matrix are read and written from end to end.
    const bool unpack = problem.packed != nullptr && !problem.direct;
    const bool rows_first = block.rows <= isa.direct_rows || acc.row_stride != isa.panel;
    const std::int64_t step = !unpack && rows_first ? num_panels : 1;
    for (std::int64_t p = 0; p < num_panels; p += step) {
      multiply(isa, problem, block, scratch, piece, p, step);
      if (last != runs.end()) continue;
      for (std::int64_t i = p; i < p + step; ++i) done(i);
    }
  }
}

}  // namespace rlk::cpu
