// gemm and pack_weight for the CPU.
#include <algorithm>
#include <bit>
#include <cstring>

#include "rlk/core/error.h"
#include "rlk/kernels/cpu/gemm_blocks.h"
#include "rlk/kernels/cpu/table.h"
#include "rlk/numerics/sums.h"

namespace rlk::cpu {
namespace {

struct Task {
  const GemmIsa& isa;
  const GemmArgs& args;
  GemmProblem problem;
  int leaves;  // 1: one chain
  std::array<std::int64_t, 3> segments;
};

// Leaf i: one chain through leaf i of each segment. False if the leaf is empty; then acc is unset.
bool run_leaf(const Task& task, const GemmBlock& block, const GemmScratch& scratch, int i,
              float* acc) {
  bool fresh = true;
  std::int64_t origin = 0;
  for (std::int64_t length : task.segments) {
    const std::int64_t begin = origin + numerics::leaf_bound(length, task.leaves, i);
    const std::int64_t end = origin + numerics::leaf_bound(length, task.leaves, i + 1);
    if (begin < end) {
      accumulate(task.isa, task.problem, block, scratch, acc, begin, end, fresh);
      fresh = false;
    }
    origin += length;
  }
  return !fresh;
}

// Leaves [first, first + count) merged by neighbours into level `level`. An empty leaf is +0 and is
// left out: adding +0 changes at most the sign of a zero, and the sum ends with + (+0).
bool run_tree(const Task& task, const GemmBlock& block, const GemmScratch& scratch, int first,
              int count, int level) {
  if (count == 1) return run_leaf(task, block, scratch, first, scratch.level(level));
  const int half = count / 2;
  const bool left = run_tree(task, block, scratch, first, half, level);
  const bool right = run_tree(task, block, scratch, first + half, half, left ? level + 1 : level);
  if (left && right) {
    const std::int64_t panels = (block.cols + task.isa.panel - 1) / task.isa.panel;
    task.isa.add(scratch.level(level), scratch.level(level + 1),
                 panels * block.rows * task.isa.panel);
  }
  return left || right;
}

void run_block(const Task& task, const GemmBlock& block, const GemmScratch& scratch) {
  const std::int64_t panel = task.isa.panel;
  if (!run_tree(task, block, scratch, 0, task.leaves, 0)) {  // K = 0
    std::fill_n(scratch.level(0), (block.cols + panel - 1) / panel * block.rows * panel, 0.0f);
  }
  const TensorView& c = task.args.c;
  const ConstTensorView& bias = task.args.bias;
  for (std::int64_t j = 0; j < block.cols; j += panel) {
    const std::int64_t col = block.col + j;
    const std::int64_t cols = std::min(panel, block.cols - j);
    const float* acc = scratch.level(0) + j * block.rows;
    const auto* shift = bias ? static_cast<const std::uint16_t*>(bias.data) + col : nullptr;
    if (c.dtype == DType::kF32) {
      task.isa.finish_f32(c.at<float>(block.row, col), c.stride(0), acc, shift, block.rows, cols);
    } else {
      task.isa.finish_bf16(c.at<std::uint16_t>(block.row, col), c.stride(0), acc, shift, block.rows,
                           cols);
    }
  }
}

GemmOperand operand(const ConstTensorView& t) {
  return {static_cast<const std::uint16_t*>(t.data), t.stride(0), t.stride(1)};
}

}  // namespace

template <Isa I>
void gemm(Exec& exec, const GemmArgs& args) {
  const GemmIsa& isa = gemm_isa(I);
  const std::int64_t m = args.c.shape(0);
  const std::int64_t n = args.c.shape(1);
  const std::int64_t k = args.a.shape(1);
  if (m == 0 || n == 0) return;
  RLK_ASSERT(n == 1 || args.c.stride(1) == 1);
  RLK_ASSERT(n == 1 || !args.bias || args.bias.stride(0) == 1);

  Task task{isa, args, {m, n, k, operand(args.a), operand(args.b)}, 1, {k, 0, 0}};
  if (args.packed_b && args.packed_b->owner == &isa) {
    RLK_ASSERT(args.packed_b->n == n && args.packed_b->k == k);
    task.problem.packed = static_cast<const std::uint16_t*>(args.packed_b->data.get());
  }
  if (args.leaf_tree) {
    task.leaves = exec.contract.leaves;
    task.segments = args.segments;
    RLK_ASSERT(task.segments[0] + task.segments[1] + task.segments[2] == k);
  }

  const int threads = exec.pool.num_threads();
  const GemmCut cut = cut_gemm(isa, m, n, k, threads);
  const int levels = std::bit_width(static_cast<unsigned>(task.leaves));
  Workspace::Frame frame(exec.workspace);
  const GemmScratches scratches(frame, cut, levels, threads);
  exec.pool.parallel_for(cut.size(), cut.grain,
                         [&](std::int64_t begin, std::int64_t end, int thread) {
                           for (std::int64_t i = begin; i < end; ++i) {
                             run_block(task, cut.at(i), scratches.at(thread));
                           }
                         });
}

template <Isa I>
void pack_weight(Exec& exec, const PackWeightArgs& args) {
  const GemmIsa& isa = gemm_isa(I);
  const std::int64_t n = args.w.shape(0);
  const std::int64_t k = args.w.shape(1);
  const std::int64_t panels = (n + isa.panel - 1) / isa.panel;
  PackedWeight& packed = *args.packed;
  if (packed.owner != &isa || packed.n != n || packed.k != k || !packed.data) {
    auto memory = std::make_shared<Tensor>(
        DType::kBF16, std::initializer_list<std::int64_t>{panels, k, std::int64_t{isa.panel}});
    packed = {&isa, n, k, std::shared_ptr<void>(memory, memory->template data<void>())};
  }
  auto* data = static_cast<std::uint16_t*>(packed.data.get());
  const GemmOperand w = operand(args.w);

  const int threads = exec.pool.num_threads();
  const std::int64_t piece = kGemmDepth * isa.panel;
  Workspace::Frame frame(exec.workspace);
  float* scratch = frame.take<float>(piece * threads);
  const std::int64_t grain = std::max<std::int64_t>(1, 65'536 / (isa.panel * (k + 1)));
  exec.pool.parallel_for(panels, grain, [&](std::int64_t begin, std::int64_t end, int thread) {
    float* b = scratch + thread * piece;
    for (std::int64_t p = begin; p < end; ++p) {
      const std::int64_t col = p * isa.panel;
      const std::int64_t cols = std::min<std::int64_t>(isa.panel, n - col);
      if (cols < isa.panel) std::fill_n(b, piece, 0.0f);  // pads the last panel
      for (std::int64_t i = 0; i < k; i += kGemmDepth) {
        const std::int64_t depth = std::min(kGemmDepth, k - i);
        isa.widen(b, isa.panel, w.data + col * w.stride + i * w.depth_stride, w.depth_stride,
                  w.stride, depth, cols);
        isa.pack(data + col * k + i * isa.panel, b, depth);
      }
    }
  });
}

RLK_INSTANTIATE(gemm, GemmArgs);
RLK_INSTANTIATE(pack_weight, PackWeightArgs);

}  // namespace rlk::cpu
