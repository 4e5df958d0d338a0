// f32 numbers two at a time, as CDNA's packed instructions take them: the bits are those of one at
// a time.
#pragma once

#include "rlk/kernels/gpu/cdna/mfma.h"
#include "rlk/numerics/math.h"

namespace rlk::gpu::cdna {

typedef float Float2 __attribute__((vector_size(8)));
typedef std::uint32_t Word2 __attribute__((vector_size(8)));

// No argument is NaN; of zeros of both signs either is given.
RLK_DEVICE float maximum(float a, float b) {
#if defined(__HIP__)
  return __builtin_fmaxf(a, b);
#else
  return a < b ? b : a;
#endif
}

RLK_DEVICE Float2 fma(Float2 a, Float2 b, Float2 c) {
#if defined(__HIP__)
  return __builtin_elementwise_fma(a, b, c);
#else
  return Float2{numerics::fma(a[0], b[0], c[0]), numerics::fma(a[1], b[1], c[1])};
#endif
}

RLK_DEVICE Float2 pair_of(float x) { return Float2{x, x}; }

// numerics::exp2p of each, step by step for all: an instruction must not wait for the one before.
template <int N>
RLK_DEVICE void exp2p(Float2 (&x)[N]) {
  constexpr float kCoefficients[] = {numerics::kExp2p3, numerics::kExp2p2, numerics::kExp2p1, 1.0f};
  Float2 t[N], p[N];
  RLK_UNROLL
  for (Float2& of : x) of = Float2{maximum(of[0], -126.0f), maximum(of[1], -126.0f)};
  RLK_UNROLL
  for (int i = 0; i < N; ++i) t[i] = x[i] + numerics::kRoundMagic;
  RLK_UNROLL
  for (int i = 0; i < N; ++i) p[i] = t[i] - numerics::kRoundMagic;
  RLK_UNROLL
  for (int i = 0; i < N; ++i) x[i] = x[i] - p[i];
  RLK_UNROLL
  for (Float2& of : p) of = pair_of(numerics::kExp2p4);
  RLK_UNROLL
  for (const float coefficient : kCoefficients) {
    RLK_UNROLL
    for (int i = 0; i < N; ++i) p[i] = fma(p[i], x[i], pair_of(coefficient));
  }
  RLK_UNROLL
  for (int i = 0; i < N; ++i) {
    x[i] = std::bit_cast<Float2>(std::bit_cast<Word2>(p[i]) + (std::bit_cast<Word2>(t[i]) << 23));
  }
}

}  // namespace rlk::gpu::cdna
