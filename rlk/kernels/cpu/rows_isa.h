// The functions of operators that work row by row, compiled once per instruction set. Plain data
// and raw pointers only: no inline function of baseline code may be compiled with instruction set
// flags. bf16 values are std::uint16_t here; elements of a row are neighbours in memory.
#pragma once

#include <cstdint>

namespace rlk {
enum class Isa : std::uint8_t;
}

namespace rlk::cpu {

// Constants and arrays of grpo_loss; outputs but g may be null, and ref where kl_type is 0.
struct GrpoLossRows {
  float* g;
  float* pg_loss;
  float* kl;
  float* ratio;
  const float* logp;
  const float* old;
  const float* ref;
  const float* advantage;
  const float* weight;
  float lo, hi, beta;
  int kl_type;  // 0: none, 1: k1, 2: k2, 3: k3
};

struct AdamwRows {
  std::uint16_t* w;
  float* master;
  float* m;
  float* v;
  const float* dw;
  float grad_scale;
  float lr, b1, b2, f1, f2, h1, h2, eps, wd;
};

// A sum of 64-bit integers as low + 2^32 * high.
struct WideSum {
  std::uint64_t low;
  std::uint64_t high;
};

// Rows of n elements; x_stride is the distance of rows. Functions that return an index give the
// first row (or element) with a number that the contract does not allow, or -1.
struct RowsIsa {
  // y = bf16(f32(x) + (+0)), one row
  void (*embedding)(std::uint16_t* y, const std::uint16_t* x, std::int64_t n);
  // y = y + f32(x), one row
  void (*add_bf16)(float* y, const std::uint16_t* x, std::int64_t n);
  // y = bf16(a + b), one row
  void (*residual_add)(std::uint16_t* y, const std::uint16_t* a, const std::uint16_t* b,
                       std::int64_t n);

  // lanes: a power of two from 16 to 1024. q may be null.
  std::int64_t (*rms_norm)(std::uint16_t* y, std::int64_t y_stride, float* q,
                           std::int64_t q_stride, const std::uint16_t* x, std::int64_t x_stride,
                           const std::uint16_t* w, std::int64_t rows, std::int64_t n,
                           std::int64_t lanes, float eps);
  void (*rms_norm_backward)(std::uint16_t* dx, std::int64_t dx_stride, const std::uint16_t* dy,
                            std::int64_t dy_stride, const std::uint16_t* x, std::int64_t x_stride,
                            const std::uint16_t* w, const float* q, std::int64_t q_stride,
                            std::int64_t rows, std::int64_t n, std::int64_t lanes);
  // dw = dw + (((+0 + row 0) + row 1) + ...) by fma(dy, x * q, acc), or that sum alone with `fresh`
  void (*rms_norm_weight)(float* dw, const std::uint16_t* dy, std::int64_t dy_stride,
                          const std::uint16_t* x, std::int64_t x_stride, const float* q,
                          std::int64_t q_stride, std::int64_t rows, std::int64_t n, bool fresh);
  // y = y + x, one row
  void (*add_f32)(float* y, const float* x, std::int64_t n);
  // dw = neighbour tree over the leaves of the left folds of their rows
  void (*merge_heads)(float* dw, const float* partial, std::int64_t stride, std::int64_t rows,
                      std::int64_t n, std::int64_t leaves);

  // Rows share a position; half = n / 2.
  std::int64_t (*rope)(std::uint16_t* y, std::int64_t y_stride, const std::uint16_t* x,
                       std::int64_t x_stride, const float* cos, const float* sin,
                       std::int64_t rows, std::int64_t half);
  void (*rope_backward)(std::uint16_t* y, std::int64_t y_stride, const std::uint16_t* x,
                        std::int64_t x_stride, const float* cos, const float* sin,
                        std::int64_t rows, std::int64_t half);

  void (*swiglu)(std::uint16_t* y, const std::uint16_t* g, const std::uint16_t* u, std::int64_t n);
  void (*swiglu_backward)(std::uint16_t* dg, std::uint16_t* du, const std::uint16_t* dy,
                          const std::uint16_t* g, const std::uint16_t* u, std::int64_t n);

  // Elements [begin, end)
  std::int64_t (*grpo_loss)(const GrpoLossRows& rows, std::int64_t begin, std::int64_t end);
  void (*adamw)(const AdamwRows& rows, std::int64_t begin, std::int64_t end);

  // Largest biased exponent, at least 1.
  int (*max_exponent)(const float* x, std::int64_t n);
  // Sum of floor(mant^2 * 2^16 / 4^(exponent - e)); n <= 2^31
  WideSum (*square_sum)(const float* x, std::int64_t n, int exponent);
};

extern const RowsIsa kRowsScalar;
extern const RowsIsa kRowsAvx2;
extern const RowsIsa kRowsAvx512;

const RowsIsa& rows_isa(Isa isa);

}  // namespace rlk::cpu
