// Numbers on which products of another order give other bytes, and the comparison of results.
#pragma once

#include <cstdint>

#include "rlk/core/dtype.h"
#include "rlk/kernels/exec.h"

namespace rlk::gpu::sm90 {

enum class VectorFamily : int {
  kNear,        // exponents of one size
  kWide,        // from 2^-20 to 2^20
  kCancelling,  // half of the terms are large and cancel at the other end of k
  kTiny,        // products below the smallest normal number
  kZeros,       // zeros of both signs, and whole sums of them
  kNotFinite,   // infinities, NaN and overflow in three of four rows
};
inline constexpr int kNumVectorFamilies = 6;
const char* to_string(VectorFamily family);

// Fills rows of k numbers. operand: 0 the activations of a product, 1 the weights.
void fill_vectors(Exec& exec, VectorFamily family, int operand, bf16* to, std::int64_t rows,
                  std::int64_t k);

// Where the lowest number at which two results of `count` numbers differ in a bit, and are not both
// NaN, is below `first`, it becomes that: 2^40 * product + the number's index.
void note_difference(Exec& exec, const void* x, const void* y, std::int64_t count, DType dtype,
                     std::int64_t product, unsigned long long* first);

}  // namespace rlk::gpu::sm90
