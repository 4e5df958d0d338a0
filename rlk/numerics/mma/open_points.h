// What publications leave open about AMD's matrix instructions: each question with one input on
// which the possible answers differ, for the day a chip is at hand (`rlk probe`).
#pragma once

#include <array>
#include <cstdint>
#include <span>

#include "rlk/contract/contract.h"
#include "rlk/core/dtype.h"

namespace rlk::numerics::mma {

struct Factors {
  float a = 0.0f, b = 0.0f;  // bf16 values
};

// One group of the profile's instruction: c + sum of products[k].a * products[k].b.
struct OpenPoint {
  Profile profile;
  const char* question;
  float c;
  std::array<Factors, 8> products;
  std::uint32_t model;    // bits of the model's result
  const char* why;        // how the model comes to it
  const char* otherwise;  // results that other answers give
};

std::span<const OpenPoint> open_points();

// Operand k of a and b as bf16, +0 behind the products; `k_size` of each.
void fill_operands(const OpenPoint& point, int k_size, bf16* a, bf16* b);

}  // namespace rlk::numerics::mma
