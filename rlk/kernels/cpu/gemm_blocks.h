// How a product C = A B^T is cut into blocks for threads and caches. A block goes through its whole
// K on one thread; nothing here can reach a bit.
#pragma once

#include <cstdint>

#include "rlk/core/tensor.h"
#include "rlk/core/workspace.h"
#include "rlk/kernels/cpu/gemm_isa.h"
#include "rlk/kernels/kernel_table.h"

namespace rlk::cpu {

const GemmIsa& gemm_isa(Isa isa);

// A bf16 matrix, one row per row (column) of C, `depth` along the reduction.
struct GemmOperand {
  const std::uint16_t* data = nullptr;
  std::int64_t stride = 0;
  std::int64_t depth_stride = 0;
};

struct GemmProblem {
  std::int64_t m = 0, n = 0, k = 0;
  GemmOperand a;                          // [m, k]
  GemmOperand b;                          // [n, k]
  const std::uint16_t* packed = nullptr;  // b as panels; optional
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

GemmCut cut_gemm(const GemmIsa& isa, std::int64_t m, std::int64_t n, std::int64_t k, int threads);

// Scratch of one thread.
struct GemmScratch {
  float* a = nullptr;    // [rows, kGemmStrideA]
  float* b = nullptr;    // [panels of the block][kGemmDepth][panel]
  float* acc = nullptr;  // [levels][panels of the block][rows][panel]
  std::int64_t acc_size = 0;

  float* level(int i) const { return acc + i * acc_size; }
};

// Takes what `threads` threads need; scratch i is at(i).
class GemmScratches {
 public:
  GemmScratches(Workspace::Frame& frame, const GemmCut& cut, int levels, int threads);
  GemmScratch at(int thread) const;

 private:
  float* data_;
  std::int64_t a_size_, b_size_, acc_size_, size_;
};

// Goes on with the chains acc [panels][rows][panel] of a block over [begin, end) of K; with `fresh`
// they start here.
void accumulate(const GemmIsa& isa, const GemmProblem& problem, const GemmBlock& block,
                const GemmScratch& scratch, float* acc, std::int64_t begin, std::int64_t end,
                bool fresh);

}  // namespace rlk::cpu
