// The functions of operators that work row by row, compiled once per instruction set. Plain data
// and raw pointers only: no inline function of baseline code may be compiled with instruction set
// flags. bf16 values are std::uint16_t here; elements of a row are neighbours in memory.
#pragma once

#include <cstdint>

namespace rlk {
enum class Isa : std::uint8_t;
}

namespace rlk::cpu {

// Arrays of tokens. Optional ones may be null; a null weight masks nothing.
struct RatioRows {
  float* ratio;
  const float* logp;
  const float* old;
  const float* weight;
};

struct KlRows {
  float* kl;
  float* slope;
  const float* logp;
  const float* ref;
  const float* weight;
  int kl_type;  // 0: none, 1: k1, 2: k2, 3: k3
};

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
  int kl_type;
};

// What ppo_loss adds; v_loss and g_entropy may be null.
struct ValueLossRows {
  float* g_value;
  float* v_loss;
  float* g_entropy;
  const float* value;
  const float* old_value;
  const float* returns;
  const float* weight;
  float clip, value_coef, entropy_coef;
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

// Rows of n elements, x_stride apart. T is float, or std::uint16_t for bf16.
template <typename T>
struct NormRows {
  T* y;
  std::int64_t y_stride;
  float* q;  // may be null
  std::int64_t q_stride;
  const T* x;
  std::int64_t x_stride;
  const T* w;
  T* residual_out;  // this and residual may be null
  std::int64_t residual_out_stride;
  const T* residual;
  std::int64_t residual_stride;
  std::int64_t rows, n;
  std::int64_t lanes;  // a power of two from kLeastLanes to 1024
  float eps;
};
inline constexpr std::int64_t kLeastLanes = 32;

// rms_norm_weight reads neither dx nor w nor lanes.
template <typename T>
struct NormGradientRows {
  T* dx;
  std::int64_t dx_stride;
  const T* dy;
  std::int64_t dy_stride;
  const T* x;
  std::int64_t x_stride;
  const T* w;
  const float* q;
  std::int64_t q_stride;
  std::int64_t rows, n;
  std::int64_t lanes;
};

// Rows share a position; half = n / 2.
template <typename T>
struct RopeRows {
  T* y;
  std::int64_t y_stride;
  const T* x;
  std::int64_t x_stride;
  const float* cos;
  const float* sin;
  std::int64_t rows, half;
};

// Functions that return an index give the first row (or element) with a number that the contract
// does not allow, or -1.
template <typename T>
struct StorageRows {
  // y = x + (+0), one row
  void (*embedding)(T* y, const T* x, std::int64_t n);
  // y = y + f32(x), one row
  void (*add_to_f32)(float* y, const T* x, std::int64_t n);
  // y = a + b, one row
  void (*residual_add)(T* y, const T* a, const T* b, std::int64_t n);

  std::int64_t (*rms_norm)(const NormRows<T>& rows);
  void (*rms_norm_backward)(const NormGradientRows<T>& rows);
  // dw = dw + (((+0 + row 0) + row 1) + ...) by fma(dy, x * q, acc), or that sum alone with `fresh`
  void (*rms_norm_weight)(float* dw, const NormGradientRows<T>& rows, bool fresh);

  std::int64_t (*rope)(const RopeRows<T>& rows);
  std::int64_t (*rope_backward)(const RopeRows<T>& rows);

  // One row
  void (*swiglu)(T* y, const T* g, const T* u, std::int64_t n);
  void (*swiglu_backward)(T* dg, T* du, const T* dy, const T* g, const T* u, std::int64_t n);
};

struct RowsIsa {
  StorageRows<std::uint16_t> bf16;
  StorageRows<float> f32;

  // dw = neighbour tree over the leaves of the left folds of their rows
  void (*merge_heads)(float* dw, const float* partial, std::int64_t stride, std::int64_t rows,
                      std::int64_t n, std::int64_t leaves);

  // Elements [begin, end)
  std::int64_t (*ratio)(const RatioRows& rows, std::int64_t begin, std::int64_t end);
  std::int64_t (*kl)(const KlRows& rows, std::int64_t begin, std::int64_t end);
  std::int64_t (*grpo_loss)(const GrpoLossRows& rows, std::int64_t begin, std::int64_t end);
  std::int64_t (*value_loss)(const ValueLossRows& rows, std::int64_t begin, std::int64_t end);
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
