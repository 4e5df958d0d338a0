// Philox4x32-10: random numbers as a function of a counter and a key, so a draw depends on nothing
// that ran before it.
//
// Source: Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy as 1, 2, 3", 2011.
#pragma once

#include <array>
#include <cstdint>

#include "rlk/numerics/math.h"

namespace rlk::numerics {

using PhiloxCounter = std::array<std::uint32_t, 4>;
using PhiloxKey = std::array<std::uint32_t, 2>;

// Four 32-bit words.
RLK_HD inline PhiloxCounter philox4x32_10(PhiloxCounter counter, PhiloxKey key) {
  for (int round = 0; round < 10; ++round) {
    const std::uint64_t p0 = std::uint64_t{0xD2511F53u} * counter[0];
    const std::uint64_t p1 = std::uint64_t{0xCD9E8D57u} * counter[2];
    counter = {
        static_cast<std::uint32_t>(p1 >> 32) ^ counter[1] ^ key[0], static_cast<std::uint32_t>(p1),
        static_cast<std::uint32_t>(p0 >> 32) ^ counter[3] ^ key[1], static_cast<std::uint32_t>(p0)};
    key[0] += 0x9E3779B9u;
    key[1] += 0xBB67AE85u;
  }
  return counter;
}

// The uniform number of 23 bits: (k + 0.5) * 2^-23, k = word >> 9. Exact in f32, never 0 or 1.
// (With 24 bits, k + 0.5 would need 25 and the largest would round to 1.)
RLK_HD inline float uniform_f32(std::uint32_t word) {
  return (static_cast<float>(word >> 9) + 0.5f) * 0x1p-23f;
}

// The four words of token ids 4g .. 4g+3 of one draw:
//   key      (seed low, seed high)
//   counter  (g = token_id / 4, position, request low, request high)
// Token id t reads word t % 4. `position` is that of the token to be drawn in its sequence.
RLK_HD inline PhiloxCounter gumbel_words(std::uint64_t seed, std::uint64_t request,
                                         std::uint32_t position, std::uint32_t token_group) {
  return philox4x32_10({token_group, position, static_cast<std::uint32_t>(request),
                        static_cast<std::uint32_t>(request >> 32)},
                       {static_cast<std::uint32_t>(seed), static_cast<std::uint32_t>(seed >> 32)});
}

// gumbel/1: -log(-log(u)) of a word, with log/1. In (-2.82, 16.64).
RLK_HD inline float gumbel_of_word(std::uint32_t word) { return -log(-log(uniform_f32(word))); }

// The noise added to the logit of token_id.
RLK_HD inline float gumbel(std::uint64_t seed, std::uint64_t request, std::uint32_t position,
                           std::uint32_t token_id) {
  return gumbel_of_word(gumbel_words(seed, request, position, token_id / 4)[token_id % 4]);
}

}  // namespace rlk::numerics
