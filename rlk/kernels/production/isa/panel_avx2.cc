// Products of few rows with AVX2 and FMA.
#include <immintrin.h>

#include <cstdint>

#include "rlk/kernels/production/panel_isa.h"

namespace rlk::production {
namespace {

// clang-format off: each text needs the ones before it
#include "rlk/kernels/cpu/isa/vec_avx2.h"
// clang-format on

constexpr int kWide = 2;  // panels and rows of the largest tile: what the registers hold
constexpr int kTall = 2;

inline void dot(I a, I w, F* low, F* high) {
  const I upper = set1(static_cast<std::int32_t>(0xffff0000u));
  *low = fma(from_bits(shift_left<16>(a)), from_bits(shift_left<16>(w)), *low);
  *high = fma(from_bits(a & upper), from_bits(w & upper), *high);
}

#include "rlk/kernels/production/isa/panel_body.h"

}  // namespace

const PanelIsa kPanelAvx2 = {product};

}  // namespace rlk::production
