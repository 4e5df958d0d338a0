// gemm and pack_weight for the CPU.
#include <algorithm>
#include <bit>

#include "rlk/core/error.h"
#include "rlk/kernels/cpu/gemm_blocks.h"
#include "rlk/kernels/cpu/storage.h"
#include "rlk/kernels/cpu/table.h"

namespace rlk::cpu {
namespace {

// Writes one panel of sums, [rows][panel], to the columns of C from block.col + j on. Where these
// lie apart they pass through `line`, of one panel.
void finish_panel(const GemmIsa& isa, const TensorView& c, const GemmBlock& block, std::int64_t j,
                  const float* acc, const float* bias, float* line) {
  const std::int64_t col = block.col + j;
  const std::int64_t cols = std::min<std::int64_t>(isa.panel, block.cols - j);
  with_storage(c.dtype, [&]<typename T>() {
    const auto finish = [&](T* y, std::int64_t y_stride, const float* sums, std::int64_t rows) {
      if constexpr (sizeof(T) == sizeof(float)) {
        isa.finish_f32(y, y_stride, sums, bias, rows, cols);
      } else {
        isa.finish_bf16(y, y_stride, sums, bias, rows, cols);
      }
    };
    if (c.stride(1) == 1 || c.shape(1) == 1) {
      return finish(c.at<T>(block.row, col), c.stride(0), acc, block.rows);
    }
    T* row = reinterpret_cast<T*>(line);
    for (std::int64_t i = 0; i < block.rows; ++i) {
      finish(row, isa.panel, acc + i * isa.panel, 1);
      for (std::int64_t l = 0; l < cols; ++l) *c.at<T>(block.row + i, col + l) = row[l];
    }
  });
}

}  // namespace

template <Isa I>
void gemm(Exec& exec, const GemmArgs& args) {
  const GemmIsa& isa = gemm_isa(I, exec.contract.profile);
  const std::int64_t panel = isa.panel;
  const std::int64_t m = args.c.shape(0);
  const std::int64_t n = args.c.shape(1);
  const std::int64_t k = args.a.shape(1);
  if (m == 0 || n == 0) return;
  const auto& segments = args.segments;
  RLK_ASSERT(!args.leaf_tree || segments[0] + segments[1] + segments[2] == k);
  const int leaves = args.leaf_tree ? exec.contract.leaves : 1;

  const int threads = exec.pool.num_threads();
  const GemmCut cut = cut_gemm(isa, m, n, k, (leaves == 1 ? 2 : 1) * kBlockCols, threads);
  GemmProblem problem{m, n, k, args.a, args.b};
  if (args.packed_b && args.packed_b->owner == &isa) {
    RLK_ASSERT(args.packed_b->n == n && args.packed_b->k == k &&
               args.packed_b->dtype == args.b.dtype);
    problem.packed = args.packed_b->data.get();
    // More rows: a panel is copied first, so that it comes from memory at once and only once. F32
    // panels need no copy where they stay in the cache anyway.
    constexpr std::int64_t kCached = 256 * 1024;
    problem.direct =
        cut.rows <= isa.direct_rows || (args.b.dtype == DType::kF32 && n * k <= kCached);
  }
  Workspace::Frame frame(exec.workspace);
  GemmRuns runs(frame, 3 * leaves, k, problem.direct);
  runs.add_tree(args.leaf_tree ? segments : std::array<std::int64_t, 3>{k, 0, 0}, leaves);
  float* bias = nullptr;
  if (args.bias) {
    bias = frame.take<float>(n);
    ConstTensorView column = args.bias;  // [n, 1], which widen takes for rows and columns
    column.layout.stride[1] = column.layout.stride[0];
    widen(isa, bias, n, column, 0, 0, 1, n);
  }
  const std::int64_t level_size = cut.rows * cut.cols;
  const int levels = std::bit_width(static_cast<unsigned>(leaves));
  const GemmScratches scratches(frame, cut, levels * level_size + panel, threads);
  const auto run_block = [&](const GemmBlock& block, const GemmScratch& scratch) {
    const GemmAcc acc{scratch.acc, panel, block.rows * panel, level_size};
    const auto done = [&](std::int64_t p) {
      finish_panel(isa, args.c, block, p * panel, acc.data + p * acc.panel_stride,
                   bias ? bias + block.col + p * panel : nullptr,
                   scratch.acc + levels * level_size);
    };
    if (k == 0) {
      std::fill_n(acc.data, level_size, 0.0f);
      for (std::int64_t p = 0; p * panel < block.cols; ++p) done(p);
    }
    accumulate(isa, problem, block, scratch, acc, runs, done);
  };
  exec.pool.parallel_for(cut.size(), cut.grain,
                         [&](std::int64_t begin, std::int64_t end, int thread) {
                           for (std::int64_t i = begin; i < end; ++i) {
                             run_block(cut.at(i), scratches.at(thread));
                           }
                         });
}

template <Isa I>
void pack_weight(Exec& exec, const PackWeightArgs& args) {
  const GemmIsa& isa = gemm_isa(I, exec.contract.profile);
  const ConstTensorView& w = args.w;
  const std::int64_t n = w.shape(0);
  const std::int64_t k = w.shape(1);
  const std::int64_t panels = (n + isa.panel - 1) / isa.panel;
  PackedWeight& packed = *args.packed;
  if (packed.owner != &isa || packed.n != n || packed.k != k || packed.dtype != w.dtype ||
      !packed.data) {
    auto memory = std::make_shared<Tensor>(
        w.dtype, std::initializer_list<std::int64_t>{panels, k, std::int64_t{isa.panel}});
    packed = {&isa, n, k, std::shared_ptr<void>(memory, memory->template data<void>()), w.dtype};
  }

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
      for (std::int64_t i = 0; i < k; i += kGemmDepth) {
        const std::int64_t depth = std::min(kGemmDepth, k - i);
        const std::int64_t at = col * k + i * isa.panel;
        float* wide = w.dtype == DType::kF32 ? static_cast<float*>(packed.data.get()) + at : b;
        if (cols < isa.panel) std::fill_n(wide, depth * isa.panel, 0.0f);  // pads the last panel
        widen(isa, wide, isa.panel, transposed(w), i, col, depth, cols);
        if (wide == b) isa.pack(static_cast<std::uint16_t*>(packed.data.get()) + at, b, depth);
      }
    }
  });
}

RLK_INSTANTIATE(gemm, GemmArgs);
RLK_INSTANTIATE(pack_weight, PackWeightArgs);

}  // namespace rlk::cpu
