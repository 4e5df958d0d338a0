// Element types of tensors, in memory and in files.
#pragma once

#include <cstddef>
#include <cstdint>

#include "rlk/core/error.h"

namespace rlk {

// Storage of a bfloat16 number; arithmetic on it is in numerics/bf16.h.
struct bf16 {
  std::uint16_t bits = 0;
};

enum class DType : std::uint8_t { kF32, kBF16, kF16, kI32, kI64, kF64 };

inline std::size_t size_of(DType dtype) {
  switch (dtype) {
    case DType::kF32:
    case DType::kI32: return 4;
    case DType::kBF16:
    case DType::kF16: return 2;
    case DType::kI64:
    case DType::kF64: return 8;
  }
  return 0;
}

// The names safetensors uses.
inline const char* to_string(DType dtype) {
  switch (dtype) {
    case DType::kF32: return "F32";
    case DType::kBF16: return "BF16";
    case DType::kF16: return "F16";
    case DType::kI32: return "I32";
    case DType::kI64: return "I64";
    case DType::kF64: return "F64";
  }
  return "?";
}

template <typename T>
struct DTypeOf;
template <>
struct DTypeOf<float> {
  static constexpr DType value = DType::kF32;
};
template <>
struct DTypeOf<bf16> {
  static constexpr DType value = DType::kBF16;
};
template <>
struct DTypeOf<std::int32_t> {
  static constexpr DType value = DType::kI32;
};
template <>
struct DTypeOf<std::int64_t> {
  static constexpr DType value = DType::kI64;
};
template <>
struct DTypeOf<double> {
  static constexpr DType value = DType::kF64;
};

}  // namespace rlk
