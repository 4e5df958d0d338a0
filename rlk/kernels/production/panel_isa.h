// Products of few rows by a packed weight, compiled once per instruction set. Raw pointers only: no
// inline function of baseline code may be compiled with instruction set flags.
#pragma once

#include <cstdint>

namespace rlk::production {

// Columns of a panel. Panel p holds the weight rows [64 p, 64 p + 64) by pairs of k: element
// (pair, column) is w[n, 2 pair] in the low and w[n, 2 pair + 1] in the high 16 bits.
inline constexpr int kPanelColumns = 64;

struct PanelProduct {
  const float* a;  // [rows, k] and zero after an odd k
  std::int64_t lda;
  const std::uint32_t* panels;  // from the first column on
  std::int64_t k;
  void* c;  // [rows, columns]
  std::int64_t ldc;
  bool c_is_f32;              // else bf16
  const std::uint16_t* bias;  // [columns] or absent
  std::int64_t rows;
  std::int64_t columns;
};

struct PanelIsa {
  void (*product)(const PanelProduct& product);
  // Fills one panel from rows of `pairs` whole pairs; elements of a row are neighbours.
  void (*pack)(std::uint32_t* panel, const std::uint16_t* w, std::int64_t row_stride,
               std::int64_t rows, std::int64_t pairs);
};

extern const PanelIsa kPanelAvx2;
extern const PanelIsa kPanelAvx512;

}  // namespace rlk::production
