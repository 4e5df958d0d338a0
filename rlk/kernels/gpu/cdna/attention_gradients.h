// What the kernels for the gradients of attention share.
#pragma once

#include "rlk/kernels/gpu/attention_gradient_parts.h"
#include "rlk/kernels/gpu/attention_tile.h"
#include "rlk/kernels/gpu/cdna/attention_shapes.h"
#include "rlk/kernels/reference/softmax_scale.h"

namespace rlk::gpu::cdna {

struct GradientProblem {
  Ref<bf16> dq, dk, dv;
  Ref<const bf16> dy, q, k, v;
  Ref<const float> lse;
  TileMap tiles;
  const float* d_sum;  // [tokens, heads], D of the contract
  GradientParts parts;
  std::int64_t heads;
  std::int64_t kv_heads;
  std::int64_t group;  // heads per KV head
  int d;
  float c;   // log2(e) / sqrt(d)
  float c2;  // 1 / sqrt(d)

  // Without parts; tiles are cut by the kernels.
  static GradientProblem of(const AttentionBackwardArgs& args, const float* d_sum) {
    const std::int64_t heads = args.q.shape(1), kv_heads = args.k.shape(1), d = args.q.shape(2);
    return {ref<bf16>(args.dq),
            ref<bf16>(args.dk),
            ref<bf16>(args.dv),
            ref<bf16>(args.dy),
            ref<bf16>(args.q),
            ref<bf16>(args.k),
            ref<bf16>(args.v),
            ref<float>(args.lse),
            {ref<std::int32_t>(args.cu_seqlens), args.cu_seqlens.shape(0) - 1, 0, 0},
            d_sum,
            {},
            heads,
            kv_heads,
            heads / kv_heads,
            static_cast<int>(d),
            reference::log2e_over_sqrt(d),
            reference::one_over_sqrt(d)};
  }

  // The heads of a part.
  RLK_DEVICE std::int64_t first_head(std::int64_t kv_head, std::int64_t part) const {
    return kv_head * group + part * group / parts.parts;
  }
  RLK_DEVICE float d_of(std::int64_t token, std::int64_t head) const {
    return d_sum[token * heads + head];
  }
};

// Of four pairs of a query and a key, the probabilities and the gradients of scores as products
// take them; +0 where sees(i) is false. minus_lse and d: of the pairs' queries.
struct PairWeights {
  Half4 p;
  Half4 ds;
};
template <bool kMasked, typename Sees>
RLK_DEVICE PairWeights pair_weights(const Float4& s, const Float4& dp, float c,
                                    const Float4& minus_lse, const Float4& d, const Sees& sees) {
  Float2 p[2];
  RLK_UNROLL
  for (int i = 0; i < 2; ++i) {
    p[i] = fma(Float2{s[2 * i], s[2 * i + 1]}, pair_of(c),
               Float2{minus_lse[2 * i], minus_lse[2 * i + 1]});
  }
  exp2p(p);
  std::uint32_t p_word[2], ds_word[2];
  RLK_UNROLL
  for (int i = 0; i < 2; ++i) {
    Float2 ds = p[i] * (Float2{dp[2 * i], dp[2 * i + 1]} - Float2{d[2 * i], d[2 * i + 1]});
    RLK_UNROLL
    for (int j = 0; j < 2; ++j) {
      if (kMasked && !sees(2 * i + j)) p[i][j] = ds[j] = 0.0f;
      ds[j] = numerics::canonical_nan(ds[j]);
    }
    p_word[i] = bf16_pair(p[i][0], p[i][1]);
    ds_word[i] = bf16_pair(ds[0], ds[1]);
  }
  return {half4_of(p_word), half4_of(ds_word)};
}

}  // namespace rlk::gpu::cdna
