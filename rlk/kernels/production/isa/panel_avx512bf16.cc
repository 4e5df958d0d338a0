// Products of few rows with AVX-512 and its bf16 dot product.
#include <immintrin.h>

#include <cstdint>

#include "rlk/kernels/production/panel_isa.h"

namespace rlk::production {
namespace {

// clang-format off: each text needs the ones before it
#include "rlk/kernels/cpu/isa/vec_avx512.h"
// clang-format on

constexpr int kWide = 4;  // panels and rows of the largest tile: what the registers hold
constexpr int kTall = 5;

inline void dot(I a, I w, F* low, F*) {
  low->v = _mm512_dpbf16_ps(low->v, (__m512bh)a.v, (__m512bh)w.v);
}

#include "rlk/kernels/production/isa/panel_body.h"

}  // namespace

const PanelIsa kPanelAvx512Bf16 = {product};

}  // namespace rlk::production
