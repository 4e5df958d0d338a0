#include "rlk/numerics/mma/families.h"

#include <bit>
#include <cstddef>

#include "rlk/numerics/bf16.h"

namespace rlk::numerics::mma {
namespace {

// A random word, used up from its low end.
struct Word {
  std::uint64_t bits;
  std::uint32_t take(int n) {
    const auto low = static_cast<std::uint32_t>(bits & ((std::uint64_t{1} << n) - 1));
    bits >>= n;
    return low;
  }
  // In [low, high]; the slight preference for small values does not matter here.
  int between(int low, int high) {
    return low + static_cast<int>(take(16) % static_cast<std::uint32_t>(high - low + 1));
  }
};

// An f32 with any sign and significand and the given exponent, -127 being the subnormals.
std::uint32_t with_exponent(Word* w, int exponent) {
  return w->take(1) << 31 | static_cast<std::uint32_t>(exponent + 127) << 23 | w->take(23);
}

// The 12 low bits, coarse so far, from the rest of the word: accumulators use the whole
// significand.
std::uint32_t with_low_bits(float x, Word* w) {
  return (std::bit_cast<std::uint32_t>(x) & ~0xfffu) | w->take(12);
}

// All f32 operations below are exact.
std::uint32_t uniform(Word* w) {
  const auto x = static_cast<float>(static_cast<std::int32_t>(w->take(24)) - 0x800000);
  return with_low_bits(x * 0x1p-23f, w);
}

// The sum of three uniforms in [-1, 1) has deviation 1.
std::uint32_t normal(Word* w, float scale) {
  std::int32_t sum = 0;
  for (int i = 0; i < 3; ++i) sum += static_cast<std::int32_t>(w->take(16)) - 0x8000;
  return with_low_bits(static_cast<float>(sum) * 0x1p-15f * scale, w);
}

enum Array : std::uint64_t { kA, kB, kC };

// a and b keep the upper 16 bits of the f32 returned here. `k` is the index in the chain; c has 0.
std::uint32_t element(Family family, Array array, std::int64_t k, Word w) {
  switch (family) {
    case Family::kUniform: return uniform(&w);
    case Family::kNormal: return normal(&w, 1.0f);
    case Family::kLlm:
      if (array == kC) return 0;
      if (array == kB) return normal(&w, 0x1p-6f);
      return normal(&w, k % 37 == 5 ? 32.0f : 1.0f);
    case Family::kExponents20: {
      const int range = array == kC ? 40 : 20;
      const int exponent = w.between(-range, range);
      return with_exponent(&w, exponent);
    }
    case Family::kAllBits: return w.take(32);
    case Family::kAllFinite: {
      const int exponent = w.between(-127, 127);
      return with_exponent(&w, exponent);
    }
    case Family::kSubnormals: {
      const bool subnormal = w.take(1) != 0;
      // a near the bottom, b such that products straddle 2^-149.
      int exponent = -127;
      if (array == kB) exponent = subnormal && w.take(1) != 0 ? -127 : w.between(-30, 10);
      if (array != kB && !subnormal) exponent = w.between(-126, -115);
      return with_exponent(&w, exponent);
    }
    case Family::kSignedZeros: {
      const std::uint32_t sign = w.take(1) << 31;
      return w.take(16) < 39322 ? sign : normal(&w, 1.0f);
    }
    case Family::kUnits: {
      constexpr float kValues[] = {0.0f, 1.0f, -1.0f};
      return std::bit_cast<std::uint32_t>(kValues[w.between(0, 2)]);
    }
    case Family::kCancellingPairs: {  // the first of a pair; fill_pairs makes the second
      const int exponent = w.between(-8, 8);
      return with_exponent(&w, exponent);
    }
    case Family::kAlignmentEdge: {
      int exponent = 0;
      if (array == kC) exponent = w.between(-28, 2);
      if (array != kC && w.take(2) != 0) exponent = w.between(-14, -11);
      return with_exponent(&w, exponent);
    }
    case Family::kNearOverflow: {
      const int exponent = array == kA   ? w.between(60, 64)
                           : array == kB ? w.between(58, 62)
                                         : w.between(118, 127);
      return with_exponent(&w, exponent);
    }
    case Family::kDeepUnderflow: {
      if (array == kC) {
        const std::uint32_t kind = w.take(2);
        if (kind == 0) return w.take(1) << 31;
        const int exponent = kind == 1 ? -127 : w.between(-127, -100);
        return with_exponent(&w, exponent);
      }
      const int exponent = w.between(-93, -63);
      return with_exponent(&w, exponent);
    }
  }
  return 0;
}

std::uint64_t stream(Family family, std::uint64_t seed, Array array) {
  return splitmix64(splitmix64(seed, static_cast<std::uint64_t>(family)), array);
}

void fill_operand(Family family, std::uint64_t seed, Array array, std::int64_t lines,
                  std::int64_t k_size, bf16* x) {
  const std::uint64_t start = stream(family, seed, array);
  for (std::int64_t i = 0; i < lines * k_size; ++i) {
    const Word word{splitmix64(start, static_cast<std::uint64_t>(i))};
    const std::uint32_t bits = element(family, array, i % k_size, word);
    x[i] = bf16{static_cast<std::uint16_t>(bits >> 16)};
  }
}

// Makes element k + 1 of each pair cancel element k: the sign of a is turned, b repeats, and in one
// pair of two the last bit of b differs.
void fill_pairs(std::int64_t lines, std::int64_t k_size, Array array, bf16* x) {
  for (std::int64_t line = 0; line < lines; ++line) {
    bf16* const row = x + line * k_size;
    for (std::int64_t k = 1; k < k_size; k += 2) {
      const std::uint16_t change = array == kA ? 0x8000 : static_cast<std::uint16_t>(k / 2 % 2);
      row[k] = bf16{static_cast<std::uint16_t>(row[k - 1].bits ^ change)};
    }
  }
}

}  // namespace

const char* to_string(Family family) {
  switch (family) {
    case Family::kUniform: return "uniform";
    case Family::kNormal: return "normal";
    case Family::kLlm: return "llm";
    case Family::kExponents20: return "exponents_20";
    case Family::kAllBits: return "all_bits";
    case Family::kAllFinite: return "all_finite";
    case Family::kSubnormals: return "subnormals";
    case Family::kCancellingPairs: return "cancelling_pairs";
    case Family::kSignedZeros: return "signed_zeros";
    case Family::kUnits: return "units";
    case Family::kAlignmentEdge: return "alignment_edge";
    case Family::kNearOverflow: return "near_overflow";
    case Family::kDeepUnderflow: return "deep_underflow";
  }
  return "unknown";
}

void fill_family(Family family, std::uint64_t seed, std::int64_t rows, std::int64_t columns,
                 std::int64_t k, bf16* a, bf16* b, float* c) {
  fill_operand(family, seed, kA, rows, k, a);
  fill_operand(family, seed, kB, columns, k, b);
  if (family == Family::kCancellingPairs) {
    fill_pairs(rows, k, kA, a);
    fill_pairs(columns, k, kB, b);
  }
  const std::uint64_t start = stream(family, seed, kC);
  for (std::int64_t i = 0; i < rows * columns; ++i) {
    const Word word{splitmix64(start, static_cast<std::uint64_t>(i))};
    c[i] = std::bit_cast<float>(element(family, kC, 0, word));
  }
}

}  // namespace rlk::numerics::mma
