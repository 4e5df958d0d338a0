// Row by row operators whose sums have an order of their own here, compiled once per instruction
// set. Raw pointers only; elements of a row are neighbours.
#pragma once

#include <cstdint>

namespace rlk::production {

struct SoftmaxRow {
  const float* x;  // logits; z = x * scale
  std::int64_t n;
  float scale;
  bool filtered;  // -inf stands for a token that takes no part
};

struct SoftmaxSums {
  float max;
  float sum;       // of exp(z - max)
  float weighted;  // of exp(z - max) * (z - max); only with entropy
  bool bad;        // a logit that is an error, or nothing that takes part
};

struct SoftmaxGradient {
  float max;
  float inverse;  // 1 / sum
  float log_sum;
  float entropy;
  float g;
  float g_entropy;
  float out_scale;
};

struct RowsIsa {
  // y = x * q * w; returns the first row whose sum of squares is not finite, or -1. q may be null.
  std::int64_t (*rms_norm)(std::uint16_t* y, std::int64_t y_stride, float* q, std::int64_t q_stride,
                           const std::uint16_t* x, std::int64_t x_stride, const std::uint16_t* w,
                           std::int64_t rows, std::int64_t n, float eps);
  void (*rms_norm_backward)(std::uint16_t* dx, std::int64_t dx_stride, const std::uint16_t* dy,
                            std::int64_t dy_stride, const std::uint16_t* x, std::int64_t x_stride,
                            const std::uint16_t* w, const float* q, std::int64_t q_stride,
                            std::int64_t rows, std::int64_t n);
  SoftmaxSums (*softmax_sums)(const SoftmaxRow& row, bool entropy);
  // The gradient without the target's own 1.
  void (*softmax_gradient)(std::uint16_t* dz, const SoftmaxRow& row, const SoftmaxGradient& g);
  double (*sum_of_squares)(const float* x, std::int64_t n);
};

extern const RowsIsa kRowsScalar;
extern const RowsIsa kRowsAvx2;
extern const RowsIsa kRowsAvx512;

}  // namespace rlk::production
