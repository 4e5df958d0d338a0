// Comparison of two arrays by their bytes. +0 and -0 differ; a NaN on either side is a mismatch,
// even if the bits agree.
#pragma once

#include <array>
#include <cstdint>
#include <string>

#include "rlk/core/dtype.h"

namespace rlk::numerics {

// Number of representable values between a and b (+0 and -0 are one apart). Infinity counts as the
// value after the largest; for NaN the result has no meaning.
std::int64_t ulp_distance(float a, float b);
std::int64_t ulp_distance(bf16 a, bf16 b);

struct BitComparison {
  std::int64_t compared = 0;
  std::int64_t mismatch_count = 0;
  std::int64_t nan_count = 0;  // pairs with a NaN; among the mismatches, not in the figures below
  double max_abs_diff = 0.0;
  double sum_abs_diff = 0.0;  // f64, in rising order
  // [0]: equal bits; [i]: mismatches with an ulp distance in [2^(i-1), 2^i); the last has no end.
  std::array<std::int64_t, 34> ulp_histogram{};

  // The first mismatch; index -1 when there is none. Bits of a bf16 are its 16.
  std::int64_t first_index = -1;
  float first_a = 0.0f, first_b = 0.0f;
  std::uint32_t first_bits_a = 0, first_bits_b = 0;
  int value_bits = 32;

  // Nothing compared is no match.
  bool equal() const { return compared > 0 && mismatch_count == 0; }
  double mean_abs_diff() const {
    return compared > nan_count ? sum_abs_diff / static_cast<double>(compared - nan_count) : 0.0;
  }

  // "1000 compared, 2 differ; first at 17: 0.5 (0x3f000000) != 0.50000006 (0x3f000001)"
  std::string to_string() const;
};

BitComparison compare_bits(const float* a, const float* b, std::int64_t n);
BitComparison compare_bits(const bf16* a, const bf16* b, std::int64_t n);

// Appends the comparison of the elements that follow; indices go on.
void append(BitComparison* total, const BitComparison& next);

}  // namespace rlk::numerics
