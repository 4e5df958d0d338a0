#include "rlk/numerics/mma/hopper_columns.h"

#include <algorithm>
#include <array>
#include <bit>

#include "rlk/numerics/bf16.h"
#include "rlk/numerics/mma/hopper.h"

namespace rlk::numerics::mma {
namespace {

static_assert(kHopperWidth == kHopper.group);

std::int16_t exponent_of(bf16 x) {
  const int biased = x.bits >> 7 & 0xff;
  if ((x.bits & 0x7fff) == 0) return kZeroExponent;
  return static_cast<std::int16_t>(biased == 255 ? kSpecialExponent : std::max(biased, 1));
}

float scalar_group(float c, const HopperA* a, const std::uint16_t* b, std::int64_t stride_b) {
  std::array<bf16, kHopperWidth> x, y;
  for (int i = 0; i < kHopperWidth; ++i) {
    x[i] = bf16{static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(a[i].value) >> 16)};
    y[i] = bf16{b[i * stride_b]};
  }
  return hopper_group(c, x.data(), y.data());
}

// Where column j stands among the words of one k.
int place_of(int j, int panel) { return j < panel / 2 ? 2 * j : 2 * (j - panel / 2) + 1; }

constexpr int kScalarPanel = 16;

void scalar_product(float* acc, std::int64_t acc_stride, const HopperA* a, std::int64_t a_stride,
                    const std::uint16_t* b, std::int64_t rows, std::int64_t groups,
                    HopperGroup group) {
  for (std::int64_t m = 0; m < rows; ++m) {
    for (int j = 0; j < kScalarPanel; ++j) {
      float& sum = acc[m * acc_stride + j];
      for (std::int64_t k = 0; k < groups * kHopperWidth; k += kHopperWidth) {
        const std::int64_t at = k * 2 * kScalarPanel + place_of(j, kScalarPanel);
        sum = group(sum, a + m * a_stride + k, b + at, 2 * kScalarPanel);
      }
    }
  }
}

constexpr HopperIsa kHopperScalar = {"scalar", kScalarPanel, scalar_product};

}  // namespace

const std::vector<const HopperIsa*>& hopper_isas() {
  static const std::vector<const HopperIsa*> kAll = [] {
    std::vector<const HopperIsa*> all;
#if defined(__x86_64__)
    const bool avx2 = __builtin_cpu_supports("avx2");
    if (avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl")) {
      all.push_back(&kHopperAvx512);
    }
    if (avx2 && __builtin_cpu_supports("fma")) all.push_back(&kHopperAvx2);
#endif
    all.push_back(&kHopperScalar);
    return all;
  }();
  return kAll;
}

const HopperIsa& hopper_isa() { return *hopper_isas().front(); }

void pack_a(HopperA* packed, const bf16* a, std::int64_t stride_m, std::int64_t stride_k,
            std::int64_t rows, std::int64_t k) {
  const std::int64_t depth = hopper_depth(k);
  for (std::int64_t m = 0; m < rows; ++m) {
    for (std::int64_t i = 0; i < depth; ++i) {
      const bf16 x = i < k ? a[m * stride_m + i * stride_k] : bf16{};
      const auto exponent = static_cast<std::uint16_t>(exponent_of(x));
      packed[m * depth + i] = {to_f32(x), exponent * 0x10001u};
    }
  }
}

void pack_b(const HopperIsa& isa, std::uint16_t* packed, const bf16* b, std::int64_t stride_n,
            std::int64_t stride_k, std::int64_t columns, std::int64_t k) {
  const std::int64_t depth = hopper_depth(k);
  for (int j = 0; j < isa.panel; ++j) {
    for (std::int64_t i = 0; i < depth; ++i) {
      const bf16 x = i < k && j < columns ? b[j * stride_n + i * stride_k] : bf16{};
      const std::int64_t at = i * 2 * isa.panel + place_of(j, isa.panel);
      packed[at] = x.bits;
      packed[at + isa.panel] = static_cast<std::uint16_t>(exponent_of(x));
    }
  }
}

void mma_columns(const HopperIsa& isa, float* acc, std::int64_t acc_stride, const HopperA* a,
                 const std::uint16_t* b, std::int64_t rows, std::int64_t k) {
  const std::int64_t depth = hopper_depth(k);
  isa.product(acc, acc_stride, a, depth, b, rows, depth / kHopperWidth, scalar_group);
}

}  // namespace rlk::numerics::mma
