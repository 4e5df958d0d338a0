#include "rlk/kernels/cpu/gemm_blocks.h"

#include <algorithm>
#include <cstring>

namespace rlk::cpu {
namespace {

// A widened piece of A, one of B and the sums of a block stay in the second-level cache together:
// 256 * 272 * 4 B + 256 * 256 * 4 B + 256 * 256 * 4 B = 784 KiB.
constexpr std::int64_t kBlockRows = 256;
constexpr std::int64_t kBlockCols = 256;
// Below this much work, about 10 us, sharing a product among threads costs more than it saves. The
// work is n k (m + 4) multiply-adds: to read a weight takes as long as to use it on four rows.
constexpr std::int64_t kSerialWork = 500'000;
// Where the rows of a panel of B lie apart in memory, so many of them are widened for one panel
// after the other, so that neighbouring panels share what memory delivers.
constexpr std::int64_t kWidenRows = 16;

std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

// b [depth, n] from row k and column block.col on, as f32 panels [panels][depth][panel].
void widen_panels(const GemmIsa& isa, const GemmOperand& b, const GemmBlock& block, std::int64_t k,
                  std::int64_t depth, float* panels) {
  const std::int64_t panel = isa.panel;
  const std::int64_t whole = block.cols / panel * panel;
  if (whole < block.cols) {  // zeros pad the last panel
    std::memset(panels + whole * depth, 0, sizeof(float) * static_cast<std::size_t>(depth * panel));
  }
  const std::int64_t step = b.depth_stride == 1 ? depth : kWidenRows;
  for (std::int64_t i = 0; i < depth; i += step) {
    const std::int64_t rows = std::min(step, depth - i);
    const std::uint16_t* src = b.data + block.col * b.stride + (k + i) * b.depth_stride;
    for (std::int64_t j = 0; j < block.cols; j += panel) {
      isa.widen(panels + j * depth + i * panel, panel, src + j * b.stride, b.depth_stride, b.stride,
                rows, std::min(panel, block.cols - j));
    }
  }
}

}  // namespace

const GemmIsa& gemm_isa(Isa isa) {
  switch (isa) {
    case Isa::kAvx2: return kGemmAvx2;
    case Isa::kAvx512: return kGemmAvx512;
    default: return kGemmScalar;
  }
}

// Row blocks that share columns follow each other, so that a large weight is read from memory once.
GemmBlock GemmCut::at(std::int64_t i) const {
  const std::int64_t row = i % row_blocks * rows;
  const std::int64_t col = i / row_blocks * cols;
  return {row, std::min(rows, m - row), col, std::min(cols, n - col)};
}

GemmCut cut_gemm(const GemmIsa& isa, std::int64_t m, std::int64_t n, std::int64_t k, int threads) {
  const std::int64_t panels = ceil_div(n, isa.panel);
  std::int64_t row_blocks = ceil_div(m, kBlockRows);
  std::int64_t block_panels = std::min(panels, kBlockCols / isa.panel);
  const bool serial = threads == 1 || n * k * (m + 4) < kSerialWork;
  while (!serial && row_blocks * ceil_div(panels, block_panels) < 3 * threads) {
    if (block_panels > 4) {
      block_panels = ceil_div(block_panels, 2);
    } else if (m >= 2 * isa.direct_rows * row_blocks) {
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

GemmScratches::GemmScratches(Workspace::Frame& frame, const GemmCut& cut, int levels, int threads)
    : a_size_(cut.rows * kGemmStrideA),
      b_size_(kGemmDepth * cut.cols),
      acc_size_(cut.rows * cut.cols),
      size_(ceil_div(a_size_ + b_size_ + levels * acc_size_, 16) * 16) {
  data_ = frame.take<float>(size_ * (cut.size() <= cut.grain ? 1 : threads));
}

GemmScratch GemmScratches::at(int thread) const {
  float* p = data_ + thread * size_;
  return {p + b_size_, p, p + b_size_ + a_size_, acc_size_};
}

void accumulate(const GemmIsa& isa, const GemmProblem& problem, const GemmBlock& block,
                const GemmScratch& scratch, float* acc, std::int64_t begin, std::int64_t end,
                bool fresh) {
  const std::int64_t panel = isa.panel;
  const std::int64_t num_panels = ceil_div(block.cols, panel);
  for (std::int64_t k = begin; k < end; k += kGemmDepth, fresh = false) {
    const std::int64_t depth = std::min(kGemmDepth, end - k);
    const GemmOperand& a = problem.a;
    isa.widen(scratch.a, kGemmStrideA, a.data + block.row * a.stride + k * a.depth_stride, a.stride,
              a.depth_stride, block.rows, depth);
    if (!problem.packed) {
      widen_panels(isa, problem.b, block, k, depth, scratch.b);
      for (std::int64_t p = 0; p < num_panels; ++p) {
        isa.product(acc + p * block.rows * panel, scratch.a, scratch.b + p * depth * panel,
                    block.rows, depth, fresh);
      }
      continue;
    }
    const std::uint16_t* packed = problem.packed + block.col * problem.k + k * panel;
    const std::int64_t panel_stride = problem.k * panel;
    if (block.rows <= isa.direct_rows) {
      isa.product_packed(acc, scratch.a, packed, panel_stride, num_panels, block.rows, depth,
                         fresh);
      continue;
    }
    for (std::int64_t p = 0; p < num_panels; ++p) {
      isa.unpack(scratch.b, packed + p * panel_stride, depth);
      isa.product(acc + p * block.rows * panel, scratch.a, scratch.b, block.rows, depth, fresh);
    }
  }
}

}  // namespace rlk::cpu
