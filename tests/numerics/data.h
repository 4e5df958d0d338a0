// Fixed inputs for the tests of numerics, and digests of results.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "rlk/core/digest.h"
#include "rlk/numerics/philox.h"

namespace rlk::numerics {

// A stream of random words; the same on every machine.
class Random {
 public:
  explicit Random(std::uint32_t seed) : seed_(seed) {}
  std::uint32_t word() { return philox4x32_10({index_++, 0, 0, 0}, {seed_, 0x7e57u})[0]; }
  std::uint32_t below(std::uint32_t n) { return word() % n; }
  float uniform(float low, float high) { return low + (high - low) * uniform_f32(word()); }
  // Sum of four uniforms: close enough to a Gaussian of standard deviation 1.
  float normal() {
    float sum = 0.0f;
    for (int i = 0; i < 4; ++i) sum += uniform(-1.0f, 1.0f);
    return sum * 0.8660254f;
  }
  template <typename T>
  void shuffle(std::vector<T>* x) {
    for (std::size_t i = x->size(); i > 1; --i) {
      std::swap((*x)[i - 1], (*x)[below(static_cast<std::uint32_t>(i))]);
    }
  }

 private:
  std::uint32_t seed_;
  std::uint32_t index_ = 0;
};

// Values of both signs over 2^-20..2^20: sums of them depend on their order.
inline std::vector<float> ill_conditioned(std::uint32_t seed, std::int64_t n) {
  Random random(seed);
  std::vector<float> x(static_cast<std::size_t>(n));
  for (float& v : x) {
    const float mantissa = random.uniform(-1.0f, 1.0f);
    v = mantissa * pow2_f32(static_cast<int>(random.below(41)) - 20);
  }
  return x;
}

template <typename T>
std::string digest(const std::vector<T>& values) {
  Sha256 sha;
  sha.update(values.data(), values.size() * sizeof(T));
  return sha.hex().substr(0, 16);
}

inline std::uint32_t bits(float x) { return std::bit_cast<std::uint32_t>(x); }
inline std::uint64_t bits(double x) { return std::bit_cast<std::uint64_t>(x); }

}  // namespace rlk::numerics
