// gemm_backward_weight and bias_backward for the CPU.
#include <algorithm>
#include <cstring>

#include "rlk/core/error.h"
#include "rlk/kernels/cpu/gemm_blocks.h"
#include "rlk/kernels/cpu/table.h"

namespace rlk::cpu {
namespace {

// Rows of a [rows, n] f32 matrix to and from the panels of a block.
void read_block(float* acc, const TensorView& matrix, const GemmBlock& block, std::int64_t panel) {
  for (std::int64_t j = 0; j < block.cols; j += panel) {
    const std::int64_t cols = std::min(panel, block.cols - j);
    for (std::int64_t i = 0; i < block.rows; ++i, acc += panel) {
      std::copy_n(matrix.at<float>(block.row + i, block.col + j), cols, acc);
      std::fill_n(acc + cols, panel - cols, 0.0f);
    }
  }
}

void write_block(const TensorView& matrix, const float* acc, const GemmBlock& block,
                 std::int64_t panel) {
  for (std::int64_t j = 0; j < block.cols; j += panel) {
    const std::int64_t cols = std::min(panel, block.cols - j);
    for (std::int64_t i = 0; i < block.rows; ++i, acc += panel) {
      std::copy_n(acc, cols, matrix.at<float>(block.row + i, block.col + j));
    }
  }
}

void add_block(const GemmIsa& isa, const TensorView& matrix, const float* acc,
               const GemmBlock& block) {
  const std::int64_t panel = isa.panel;
  for (std::int64_t j = 0; j < block.cols; j += panel) {
    const std::int64_t cols = std::min(panel, block.cols - j);
    for (std::int64_t i = 0; i < block.rows; ++i, acc += panel) {
      isa.add(matrix.at<float>(block.row + i, block.col + j), acc, cols);
    }
  }
}

// One block of dW through all tokens: the sums are read and written once.
void run_block(const GemmIsa& isa, const GemmBackwardWeightArgs& args, const GemmProblem& problem,
               const GemmBlock& block, const GemmScratch& scratch) {
  float* acc = scratch.level(0);
  const std::int64_t acc_size = (block.cols + isa.panel - 1) / isa.panel * block.rows * isa.panel;
  read_block(acc, args.chain, block, isa.panel);
  std::int64_t begin = 0;
  bool fresh = false;
  for (std::int64_t i = 0; i < (args.group_ends ? args.group_ends.shape(0) : 0); ++i) {
    const std::int64_t end = *args.group_ends.at<std::int64_t>(i);
    accumulate(isa, problem, block, scratch, acc, begin, end, fresh);
    add_block(isa, args.dw, acc, block);
    begin = end;
    fresh = true;
  }
  if (begin < problem.k) {
    accumulate(isa, problem, block, scratch, acc, begin, problem.k, fresh);
  } else if (fresh) {
    std::fill_n(acc, acc_size, 0.0f);
  }
  write_block(args.chain, acc, block, isa.panel);
}

}  // namespace

template <Isa I>
void gemm_backward_weight(Exec& exec, const GemmBackwardWeightArgs& args) {
  const GemmIsa& isa = gemm_isa(I);
  const std::int64_t m = args.chain.shape(0);
  const std::int64_t n = args.chain.shape(1);
  const std::int64_t tokens = args.dy.shape(0);
  if (m == 0 || n == 0) return;
  RLK_ASSERT(n == 1 || (args.chain.stride(1) == 1 && args.dw.stride(1) == 1));

  // dW = dy^T x: both operands lie transposed.
  const GemmProblem problem{
      m,
      n,
      tokens,
      {static_cast<const std::uint16_t*>(args.dy.data), args.dy.stride(1), args.dy.stride(0)},
      {static_cast<const std::uint16_t*>(args.x.data), args.x.stride(1), args.x.stride(0)}};
  const int threads = exec.pool.num_threads();
  const GemmCut cut = cut_gemm(isa, m, n, tokens, threads);
  Workspace::Frame frame(exec.workspace);
  const GemmScratches scratches(frame, cut, 1, threads);
  exec.pool.parallel_for(cut.size(), cut.grain,
                         [&](std::int64_t begin, std::int64_t end, int thread) {
                           for (std::int64_t i = begin; i < end; ++i) {
                             run_block(isa, args, problem, cut.at(i), scratches.at(thread));
                           }
                         });
}

template <Isa I>
void bias_backward(Exec& exec, const BiasBackwardArgs& args) {
  const GemmIsa& isa = gemm_isa(I);
  const std::int64_t n = args.dbias.shape(0);
  const std::int64_t samples = args.cu_seqlens.shape(0) - 1;
  if (n == 0 || samples <= 0) return;
  RLK_ASSERT(n == 1 || (args.dbias.stride(0) == 1 && args.dy.stride(1) == 1));
  const std::int32_t* cu_seqlens = args.cu_seqlens.at<std::int32_t>();
  const std::int64_t block = exec.contract.token_block;
  // Columns are independent. At least 16 of them, so that no two threads write one cache line.
  const std::int64_t grain = std::max<std::int64_t>(16, 65'536 / (args.dy.shape(0) + 1) / 16 * 16);
  exec.pool.parallel_for(n, grain, [&](std::int64_t begin, std::int64_t end, int) {
    for (std::int64_t s = 0; s < samples; ++s) {
      for (std::int64_t t = cu_seqlens[s]; t < cu_seqlens[s + 1]; t += block) {
        const std::int64_t rows = std::min<std::int64_t>(block, cu_seqlens[s + 1] - t);
        isa.add_block_sum(args.dbias.at<float>(begin), args.dy.at<std::uint16_t>(t, begin),
                          args.dy.stride(0), rows, end - begin);
      }
    }
  });
}

RLK_INSTANTIATE(gemm_backward_weight, GemmBackwardWeightArgs);
RLK_INSTANTIATE(bias_backward, BiasBackwardArgs);

}  // namespace rlk::cpu
