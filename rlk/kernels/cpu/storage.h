// The storage type of a call as a type of C++.
#pragma once

#include <cstdint>

#include "rlk/core/dtype.h"

namespace rlk::cpu {

// Calls body.operator()<T>() with T = float for f32 and std::uint16_t, the bits, for bf16.
template <typename Body>
decltype(auto) with_storage(DType dtype, const Body& body) {
  if (dtype == DType::kF32) return body.template operator()<float>();
  return body.template operator()<std::uint16_t>();
}

}  // namespace rlk::cpu
