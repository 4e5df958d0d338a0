// The multiply-accumulate primitive of each profile (docs/contract.md, section 1) in one shape, and
// the reductions of sums.h that are made of it.
//
// A Mac has a width w and `float operator()(float acc, const float* a, const float* b)`: acc plus w
// products. Operands are f32 that hold bf16 values. (PortableMac takes any f32, as the storage type
// of a call may be f32 there.)
#pragma once

#include <array>
#include <bit>
#include <cmath>
#include <cstdint>

#include "rlk/contract/contract.h"
#include "rlk/core/error.h"
#include "rlk/numerics/mma/cdna2.h"
#include "rlk/numerics/mma/cdna3.h"
#include "rlk/numerics/mma/hopper.h"
#include "rlk/numerics/sums.h"

namespace rlk::numerics {

// One fma: native on every device.
struct PortableMac {
  static constexpr int kWidth = 1;
  float operator()(float acc, const float* a, const float* b) const {
    return std::fma(*a, *b, acc);
  }
};

// One instruction group by its model.
template <int width, float (*group)(float, const bf16*, const bf16*)>
struct ModelMac {
  static constexpr int kWidth = width;
  float operator()(float acc, const float* a, const float* b) const {
    std::array<bf16, width> x, y;
    for (int i = 0; i < width; ++i) {
      x[i] = upper_half(a[i]);
      y[i] = upper_half(b[i]);
    }
    return group(acc, x.data(), y.data());
  }

 private:
  static bf16 upper_half(float x) {
    return bf16{static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(x) >> 16)};
  }
};
using Sm90Mac = ModelMac<mma::kHopper.group, mma::hopper_group>;
using Cdna3Mac = ModelMac<mma::kCdna3Group, mma::cdna3_group>;
using Cdna2Mac = ModelMac<mma::kCdna2Group, mma::cdna2_group>;

// f(Mac()) with the Mac of `profile`; returns what f returns.
template <typename F>
auto with_mac(Profile profile, const F& f) {
  switch (profile) {
    case Profile::kPortable: return f(PortableMac());
    case Profile::kSm90: return f(Sm90Mac());
    case Profile::kCdna3: return f(Cdna3Mac());
    case Profile::kCdna2: break;
  }
  return f(Cdna2Mac());
}

// Continues the chain `acc` over k in [begin, end): groups of w from `begin`, the last one padded
// with +0. A chain may be cut between groups only.
template <typename Mac, typename A, typename B>
float chain(const Mac& mac, float acc, const A& a, const B& b, std::int64_t begin,
            std::int64_t end) {
  for (std::int64_t k = begin; k < end; k += Mac::kWidth) {
    std::array<float, Mac::kWidth> x{}, y{};
    for (int i = 0; i < Mac::kWidth && k + i < end; ++i) {
      x[i] = a(k + i);
      y[i] = b(k + i);
    }
    acc = mac(acc, x.data(), y.data());
  }
  return acc;
}

// One whole chain over [0, n).
template <typename Mac, typename A, typename B>
float dot_chain(const Mac& mac, const A& a, const B& b, std::int64_t n) {
  return chain(mac, 0.0f, a, b, 0, n) + 0.0f;
}

// Leaf tree: a chain per leaf, neighbour tree over the leaves. Leaves begin at multiples of 16,
// which every width divides.
template <typename Mac, typename A, typename B>
float leaf_tree(const Mac& mac, const A& a, const B& b, std::int64_t n, int leaves) {
  RLK_ASSERT(leaves >= 1 && leaves <= kMaxLeaves);
  std::array<float, kMaxLeaves> leaf;
  for (int i = 0; i < leaves; ++i) {
    leaf[i] = chain(mac, 0.0f, a, b, leaf_bound(n, leaves, i), leaf_bound(n, leaves, i + 1));
  }
  return neighbour_tree(leaf.data(), leaves);
}

}  // namespace rlk::numerics
