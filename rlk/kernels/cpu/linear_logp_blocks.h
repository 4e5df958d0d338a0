// What forward and backward of linear_logp share: blocks of logits that live as long as they are in
// the cache.
#pragma once

#include <algorithm>

#include "rlk/kernels/cpu/gemm_blocks.h"
#include "rlk/kernels/cpu/logprob_rows.h"
#include "rlk/kernels/linear_logp_rows.h"

namespace rlk::cpu {

// Rows of a block. A block of logits, a widened piece of `hidden` and the open sums of a product
// share the second-level cache of a core.
inline constexpr std::int64_t kLogitRows = 256;
inline constexpr std::int64_t kProductCols = 256;  // columns of one product; whole panels

// The kernels here take rows without gaps; other calls go by whole rows.
inline bool fits_blocks(const LinearLogpArgs& a) { return dense(1, a.hidden, a.head); }

inline const void* packed_panels(const GemmIsa& isa, const PackedWeight* packed, DType dtype) {
  return packed && packed->owner == &isa && packed->dtype == dtype ? packed->data.get() : nullptr;
}

// All blocks on one thread where there is less work, in multiply-adds, than 10 us.
inline std::int64_t block_grain(std::int64_t work, std::int64_t blocks) {
  return work < 500'000 ? std::max<std::int64_t>(1, blocks) : 1;
}

// Rows of `total` in equal tiles of at most `most`.
inline std::int64_t even_tile(std::int64_t total, std::int64_t most) {
  const std::int64_t tiles = std::max<std::int64_t>(1, (total + most - 1) / most);
  return std::max<std::int64_t>(1, (total + tiles - 1) / tiles);
}

// Blocks of hidden x head^T of at most tile_rows rows.
class LogitBlocks {
 public:
  LogitBlocks(Workspace::Frame& frame, const GemmIsa& isa, const LinearLogpArgs& a,
              std::int64_t tile_rows)
      : isa_(isa) {
    const std::int64_t depth = a.hidden.shape(1);
    problem_ = {
        a.hidden.shape(0), a.vocab_size, depth,
        a.hidden,          a.head,       packed_panels(isa, a.packed_forward, a.head.dtype)};
    problem_.direct = problem_.packed && tile_rows <= isa.direct_rows;
    runs_ = GemmRuns(frame, 1, depth, problem_.direct);
    runs_.add_chain(0, depth, GemmRun::kFresh);
  }

  // logits [rows, stride] = rows [row, row + rows) by columns [col, col + cols); col starts a
  // panel.
  void compute(const GemmScratch& scratch, std::int64_t row, std::int64_t rows, std::int64_t col,
               std::int64_t cols, float* logits, std::int64_t stride) const {
    const std::int64_t panel = isa_.panel;
    const GemmAcc acc{scratch.acc, panel, rows * panel, 0};
    for (std::int64_t j = 0; j < cols; j += kProductCols) {
      const GemmBlock block{row, rows, col + j, std::min(kProductCols, cols - j)};
      const auto done = [&](std::int64_t p) {
        isa_.finish_f32(logits + j + p * panel, stride, acc.data + p * acc.panel_stride, nullptr,
                        rows, std::min(panel, block.cols - p * panel));
      };
      accumulate(isa_, problem_, block, scratch, acc, runs_, done);
      if (problem_.k > 0) continue;
      std::fill_n(acc.data, rows * kProductCols, 0.0f);
      for (std::int64_t p = 0; p * panel < block.cols; ++p) done(p);
    }
  }

 private:
  const GemmIsa& isa_;
  GemmProblem problem_;
  GemmRuns runs_;
};

}  // namespace rlk::cpu
