// gemm_backward_weight and bias_backward for the CPU.
#include <algorithm>
#include <memory>

#include "rlk/core/error.h"
#include "rlk/kernels/cpu/gemm_blocks.h"
#include "rlk/kernels/cpu/storage.h"
#include "rlk/kernels/cpu/table.h"

namespace rlk::cpu {
namespace {

// The tokens of one group, or of the open one.
struct Group {
  GemmRuns runs;
  bool closed = false;
};

struct Groups {
  Group* data;
  std::int64_t count = 0;

  // cu_seqlens: absent where a sample does not start a new group of mac.
  Groups(Workspace::Frame& frame, const ConstTensorView& ends, const ConstTensorView& cu_seqlens,
         std::int64_t tokens) {
    const std::int64_t samples = cu_seqlens ? cu_seqlens.shape(0) - 1 : 1;
    const std::int64_t closed = ends ? ends.shape(0) : 0;
    data = frame.take<Group>(closed + 1);
    std::int64_t begin = 0, sample = 1;  // the one that holds `begin` ends at cu_seqlens[sample]
    for (std::int64_t i = 0; i <= closed; ++i) {
      const std::int64_t end = i < closed ? *ends.at<std::int64_t>(i) : tokens;
      Group& group = *std::construct_at(data + count++);
      group.closed = i < closed;
      group.runs = GemmRuns(frame, samples, end - begin, false);
      while (begin < end) {
        std::int64_t stop = end;
        if (cu_seqlens) {
          while (*cu_seqlens.at<std::int32_t>(sample) <= begin) ++sample;
          stop = std::min<std::int64_t>(end, *cu_seqlens.at<std::int32_t>(sample));
        }
        group.runs.add_chain(begin, stop, group.runs.empty() ? GemmRun::kLoad : GemmRun::kGoOn);
        begin = stop;
      }
    }
  }
  const Group* begin() const { return data; }
  const Group* end() const { return data + count; }
};

// One block of dW through all tokens. The sums are those of `chain`, worked on where they lie; a
// last panel with fewer columns passes through scratch.
void run_block(const GemmIsa& isa, const GemmBackwardWeightArgs& args, const GemmProblem& problem,
               const GemmBlock& block, const GemmScratch& scratch, const Groups& groups) {
  const std::int64_t panel = isa.panel;
  float* chain = args.chain.at<float>(block.row, block.col);
  const bool copy = block.cols % panel != 0;
  const std::int64_t stride = args.chain.stride(0);
  GemmAcc acc{chain, stride, panel, 0};
  if (copy) {
    acc = {scratch.acc, panel, panel, 0};
    std::fill_n(acc.data, block.rows * panel, 0.0f);
    for (std::int64_t i = 0; i < block.rows; ++i) {
      std::copy_n(chain + i * stride, block.cols, acc.data + i * panel);
    }
  }
  for (const Group& group : groups) {
    accumulate(isa, problem, block, scratch, acc, group.runs, [](std::int64_t) {});
    if (!group.closed) continue;
    for (std::int64_t i = 0; i < block.rows; ++i) {
      float* sums = acc.data + i * acc.row_stride;
      isa.add(args.dw.at<float>(block.row + i, block.col), sums, block.cols);
      std::fill_n(sums, block.cols, 0.0f);
    }
  }
  if (!copy) return;
  for (std::int64_t i = 0; i < block.rows; ++i) {
    std::copy_n(acc.data + i * panel, block.cols, chain + i * stride);
  }
}

}  // namespace

template <Isa I>
void gemm_backward_weight(Exec& exec, const GemmBackwardWeightArgs& args) {
  const GemmIsa& isa = gemm_isa(I, exec.contract.profile);
  const std::int64_t m = args.chain.shape(0);
  const std::int64_t n = args.chain.shape(1);
  const std::int64_t tokens = args.dy.shape(0);
  if (m == 0 || n == 0) return;
  RLK_ASSERT(n == 1 || (args.chain.stride(1) == 1 && args.dw.stride(1) == 1));

  // dW = dy^T x: both operands lie transposed.
  const GemmProblem problem{m, n, tokens, transposed(args.dy), transposed(args.x)};
  const int threads = exec.pool.num_threads();
  // Few tokens: memory likes long rows of sums.
  const std::int64_t cols = tokens <= kShortDepth ? 4 * kBlockCols : kBlockCols;
  const GemmCut cut = cut_gemm(isa, m, n, tokens, cols, threads);
  Workspace::Frame frame(exec.workspace);
  const bool portable = exec.contract.profile == Profile::kPortable;
  const Groups groups(frame, args.group_ends, portable ? ConstTensorView{} : args.cu_seqlens,
                      tokens);
  const GemmScratches scratches(frame, cut, cut.rows * isa.panel, threads);
  exec.pool.parallel_for(
      cut.size(), cut.grain, [&](std::int64_t begin, std::int64_t end, int thread) {
        for (std::int64_t i = begin; i < end; ++i) {
          GemmBlock block = cut.at(i);
          const std::int64_t whole = block.cols / isa.panel * isa.panel;
          const GemmBlock rest{block.row, block.rows, block.col + whole, block.cols - whole};
          block.cols = whole;
          for (const GemmBlock& part : {block, rest}) {
            if (part.cols > 0) run_block(isa, args, problem, part, scratches.at(thread), groups);
          }
        }
      });
}

template <Isa I>
void bias_backward(Exec& exec, const BiasBackwardArgs& args) {
  const GemmIsa& isa = gemm_isa(I, exec.contract.profile);
  const std::int64_t n = args.dbias.shape(0);
  const std::int64_t samples = args.cu_seqlens.shape(0) - 1;
  if (n == 0 || samples <= 0) return;
  RLK_ASSERT(n == 1 || args.dbias.stride(0) == 1);
  const ConstTensorView& dy = args.dy;
  const bool dense = n == 1 || dy.stride(1) == 1;
  const std::int32_t* cu_seqlens = args.cu_seqlens.at<std::int32_t>();
  const std::int64_t block = exec.contract.token_block;
  // Columns are independent. At least 16 of them, so that no two threads write one cache line.
  constexpr std::int64_t kCols = 64;  // of a block that is copied because its columns lie apart
  const std::int64_t grain = std::max<std::int64_t>(16, 65'536 / (dy.shape(0) + 1) / 16 * 16);
  Workspace::Frame frame(exec.workspace);
  float* scratch = dense ? nullptr : frame.take<float>(exec.pool.num_threads() * block * kCols);
  exec.pool.parallel_for(n, grain, [&](std::int64_t begin, std::int64_t end, int thread) {
    float* copy = dense ? nullptr : scratch + thread * block * kCols;
    const auto add = [&](std::int64_t t, std::int64_t rows) {
      float* total = args.dbias.at<float>(begin);
      if (dense && dy.dtype == DType::kF32) {
        isa.add_block_sum_f32(total, dy.at<float>(t, begin), dy.stride(0), rows, end - begin);
      } else if (dense) {
        isa.add_block_sum_bf16(total, dy.at<std::uint16_t>(t, begin), dy.stride(0), rows,
                               end - begin);
      } else {
        for (std::int64_t j = begin; j < end; j += kCols, total += kCols) {
          const std::int64_t cols = std::min(kCols, end - j);
          widen(isa, copy, kCols, dy, t, j, rows, cols);
          isa.add_block_sum_f32(total, copy, kCols, rows, cols);
        }
      }
    };
    for (std::int64_t s = 0; s < samples; ++s) {
      for (std::int64_t t = cu_seqlens[s]; t < cu_seqlens[s + 1]; t += block) {
        add(t, std::min<std::int64_t>(block, cu_seqlens[s + 1] - t));
      }
    }
  });
}

RLK_INSTANTIATE(gemm_backward_weight, GemmBackwardWeightArgs);
RLK_INSTANTIATE(bias_backward, BiasBackwardArgs);

}  // namespace rlk::cpu
