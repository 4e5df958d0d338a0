// The functions of matrix products that are compiled once per instruction set. Plain data and raw
// pointers only: no inline function of baseline code may be compiled with instruction set flags.
#pragma once

#include <cstdint>

namespace rlk::cpu {

inline constexpr std::int64_t kGemmDepth = 256;    // K is worked off in pieces of this length
inline constexpr std::int64_t kGemmStrideA = 272;  // row stride of the widened piece of A

// A piece of C = A B^T of some rows and one or more panels, `depth` long in K:
//
//      depth                    panel
//   a  +------+ rows     b  +-----------+ depth     acc  [num_panels][rows][panel]
//      | f32  |             | f32 or    |
//      +------+             | packed    |
//      stride kGemmStrideA  +-----------+
//
// Each acc element is one chain: acc = fma(a, b, acc) over the piece in rising k. With `fresh` it
// starts at +0 instead of at what acc holds.
struct GemmIsa {
  int panel;        // columns of a panel, two vectors
  int direct_rows;  // up to so many rows packed panels are used as they are, without widening

  // dst[i * dst_stride + j] = f32(src[i * stride_i + j * stride_j])
  void (*widen)(float* dst, std::int64_t dst_stride, const std::uint16_t* src,
                std::int64_t stride_i, std::int64_t stride_j, std::int64_t rows, std::int64_t cols);

  // A packed panel holds bf16 [depth, panel]: columns j and j + panel/2 share 32 bits, so that a
  // shift and a mask give two f32 vectors. b is the same panel in f32.
  void (*pack)(std::uint16_t* packed, const float* b, std::int64_t depth);
  void (*unpack)(float* b, const std::uint16_t* packed, std::int64_t depth);

  // One panel in f32.
  void (*product)(float* acc, const float* a, const float* b, std::int64_t rows, std::int64_t depth,
                  bool fresh);
  // Several packed panels, panel_stride elements apart.
  void (*product_packed)(float* acc, const float* a, const std::uint16_t* packed,
                         std::int64_t panel_stride, std::int64_t num_panels, std::int64_t rows,
                         std::int64_t depth, bool fresh);

  // dst[i] = dst[i] + src[i]
  void (*add)(float* dst, const float* src, std::int64_t n);

  // y = (acc + (+0)) + f32(bias), or acc + (+0) where bias is null, for one panel of acc;
  // cols <= panel. Stored in f32 or rounded to bf16.
  void (*finish_f32)(float* y, std::int64_t y_stride, const float* acc, const std::uint16_t* bias,
                     std::int64_t rows, std::int64_t cols);
  void (*finish_bf16)(std::uint16_t* y, std::int64_t y_stride, const float* acc,
                      const std::uint16_t* bias, std::int64_t rows, std::int64_t cols);

  // total[j] = total[j] + (((+0 + x[0,j]) + x[1,j]) + ...)
  void (*add_block_sum)(float* total, const std::uint16_t* x, std::int64_t x_stride,
                        std::int64_t rows, std::int64_t cols);
};

extern const GemmIsa kGemmScalar;
extern const GemmIsa kGemmAvx2;
extern const GemmIsa kGemmAvx512;

}  // namespace rlk::cpu
