// The IEEE operations that have no operator in C++, the same on host and GPU: correctly rounded,
// subnormals kept.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

#include "rlk/core/host_device.h"

namespace rlk::numerics {

// a * b + c with one rounding.
RLK_HD inline float fma(float a, float b, float c) {
#if defined(__CUDA_ARCH__)
  return __fmaf_rn(a, b, c);
#elif defined(__HIP_DEVICE_COMPILE__)
  return __builtin_fmaf(a, b, c);
#else
  return std::fma(a, b, c);
#endif
}
RLK_HD inline double fma(double a, double b, double c) {
#if defined(__CUDA_ARCH__)
  return __fma_rn(a, b, c);
#elif defined(__HIP_DEVICE_COMPILE__)
  return __builtin_fma(a, b, c);
#else
  return std::fma(a, b, c);
#endif
}

// The root. (Division is the operator: both GPU compilers are told to round it correctly.)
RLK_HD inline float sqrt(float x) {
#if defined(__CUDA_ARCH__)
  return __fsqrt_rn(x);
#elif defined(__HIP_DEVICE_COMPILE__)
  return __builtin_sqrtf(x);
#else
  return std::sqrt(x);
#endif
}
RLK_HD inline double sqrt(double x) {
#if defined(__CUDA_ARCH__)
  return __dsqrt_rn(x);
#elif defined(__HIP_DEVICE_COMPILE__)
  return __builtin_sqrt(x);
#else
  return std::sqrt(x);
#endif
}

RLK_HD inline float abs(float x) {
  return std::bit_cast<float>(std::bit_cast<std::uint32_t>(x) & 0x7fffffffu);
}

}  // namespace rlk::numerics
