// Row by row operators, one text for every instruction set. Included inside the anonymous
// namespace of rows_*.cc, after the vectors.

using rlk::cpu::AdamwRows;
using rlk::cpu::GrpoLossRows;
using rlk::cpu::RowsIsa;
using rlk::cpu::WideSum;

#include "rlk/kernels/cpu/isa/rows_norm.h"
//
#include "rlk/kernels/cpu/isa/rows_step.h"

// Calls whole(k) for every full vector of [0, n), then rest(k, count) for what is left.
template <typename Whole, typename Rest>
inline void for_vectors(std::int64_t n, const Whole& whole, const Rest& rest) {
  std::int64_t k = 0;
  for (; k + kWidth <= n; k += kWidth) whole(k);
  if (k < n) rest(k, static_cast<int>(n - k));
}

void embedding(std::uint16_t* y, const std::uint16_t* x, std::int64_t n) {
  for_vectors(
      n, [&](std::int64_t k) { store_bf16(y + k, load_bf16(x + k) + zero()); },
      [&](std::int64_t k, int count) {
        store_bf16_n(y + k, load_bf16_n(x + k, count) + zero(), count);
      });
}

void add_bf16(float* y, const std::uint16_t* x, std::int64_t n) {
  for_vectors(
      n, [&](std::int64_t k) { store(y + k, load(y + k) + load_bf16(x + k)); },
      [&](std::int64_t k, int count) {
        store_n(y + k, load_n(y + k, count) + load_bf16_n(x + k, count), count);
      });
}

void add_f32(float* y, const float* x, std::int64_t n) {
  for_vectors(
      n, [&](std::int64_t k) { store(y + k, load(y + k) + load(x + k)); },
      [&](std::int64_t k, int count) {
        store_n(y + k, load_n(y + k, count) + load_n(x + k, count), count);
      });
}

void residual_add(std::uint16_t* y, const std::uint16_t* a, const std::uint16_t* b,
                  std::int64_t n) {
  for_vectors(
      n, [&](std::int64_t k) { store_bf16(y + k, load_bf16(a + k) + load_bf16(b + k)); },
      [&](std::int64_t k, int count) {
        store_bf16_n(y + k, load_bf16_n(a + k, count) + load_bf16_n(b + k, count), count);
      });
}

// Rotates every pair of a row; rotate(x1, x2, cos, sin, &y1, &y2).
template <typename Rotate, typename Check>
inline void rotate_row(std::uint16_t* y, const std::uint16_t* x, const float* cos,
                       const float* sin, std::int64_t half, const Rotate& rotate,
                       const Check& check) {
  F y1, y2;
  for_vectors(
      half,
      [&](std::int64_t k) {
        rotate(load_bf16(x + k), load_bf16(x + half + k), load(cos + k), load(sin + k), &y1, &y2);
        check(round_bf16(y1), round_bf16(y2));
        store_bf16(y + k, y1);
        store_bf16(y + half + k, y2);
      },
      [&](std::int64_t k, int count) {
        rotate(load_bf16_n(x + k, count), load_bf16_n(x + half + k, count),
               load_n(cos + k, count), load_n(sin + k, count), &y1, &y2);
        check(round_bf16(y1), round_bf16(y2));
        store_bf16_n(y + k, y1, count);
        store_bf16_n(y + half + k, y2, count);
      });
}

std::int64_t rope(std::uint16_t* y, std::int64_t y_stride, const std::uint16_t* x,
                  std::int64_t x_stride, const float* cos, const float* sin, std::int64_t rows,
                  std::int64_t half) {
  const F limit = set1(0x1p56f);
  std::int64_t bad_row = -1;
  for (std::int64_t r = 0; r < rows; ++r) {
    M good = first_lanes(kWidth);
    rotate_row(
        y + r * y_stride, x + r * x_stride, cos, sin, half,
        [](F x1, F x2, F c, F s, F* y1, F* y2) {
          *y1 = fma(x1, c, neg(x2 * s));
          *y2 = fma(x2, c, x1 * s);
        },
        [&](F y1, F y2) { good = good & less(abs(y1), limit) & less(abs(y2), limit); });
    if (!all(good) && bad_row < 0) bad_row = r;
  }
  return bad_row;
}

void rope_backward(std::uint16_t* y, std::int64_t y_stride, const std::uint16_t* x,
                   std::int64_t x_stride, const float* cos, const float* sin, std::int64_t rows,
                   std::int64_t half) {
  for (std::int64_t r = 0; r < rows; ++r) {
    rotate_row(
        y + r * y_stride, x + r * x_stride, cos, sin, half,
        [](F x1, F x2, F c, F s, F* y1, F* y2) {
          *y1 = fma(x1, c, x2 * s);
          *y2 = fma(x2, c, neg(x1 * s));
        },
        [](F, F) {});
  }
}

inline F swiglu_of(F g, F u) { return (g * sigmoid(g)) * u; }

void swiglu(std::uint16_t* y, const std::uint16_t* g, const std::uint16_t* u, std::int64_t n) {
  for_vectors(
      n, [&](std::int64_t k) { store_bf16(y + k, swiglu_of(load_bf16(g + k), load_bf16(u + k))); },
      [&](std::int64_t k, int count) {
        store_bf16_n(y + k, swiglu_of(load_bf16_n(g + k, count), load_bf16_n(u + k, count)),
                     count);
      });
}

struct SwigluGradient {
  F dg, du;
};

inline SwigluGradient swiglu_gradient(F dy, F g, F u) {
  const F s = sigmoid(g);
  return {(dy * u) * (s * fma(g, set1(1.0f) - s, set1(1.0f))), dy * (g * s)};
}

void swiglu_backward(std::uint16_t* dg, std::uint16_t* du, const std::uint16_t* dy,
                     const std::uint16_t* g, const std::uint16_t* u, std::int64_t n) {
  for_vectors(
      n,
      [&](std::int64_t k) {
        const SwigluGradient d =
            swiglu_gradient(load_bf16(dy + k), load_bf16(g + k), load_bf16(u + k));
        store_bf16(du + k, d.du);
        store_bf16(dg + k, d.dg);
      },
      [&](std::int64_t k, int count) {
        const SwigluGradient d =
            swiglu_gradient(load_bf16_n(dy + k, count), load_bf16_n(g + k, count),
                            load_bf16_n(u + k, count));
        store_bf16_n(du + k, d.du, count);
        store_bf16_n(dg + k, d.dg, count);
      });
}

constexpr RowsIsa kTable = {
    .embedding = embedding,
    .add_bf16 = add_bf16,
    .residual_add = residual_add,
    .rms_norm = rms_norm,
    .rms_norm_backward = rms_norm_backward,
    .rms_norm_weight = rms_norm_weight,
    .add_f32 = add_f32,
    .merge_heads = merge_heads,
    .rope = rope,
    .rope_backward = rope_backward,
    .swiglu = swiglu,
    .swiglu_backward = swiglu_backward,
    .grpo_loss = grpo_loss,
    .adamw = adamw,
    .max_exponent = max_exponent,
    .square_sum = square_sum,
};
