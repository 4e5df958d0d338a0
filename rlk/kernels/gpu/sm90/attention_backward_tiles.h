// What the two gradient kernels share: numbers of each query, and tiles of 64 x 64 scores as wgmma
// leaves them: s[4 n + 2 h + i] of a thread is row + 8 h, column 8 n + i, counted from where the
// thread's own begin.
#pragma once

#include "rlk/kernels/attention.h"
#include "rlk/kernels/gpu/attention_tile.h"
#include "rlk/kernels/gpu/sm90/instructions.h"
#include "rlk/kernels/gpu/views.h"
#include "rlk/numerics/math.h"

namespace rlk::gpu::sm90 {

// -lse and D of queries, by tiles of them: [heads, tiles, 2, kStatQueries].
inline constexpr int kStatQueries = 64;
struct QueryStats {
  float* data;
  TileMap tiles;
  std::int64_t num_tiles;  // of a head

  // Of tile t of a sequence: kStatQueries times -lse, and as often D.
  RLK_DEVICE float* of(std::int64_t head, std::int64_t sequence, std::int64_t t) const {
    return data + (head * num_tiles + tiles.number(sequence) + t) * 2 * kStatQueries;
  }
};

void attention_query_gradients(Exec& exec, const AttentionBackwardArgs& args,
                               const QueryStats& stats);
void attention_key_gradients(Exec& exec, const AttentionBackwardArgs& args,
                             const QueryStats& stats);

RLK_DEVICE void start_or_go_on(bool starts, float (&sums)[32], std::uint64_t a, std::uint64_t b) {
  if (starts) {
    Wgmma<64, false>::run<true>(sums, a, b);
  } else {
    Wgmma<64, false>::run(sums, a, b);
  }
}

// Scores s become probabilities; terms: the same rounded, as the left operand of a product.
// minus_lse(h, n): of columns 8 n and 8 n + 1 in row h. visible(h, column), where kMasked.
template <bool kMasked, typename MinusLse, typename Visible>
RLK_DEVICE void probabilities(float (&s)[32], float c, const MinusLse& minus_lse,
                              const Visible& visible, std::uint32_t (&terms)[16]) {
  RLK_UNROLL
  for (int n = 0; n < 8; ++n) {
    RLK_UNROLL
    for (int h = 0; h < 2; ++h) {
      float* const x = s + 4 * n + 2 * h;
      const float2 of_columns = minus_lse(h, n);
      x[0] = numerics::exp2p(numerics::fma(x[0], c, of_columns.x));
      x[1] = numerics::exp2p(numerics::fma(x[1], c, of_columns.y));
      if (kMasked && !visible(h, 8 * n)) x[0] = 0.0f;
      if (kMasked && !visible(h, 8 * n + 1)) x[1] = 0.0f;
      terms[2 * n + h] = bf16_pair(x[0], x[1]);
    }
  }
}

// Probabilities p and products dp of dy and v give gradients of scores.
template <bool kMasked, typename D, typename Visible>
RLK_DEVICE void score_gradients(const float (&p)[32], float (&dp)[32], const D& d,
                                const Visible& visible, std::uint32_t (&terms)[16]) {
  RLK_UNROLL
  for (int n = 0; n < 8; ++n) {
    RLK_UNROLL
    for (int h = 0; h < 2; ++h) {
      const int i = 4 * n + 2 * h;
      const float2 of_columns = d(h, n);
      float ds0 = p[i] * (dp[i] - of_columns.x);
      float ds1 = p[i + 1] * (dp[i + 1] - of_columns.y);
      if (kMasked && !visible(h, 8 * n)) ds0 = 0.0f;
      if (kMasked && !visible(h, 8 * n + 1)) ds1 = 0.0f;
      terms[2 * n + h] = bf16_pair(ds0, ds1);
    }
  }
}

// Two neighbours, rounded; NaN as the contract stores it.
RLK_DEVICE void store_two(bf16* to, float x0, float x1) { Pack<bf16, 2>::of({x0, x1}).write(to); }

}  // namespace rlk::gpu::sm90
