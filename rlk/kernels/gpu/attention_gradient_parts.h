// dk and dv as sums of parts, which the gradient kernels of attention share.
#pragma once

#include <numeric>

#include "rlk/kernels/attention.h"
#include "rlk/kernels/gpu/elements.h"
#include "rlk/kernels/gpu/trees.h"

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

}  // namespace rlk::gpu
