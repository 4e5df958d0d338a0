// Input families on which models of matrix instructions are compared with each other and with the
// chip. Every element is a function of (family, seed, array, index) alone, by splitmix64 and
// integer operations: any program on any machine makes the same inputs, and only results need
// storing.
#pragma once

#include <array>
#include <cstdint>

#include "rlk/core/dtype.h"

namespace rlk::numerics::mma {

enum class Family : std::uint8_t {
  kUniform,          // all in [-1, 1)
  kNormal,           // near a Gaussian of deviation 1
  kLlm,              // activations with outlier channels, small weights, c = 0
  kExponents20,      // any significand, exponents -20..20, c -40..40
  kAllBits,          // every bit pattern, NaN and infinity too
  kAllFinite,        // every finite bit pattern
  kSubnormals,       // half of the operands subnormal, c subnormal or tiny
  kCancellingPairs,  // k and k + 1 cancel exactly or but for one bit
  kSignedZeros,      // 60 % of all are +0 or -0
  kUnits,            // 0, 1, -1
  kAlignmentEdge,    // products 22 to 28 binades below the largest, where models cut
  kNearOverflow,     // products and c about 2^127
  kDeepUnderflow,    // products 2^-186..2^-126, c zero, subnormal or small
};

inline constexpr std::array<Family, 13> kFamilies = {
    Family::kUniform,       Family::kNormal,    Family::kLlm,           Family::kExponents20,
    Family::kAllBits,       Family::kAllFinite, Family::kSubnormals,    Family::kCancellingPairs,
    Family::kSignedZeros,   Family::kUnits,     Family::kAlignmentEdge, Family::kNearOverflow,
    Family::kDeepUnderflow,
};

const char* to_string(Family family);  // "uniform", "normal", "llm", ...

// Word `index` of the splitmix64 stream that starts at `seed`.
constexpr std::uint64_t splitmix64(std::uint64_t seed, std::uint64_t index) {
  std::uint64_t z = seed + (index + 1) * 0x9e3779b97f4a7c15u;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return z ^ (z >> 31);
}

// Inputs of D[rows, columns] = A * B^T + C: a [rows, k], b [columns, k], c [rows, columns], all
// row-major. Larger arrays do not begin with the smaller ones where k or columns differ.
void fill_family(Family family, std::uint64_t seed, std::int64_t rows, std::int64_t columns,
                 std::int64_t k, bf16* a, bf16* b, float* c);

// Raw results of a device (tests/goldens/mma/README.md): one header and rows * columns f32 for each
// family, one after the other, little-endian.
struct ResultHeader {
  char magic[8];         // kResultMagic
  char instruction[24];  // the profile first: "sm90 wgmma m64n64k16"; padded with zeros
  std::uint32_t family;
  std::uint32_t rows, columns, k;
  std::uint64_t seed;
};
static_assert(sizeof(ResultHeader) == 56);
inline constexpr char kResultMagic[8] = {'R', 'L', 'K', 'M', 'M', 'A', '1', 0};

}  // namespace rlk::numerics::mma
