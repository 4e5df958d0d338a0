// The contract's reductions (section 2), one scalar at a time. Operands come from callables
// (index -> f32), so the same text serves f32 and bf16, rows and columns, gathered and paged data.
//
// Bits: exactly the contract's order. Every result ends with + (+0), so a zero is +0.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "rlk/core/dtype.h"
#include "rlk/core/error.h"
#include "rlk/numerics/bf16.h"
#include "rlk/numerics/ieee.h"

namespace rlk::numerics {

// Element i of a strided array as f32: the usual operand of the sums below.
template <typename T>
struct Strided {
  const T* data;
  std::int64_t stride = 1;
  RLK_HD float operator()(std::int64_t i) const {
    if constexpr (std::is_same_v<T, bf16>) {
      return to_f32(data[i * stride]);
    } else {
      return data[i * stride];
    }
  }
};
template <typename T>
Strided(const T*, std::int64_t) -> Strided<T>;
template <typename T>
Strided(const T*) -> Strided<T>;

// x[2i] + x[2i+1], level by level, in place; n is a power of two.
RLK_HD inline float neighbour_tree(float* x, int n) {
  for (; n > 1; n /= 2) {
    for (int i = 0; i < n / 2; ++i) x[i] = x[2 * i] + x[2 * i + 1];
  }
  return x[0] + 0.0f;
}

// Profile `portable`: mac is one fma. Continues the chain `acc` over k in [begin, end). The state
// of a chain is this one f32; add (+0) when it is complete (dot_chain does).
template <typename A, typename B>
RLK_HD float chain(float acc, const A& a, const B& b, std::int64_t begin, std::int64_t end) {
  for (std::int64_t k = begin; k < end; ++k) acc = fma(a(k), b(k), acc);
  return acc;
}

// One whole chain over [0, n).
template <typename A, typename B>
RLK_HD float dot_chain(const A& a, const B& b, std::int64_t n) {
  return chain(0.0f, a, b, 0, n) + 0.0f;
}

// b_i of the leaf tree over [0, n) with G leaves; b_0 = 0, b_G = n.
RLK_HD inline std::int64_t leaf_bound(std::int64_t n, std::int64_t leaves, std::int64_t i) {
  return i == leaves ? n : 16 * (i * ((n + 15) / 16) / leaves);
}

inline constexpr int kMaxLeaves = 256;
inline constexpr int kMaxLanes = 1024;

// Leaf tree: a chain per leaf, neighbour tree over the leaves. `leaves` is a power of two.
template <typename A, typename B>
float leaf_tree(const A& a, const B& b, std::int64_t n, int leaves) {
  RLK_ASSERT(leaves >= 1 && leaves <= kMaxLeaves);
  std::array<float, kMaxLeaves> leaf;
  for (int i = 0; i < leaves; ++i) {
    leaf[i] = chain(0.0f, a, b, leaf_bound(n, leaves, i), leaf_bound(n, leaves, i + 1));
  }
  return neighbour_tree(leaf.data(), leaves);
}

// Lane sum: lane j takes elements j, j + lanes, ... in rising order from +0; neighbour tree over
// the lanes. `lanes` is a power of two.
template <typename A, typename B>
float lane_sum(const A& a, const B& b, std::int64_t n, int lanes) {
  RLK_ASSERT(lanes >= 1 && lanes <= kMaxLanes);
  std::array<float, kMaxLanes> lane{};
  for (std::int64_t k = 0; k < n; ++k) {
    float& acc = lane[static_cast<std::size_t>(k % lanes)];
    acc = fma(a(k), b(k), acc);
  }
  return neighbour_tree(lane.data(), lanes);
}

// The same over strided f32 or bf16 arrays.
template <typename A, typename B>
float lane_sum(const A* a, std::int64_t stride_a, const B* b, std::int64_t stride_b, std::int64_t n,
               int lanes) {
  return lane_sum(Strided<A>{a, stride_a}, Strided<B>{b, stride_b}, n, lanes);
}

// Token sum of one sample of n tokens, folded onto `total` (the left fold of the samples before it,
// from +0): blocks of `block` tokens from the sample's first; step(t, acc) is the contract's fma or
// add of token t. Add (+0) once the last sample is in.
template <typename Step>
RLK_HD float token_sum(float total, const Step& step, std::int64_t n, std::int64_t block) {
  for (std::int64_t begin = 0; begin < n; begin += block) {
    float acc = 0.0f;
    for (std::int64_t t = begin; t < n && t < begin + block; ++t) acc = step(t, acc);
    total = total + acc;
  }
  return total;
}

}  // namespace rlk::numerics
