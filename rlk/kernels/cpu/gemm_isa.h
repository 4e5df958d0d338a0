// The functions of matrix products that are compiled once per instruction set. Plain data and raw
// pointers only: no inline function of baseline code may be compiled with instruction set flags.
#pragma once

#include <cstdint>

namespace rlk::cpu {

inline constexpr std::int64_t kGemmDepth = 256;  // K is worked off in pieces of at most this length
inline constexpr std::int64_t kGemmStrideA = 272;  // row stride of the widened piece of A

// A stretch of K inside a piece. A chain starts at +0, at the sums of its level in memory, or goes
// on from the run before it, in registers. Then the sums of the `merges` levels below are added,
// one after the other from the top, and with `store` the result is the lowest of these levels.
struct GemmRun {
  enum Start : std::int32_t { kFresh, kLoad, kGoOn };

  std::int64_t a;      // where it begins in the widened A
  std::int64_t b;      // and in the panels of B
  std::int64_t k;      // and in K
  std::int64_t depth;  // length
  std::int32_t level;
  std::int32_t merges;
  Start start;
  bool store;
};

// The sums of a block: element (level, panel, row, column) of f32.
struct GemmAcc {
  float* data;
  std::int64_t row_stride, panel_stride, level_stride;
};

// A piece of C = A B^T of some rows and one or more panels:
//
//      depth                    panel
//   a  +------+ rows     b  +-----------+ depth
//      | f32  |             | f32, or   |
//      +------+             | packed    |
//      stride kGemmStrideA  +-----------+
//
// Each sum is one chain in rising k: acc = fma(a, b, acc), or groups of the matrix instruction of
// another profile (gemm_profiles.cc).
struct GemmPiece {
  const float* a;
  const void* b;
  std::int64_t b_panel_stride;  // elements
  GemmAcc acc;
  const GemmRun* runs;
  std::int64_t num_runs;
  std::int64_t rows;
  std::int64_t num_panels;
};

struct GemmIsa {
  int panel;        // columns of a panel, two vectors
  int direct_rows;  // up to so many rows bf16 panels are used as they are, without widening

  // dst[i * dst_stride + j] = f32(src[i * stride_i + j * stride_j])
  void (*widen_bf16)(float* dst, std::int64_t dst_stride, const std::uint16_t* src,
                     std::int64_t stride_i, std::int64_t stride_j, std::int64_t rows,
                     std::int64_t cols);
  void (*widen_f32)(float* dst, std::int64_t dst_stride, const float* src, std::int64_t stride_i,
                    std::int64_t stride_j, std::int64_t rows, std::int64_t cols);

  // A packed panel holds bf16 [depth, panel]: columns j and j + panel/2 share 32 bits, so that a
  // shift and a mask give two f32 vectors. b is the same panel in f32.
  void (*pack)(std::uint16_t* packed, const float* b, std::int64_t depth);
  void (*unpack)(float* b, const std::uint16_t* packed, std::int64_t depth);

  // The panels of B are f32, or packed bf16.
  void (*product_f32)(const GemmPiece& piece);
  void (*product_bf16)(const GemmPiece& piece);

  // dst[i] = dst[i] + src[i]
  void (*add)(float* dst, const float* src, std::int64_t n);

  // y = (acc + (+0)) + bias, or acc + (+0) where bias is null, for one panel of acc, whose rows are
  // `panel` apart; cols <= panel. Stored in f32 or rounded to bf16.
  void (*finish_f32)(float* y, std::int64_t y_stride, const float* acc, const float* bias,
                     std::int64_t rows, std::int64_t cols);
  void (*finish_bf16)(std::uint16_t* y, std::int64_t y_stride, const float* acc, const float* bias,
                      std::int64_t rows, std::int64_t cols);

  // total[j] = total[j] + (((+0 + x[0,j]) + x[1,j]) + ...)
  void (*add_block_sum_bf16)(float* total, const std::uint16_t* x, std::int64_t x_stride,
                             std::int64_t rows, std::int64_t cols);
  void (*add_block_sum_f32)(float* total, const float* x, std::int64_t x_stride, std::int64_t rows,
                            std::int64_t cols);
};

extern const GemmIsa kGemmScalar;
extern const GemmIsa kGemmAvx2;
extern const GemmIsa kGemmAvx512;

}  // namespace rlk::cpu
