// bfloat16 as a storage type: the two conversions of the contract.
#pragma once

#include <bit>
#include <cstdint>

#include "rlk/core/dtype.h"

namespace rlk::numerics {

// Exact.
inline float to_f32(bf16 x) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(x.bits) << 16);
}

// Nearest, ties to even; subnormals kept; overflow gives infinity; every NaN is stored as 0x7FC0.
inline bf16 to_bf16(float x) {
  const std::uint32_t u = std::bit_cast<std::uint32_t>(x);
  if ((u & 0x7fffffffu) > 0x7f800000u) return bf16{0x7fc0};
  return bf16{static_cast<std::uint16_t>((u + 0x7fffu + ((u >> 16) & 1u)) >> 16)};
}

// f32(bf16(x)).
inline float round_bf16(float x) { return to_f32(to_bf16(x)); }

}  // namespace rlk::numerics
