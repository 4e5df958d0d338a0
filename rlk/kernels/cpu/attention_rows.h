// What the two attention drivers share: rows of storage and of f32 scratch.
#pragma once

#include <cstdint>

#include "rlk/core/tensor.h"
#include "rlk/kernels/cpu/attention_isa.h"

namespace rlk::cpu {

inline std::int64_t padded(std::int64_t n) {
  return (n + kAttentionPad - 1) / kAttentionPad * kAttentionPad;
}

// Leading dimension for rows of n numbers: an odd count of cache lines, so that a column of rows
// spreads over all sets of the cache; for n = d also enough for o.
inline std::int64_t leading(std::int64_t n) {
  return ((n + 2 * kAttentionPad - 1) / (2 * kAttentionPad) * 2 + 1) * kAttentionPad;
}

// Row i, head j of a tensor of storage type T (std::uint16_t for bf16).
template <typename T>
const T* row_at(const ConstTensorView& x, std::int64_t i, std::int64_t j) {
  return static_cast<const T*>(x.data) + i * x.stride(0) + j * x.stride(1);
}
template <typename T>
T* row_at(const TensorView& x, std::int64_t i, std::int64_t j) {
  return static_cast<T*>(x.data) + i * x.stride(0) + j * x.stride(1);
}

template <typename T>
const AttentionIsa<T>& attention_isa(Isa isa) {
  if constexpr (sizeof(T) == 4)
    return attention_tables(isa).f32;
  else
    return attention_tables(isa).bf16;
}

}  // namespace rlk::cpu
