// Products of few rows with AVX2 and FMA.
#include <immintrin.h>

#include <cstdint>

#include "rlk/kernels/production/panel_isa.h"

namespace rlk::production {
namespace {

// Each text needs the ones before it.
// clang-format off
#include "rlk/kernels/cpu/isa/vec_avx2.h"
// clang-format on

constexpr int kWide = 4;  // vectors and rows of the largest tile: what the registers hold
constexpr int kTall = 2;

#include "rlk/kernels/production/isa/panel_body.h"

}  // namespace

const PanelIsa kPanelAvx2 = {product, pack};

}  // namespace rlk::production
