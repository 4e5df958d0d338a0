#include "rlk/kernels/cpu/gemm_blocks.h"

#include <cstring>

#include "rlk/numerics/sums.h"

namespace rlk::cpu {
namespace {

constexpr std::int64_t kBlockRows = 256;
// Where K is short the sums of a panel are read and written so often that they should stay in the
// first-level cache: 112 * 32 * 4 B = 14 KiB.
constexpr std::int64_t kShortBlockRows = 112;
// Below this much work, about 10 us, sharing a product among threads costs more than it saves. The
// work is n k (m + 4) multiply-adds: to read a weight takes as long as to use it on four rows.
constexpr std::int64_t kSerialWork = 500'000;
// Where the rows of a panel of B lie apart in memory, so many of them are widened for one panel
// after the other, so that neighbouring panels share what memory delivers.
constexpr std::int64_t kWidenRows = 16;

std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

// b [n, k] from column block.col of C and run.k on, as f32 panels [panels][depth][panel].
void widen_panels(const GemmIsa& isa, const ConstTensorView& b, const GemmBlock& block,
                  const GemmRun& run, std::int64_t depth, float* panels) {
  const std::int64_t panel = isa.panel;
  const std::int64_t step = b.stride(1) == 1 ? run.depth : kWidenRows;
  for (std::int64_t i = 0; i < run.depth; i += step) {
    const std::int64_t rows = std::min(step, run.depth - i);
    for (std::int64_t j = 0; j < block.cols; j += panel) {
      widen(isa, panels + j * depth + (run.a + i) * panel, panel, transposed(b), run.k + i,
            block.col + j, rows, std::min(panel, block.cols - j));
    }
  }
}

}  // namespace

void widen(const GemmIsa& isa, float* dst, std::int64_t dst_stride, const ConstTensorView& x,
           std::int64_t row, std::int64_t col, std::int64_t rows, std::int64_t cols) {
  if (x.dtype == DType::kF32) {
    isa.widen_f32(dst, dst_stride, x.at<float>(row, col), x.stride(0), x.stride(1), rows, cols);
  } else {
    isa.widen_bf16(dst, dst_stride, x.at<std::uint16_t>(row, col), x.stride(0), x.stride(1), rows,
                   cols);
  }
}

void GemmRuns::add_tree(const std::array<std::int64_t, 3>& segments, int leaves) {
  add_subtree(segments, leaves, 0, leaves, 0);
}

void GemmRuns::add_chain(std::int64_t begin, std::int64_t end, GemmRun::Start start) {
  add(begin, end, 0, start);
  if (count_ > 0) runs_[count_ - 1].store = true;
}

// Leaves [first, first + count) merged by neighbours into `level`. False if all are empty.
bool GemmRuns::add_subtree(const std::array<std::int64_t, 3>& segments, int leaves, int first,
                           int count, int level) {
  if (count > 1) {
    const int half = count / 2;
    const bool left = add_subtree(segments, leaves, first, half, level);
    const bool right = add_subtree(segments, leaves, first + half, half, left ? level + 1 : level);
    if (left && right) ++runs_[count_ - 1].merges;
    return left || right;
  }
  const std::int64_t before = count_;
  std::int64_t origin = 0;
  for (const std::int64_t length : segments) {
    add(origin + numerics::leaf_bound(length, leaves, first),
        origin + numerics::leaf_bound(length, leaves, first + 1), level,
        count_ == before ? GemmRun::kFresh : GemmRun::kGoOn);
    origin += length;
  }
  if (count_ > before) runs_[count_ - 1].store = true;
  return count_ > before;
}

// Cut evenly, by whole steps, and not at all where it fits into a piece.
void GemmRuns::add(std::int64_t begin, std::int64_t end, int level, GemmRun::Start start) {
  if (begin >= end) return;
  const std::int64_t even = ceil_div(end - begin, ceil_div(end - begin, kGemmDepth));
  const std::int64_t step = ceil_div(even, kChainStep) * kChainStep;
  for (; begin < end; begin += step, start = GemmRun::kGoOn) {
    const std::int64_t depth = std::min(step, end - begin);
    if (used_ + depth > kGemmDepth) used_ = 0;
    if (start == GemmRun::kGoOn && used_ == 0) {  // through memory, into the next piece
      runs_[count_ - 1].store = true;
      start = GemmRun::kLoad;
    }
    runs_[count_++] = {used_, direct_ ? begin : used_, begin, depth, level, 0, start, false};
    used_ += depth;
  }
}

// Row blocks that share columns follow each other, so that a large weight is read from memory once.
GemmBlock GemmCut::at(std::int64_t i) const {
  const std::int64_t row = i % row_blocks * rows;
  const std::int64_t col = i / row_blocks * cols;
  return {row, std::min(rows, m - row), col, std::min(cols, n - col)};
}

GemmCut cut_gemm(const GemmIsa& isa, std::int64_t m, std::int64_t n, std::int64_t k,
                 std::int64_t block_cols, int threads) {
  const std::int64_t panels = ceil_div(n, isa.panel);
  std::int64_t row_blocks = ceil_div(m, k <= 2 * kShortDepth ? kShortBlockRows : kBlockRows);
  std::int64_t block_panels = std::min(panels, block_cols / isa.panel);
  const bool serial = threads == 1 || n * k * (m + 4) < kSerialWork;
  // A block widens its own part of A (and of B, if that is not packed), so it is best as tall as it
  // is wide.
  while (!serial && row_blocks * ceil_div(panels, block_panels) < 3 * threads) {
    const std::int64_t rows = ceil_div(m, row_blocks);
    if (rows >= 2 * isa.direct_rows && (rows >= block_panels * isa.panel || block_panels <= 4)) {
      row_blocks *= 2;
    } else if (block_panels > 1) {
      block_panels = ceil_div(block_panels, 2);
    } else {
      break;
    }
  }
  const std::int64_t rows = ceil_div(m, row_blocks);
  GemmCut cut{m, n, rows, block_panels * isa.panel, ceil_div(m, rows), 0, 1};
  cut.col_blocks = ceil_div(panels, block_panels);
  if (serial) cut.grain = cut.size();
  return cut;
}

GemmScratches::GemmScratches(Workspace::Frame& frame, const GemmCut& cut, std::int64_t acc_size,
                             int threads)
    : a_size_(cut.rows * kGemmStrideA),
      b_size_(kGemmDepth * cut.cols),
      size_(ceil_div(a_size_ + b_size_ + acc_size, 16) * 16) {
  data_ = frame.take<float>(size_ * (cut.size() <= cut.grain ? 1 : threads));
}

GemmScratch GemmScratches::at(int thread) const {
  float* p = data_ + thread * size_;
  return {p + b_size_, p, p + b_size_ + a_size_};
}

GemmPiece load_piece(const GemmIsa& isa, const GemmProblem& problem, const GemmBlock& block,
                     const GemmScratch& scratch, const GemmAcc& acc, const GemmRun* first,
                     const GemmRun* last) {
  const std::int64_t panel = isa.panel;
  const std::int64_t depth = (last - 1)->a + (last - 1)->depth;
  for (const GemmRun* run = first; run != last; ++run) {
    widen(isa, scratch.a + run->a, kGemmStrideA, problem.a, block.row, run->k, block.rows,
          run->depth);
  }
  GemmPiece piece{scratch.a, scratch.b, depth * panel, acc, first, last - first, block.rows, 0};
  if (problem.direct) {
    piece.b_panel_stride = problem.k * panel;
    piece.b = static_cast<const char*>(problem.packed) +
              block.col * problem.k * static_cast<std::int64_t>(size_of(problem.b.dtype));
  } else if (problem.packed == nullptr) {
    const std::int64_t whole = block.cols / panel * panel;
    if (whole < block.cols) {  // zeros pad the last panel
      std::fill_n(scratch.b + whole * depth, depth * panel, 0.0f);
    }
    for (const GemmRun* run = first; run != last; ++run) {
      widen_panels(isa, problem.b, block, *run, depth, scratch.b);
    }
  }
  return piece;
}

void multiply(const GemmIsa& isa, const GemmProblem& problem, const GemmBlock& block,
              const GemmScratch& scratch, GemmPiece piece, std::int64_t begin, std::int64_t count) {
  const std::int64_t panel = isa.panel;
  piece.num_panels = count;
  piece.acc.data += begin * piece.acc.panel_stride;
  if (problem.packed != nullptr && !problem.direct) {
    const auto element = static_cast<std::int64_t>(size_of(problem.b.dtype));
    const char* packed = static_cast<const char*>(problem.packed) +
                         (block.col + begin * panel) * problem.k * element;
    for (std::int64_t i = 0; i < piece.num_runs; ++i) {
      const GemmRun& run = piece.runs[i];
      float* to = scratch.b + run.a * panel;
      const char* from = packed + run.k * panel * element;
      if (problem.b.dtype == DType::kF32) {
        std::memcpy(to, from, static_cast<std::size_t>(run.depth * panel * element));
      } else {
        isa.unpack(to, reinterpret_cast<const std::uint16_t*>(from), run.depth);
      }
    }
    return isa.product_f32(piece);
  }
  const std::int64_t offset = begin * piece.b_panel_stride;
  if (problem.direct && problem.b.dtype == DType::kBF16) {
    piece.b = static_cast<const std::uint16_t*>(piece.b) + offset;
    return isa.product_bf16(piece);
  }
  piece.b = static_cast<const float*>(piece.b) + offset;
  isa.product_f32(piece);
}

}  // namespace rlk::cpu
