// D of attention's backward (contract section 6): the lane sum of dy by y over a head.
#pragma once

#include "rlk/kernels/attention.h"
#include "rlk/kernels/gpu/elements.h"
#include "rlk/kernels/gpu/lanes.h"

namespace rlk::gpu {

// Static: each profile's objects have their own, compiled for their own chips.
template <typename T, int kLanes>
static RLK_KERNEL(kLaneThreads)
    attention_d_sum_kernel(float* d_sum, Ref<const T> dy, Ref<const T> y, std::int64_t num_tokens,
                           std::int64_t heads, std::int64_t d, int lanes, bool packed) {
  const auto lane_row = LaneRow<kLanes>::make(lanes);
  const bool live = lane_row.row < num_tokens * heads;
  const std::int64_t row = live ? lane_row.row : 0;
  const std::int64_t t = divide(row, heads);
  const std::int64_t h = row - t * heads;
  float acc[kLanes] = {};
  lane_row.for_each_pack(d, [&](std::int64_t k) {
    float a[kLanes];
    float b[kLanes];
    load_pack(&dy(t, h), dy.stride[2], k, d, packed, a);
    load_pack(&y(t, h), y.stride[2], k, d, packed, b);
    for (int i = 0; i < kLanes; ++i) acc[i] = numerics::fma(a[i], b[i], acc[i]);
  });
  const float sum = lane_row.tree(acc);
  if (live && lane_row.part == 0) d_sum[row] = sum;
}

// d_sum [num_tokens, num_attention_heads].
template <typename T>
void attention_d_sum(Exec& exec, const AttentionBackwardArgs& args, float* d_sum) {
  const std::int64_t num_tokens = args.q.shape(0), heads = args.q.shape(1);
  const int lanes = used_lanes(exec.contract.norm_lanes, args.q.shape(2));
  with_lanes(lanes, [&]<int kLanes>() {
    launch(exec, lane_grid(num_tokens * heads, lanes, kLanes), kLaneThreads, 0,
           attention_d_sum_kernel<T, kLanes>, d_sum, ref<T>(args.dy), ref<T>(args.y), num_tokens,
           heads, args.q.shape(2), lanes, packs<kLanes>(args.dy) && packs<kLanes>(args.y));
  });
}

}  // namespace rlk::gpu
