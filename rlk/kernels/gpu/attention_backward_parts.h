// What the kernels for the gradients of attention share on matrix units: the call, and dk and dv as
// sums of parts.
#pragma once

#include <numeric>

#include "rlk/kernels/attention.h"
#include "rlk/kernels/gpu/attention_tile.h"
#include "rlk/kernels/gpu/elements.h"
#include "rlk/kernels/gpu/trees.h"
#include "rlk/kernels/reference/softmax_scale.h"
#include "rlk/numerics/math.h"

namespace rlk::gpu {

// The open sums of dk and dv: [tokens, KV heads, parts, d] each. A part is the chain over some of
// a group's heads.
struct GradientParts {
  float* dk;
  float* dv;
  std::int64_t parts;

  // How many the contract wants.
  static std::int64_t count(const Exec& exec, std::int64_t kv_heads) {
    const std::int64_t leaves = exec.contract.leaves;
    return leaves / std::gcd(leaves, kv_heads);
  }
};

// dk and dv of the parts: neighbour tree, scale, rounding. Static: see attention_d_sum.h.
static RLK_KERNEL(kElementThreads)
    merge_parts_kernel(Ref<bf16> dk, Ref<bf16> dv, GradientParts from, std::int64_t kv_heads,
                       std::int64_t d, float c2, std::int64_t num_elements) {
  const std::int64_t element = block_x() * kElementThreads + thread();
  if (element >= num_elements) return;
  const std::int64_t row = divide(element, d);
  const std::int64_t x = element - row * d;
  TreeStack<2, kMaxTreeLevels> tree;
  for (std::int64_t part = 0; part < from.parts; ++part) {
    const std::int64_t at = (row * from.parts + part) * d + x;
    const float sums[2] = {from.dk[at], from.dv[at]};
    tree.push(sums);
  }
  const std::int64_t token = divide(row, kv_heads);
  const std::int64_t kv_head = row - token * kv_heads;
  store(dk(token, kv_head, x), c2 * tree.result(0));
  store(dv(token, kv_head, x), tree.result(1));
}

inline void merge_parts(Exec& exec, const AttentionBackwardArgs& args, const GradientParts& from,
                        float c2) {
  const std::int64_t kv_heads = args.k.shape(1), d = args.k.shape(2);
  const std::int64_t num_elements = args.k.shape(0) * kv_heads * d;
  launch(exec, {ceil_div(num_elements, kElementThreads)}, kElementThreads, 0, merge_parts_kernel,
         ref<bf16>(args.dk), ref<bf16>(args.dv), from, kv_heads, d, c2, num_elements);
}

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
  // Probability and score gradient of a query and a key that it sees.
  struct Pair {
    float p, ds;
  };
  RLK_DEVICE Pair pair(float s, float dp, std::int64_t token, std::int64_t head) const {
    const float probability = numerics::exp2p(numerics::fma(s, c, -lse(token, head)));
    return {probability, probability * (dp - d_of(token, head))};
  }
};

}  // namespace rlk::gpu
