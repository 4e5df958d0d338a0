// bfloat16 as a storage type: the two conversions of the contract.
#pragma once

#include <bit>
#include <cstdint>

#include "rlk/core/dtype.h"
#include "rlk/core/host_device.h"

namespace rlk::numerics {

// Exact.
RLK_HD inline float to_f32(bf16 x) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(x.bits) << 16);
}

// Nearest, ties to even; subnormals kept; overflow gives infinity; every NaN is stored as 0x7FC0.
RLK_HD inline bf16 to_bf16(float x) {
  const std::uint32_t u = std::bit_cast<std::uint32_t>(x);
  if ((u & 0x7fffffffu) > 0x7f800000u) return bf16{0x7fc0};
  return bf16{static_cast<std::uint16_t>((u + 0x7fffu + ((u >> 16) & 1u)) >> 16)};
}

// x, but every NaN is 0x7FC00000: how f32 is stored.
RLK_HD inline float canonical_nan(float x) {
  return x == x ? x : std::bit_cast<float>(0x7fc00000u);
}

// f32(bf16(x)).
RLK_HD inline float round_bf16(float x) { return to_f32(to_bf16(x)); }

}  // namespace rlk::numerics
