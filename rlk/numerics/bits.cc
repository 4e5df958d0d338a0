#include "rlk/numerics/bits.h"

#include <bit>
#include <cmath>
#include <cstdlib>

#include <fmt/format.h>

#include "rlk/numerics/bf16.h"
#include "rlk/numerics/math.h"

namespace rlk::numerics {
namespace {

// Position of a value on a line where neighbours are one apart and -0 stands just before +0.
template <typename Bits>
std::int64_t line_position(Bits bits) {
  constexpr Bits kSign = static_cast<Bits>(Bits{1} << (8 * sizeof(Bits) - 1));
  const std::int64_t magnitude = bits & static_cast<Bits>(~kSign);
  return (bits & kSign) != 0 ? -1 - magnitude : magnitude;
}

std::uint32_t bits_of(float x) { return std::bit_cast<std::uint32_t>(x); }
std::uint32_t bits_of(bf16 x) { return x.bits; }
float value_of(float x) { return x; }
float value_of(bf16 x) { return to_f32(x); }

template <typename T>
BitComparison compare(const T* a, const T* b, std::int64_t n) {
  BitComparison result;
  result.value_bits = 8 * sizeof(T);
  result.compared = n;
  for (std::int64_t i = 0; i < n; ++i) {
    const float x = value_of(a[i]);
    const float y = value_of(b[i]);
    const bool nan = is_nan(x) || is_nan(y);
    if (bits_of(a[i]) == bits_of(b[i]) && !nan) {
      ++result.ulp_histogram[0];
      continue;
    }
    if (result.mismatch_count++ == 0) {
      result.first_index = i;
      result.first_a = x;
      result.first_b = y;
      result.first_bits_a = bits_of(a[i]);
      result.first_bits_b = bits_of(b[i]);
    }
    if (nan) {
      ++result.nan_count;
      continue;
    }
    const double diff = std::fabs(static_cast<double>(x) - static_cast<double>(y));
    if (diff > result.max_abs_diff) result.max_abs_diff = diff;
    result.sum_abs_diff += diff;
    ++result.ulp_histogram[std::bit_width(static_cast<std::uint64_t>(ulp_distance(a[i], b[i])))];
  }
  return result;
}

}  // namespace

std::int64_t ulp_distance(float a, float b) {
  return std::abs(line_position(bits_of(a)) - line_position(bits_of(b)));
}

std::int64_t ulp_distance(bf16 a, bf16 b) {
  return std::abs(line_position(a.bits) - line_position(b.bits));
}

BitComparison compare_bits(const float* a, const float* b, std::int64_t n) {
  return compare(a, b, n);
}

BitComparison compare_bits(const bf16* a, const bf16* b, std::int64_t n) {
  return compare(a, b, n);
}

void append(BitComparison* total, const BitComparison& next) {
  if (total->first_index < 0 && next.first_index >= 0) {
    total->first_index = total->compared + next.first_index;
    total->first_a = next.first_a;
    total->first_b = next.first_b;
    total->first_bits_a = next.first_bits_a;
    total->first_bits_b = next.first_bits_b;
  }
  if (total->compared == 0) total->value_bits = next.value_bits;
  total->compared += next.compared;
  total->mismatch_count += next.mismatch_count;
  total->nan_count += next.nan_count;
  if (next.max_abs_diff > total->max_abs_diff) total->max_abs_diff = next.max_abs_diff;
  total->sum_abs_diff += next.sum_abs_diff;
  for (std::size_t i = 0; i < total->ulp_histogram.size(); ++i) {
    total->ulp_histogram[i] += next.ulp_histogram[i];
  }
}

std::string BitComparison::to_string() const {
  if (compared == 0) return "nothing compared";
  if (mismatch_count == 0) return fmt::format("{} compared, all equal", compared);
  const int digits = value_bits / 4;
  return fmt::format("{} compared, {} differ; first at {}: {} (0x{:0{}x}) != {} (0x{:0{}x})",
                     compared, mismatch_count, first_index, first_a, first_bits_a, digits, first_b,
                     first_bits_b, digits);
}

}  // namespace rlk::numerics
