// The splits of decoding, merged in order.
#include "rlk/kernels/gpu/sm90/attention_decode.h"
#include "rlk/kernels/gpu/sm90/instructions.h"
#include "rlk/kernels/gpu/sm90/launch.h"

namespace rlk::gpu::sm90 {
namespace {

constexpr int kMergeRows = 4;  // at a time

// The left fold over the splits of the queries of a tile, a thread for each element.
template <int kD>
__global__ void __launch_bounds__(kMergeRows* kD)
    attention_decode_merge_kernel(const DecodeProblem p) {
  constexpr int kAhead = 16;  // splits whose states are asked for together
  const SequenceTile tile = find_sequence_tile(p.tiles, block_y());
  const int x = thread() % kD;
  Query query = query_of(p, tile, block_x(), thread() / kD);
  wait_for_previous_kernel();  // no kernel that may still run writes what was read so far
  for (int r = thread() / kD; r < tile.num_rows; r += kMergeRows) {
    if (r >= kMergeRows) query = query_of(p, tile, block_x(), r);
    const std::int64_t row = query.token * p.heads + query.head;
    const int num_splits = (query.visible + p.kv_split - 1) / p.kv_split;
    if (num_splits == 0) continue;
    float m = 0.0f, l = 0.0f, o = 0.0f;
    for (int first = 0; first < num_splits; first += kAhead) {
      float m2[kAhead], l2[kAhead], o2[kAhead];
      RLK_UNROLL
      for (int i = 0; i < kAhead; ++i) {
        if (first + i >= num_splits) continue;
        const float* const from = p.partial_of(first + i, row, kD);
        m2[i] = from[0];
        l2[i] = from[1];
        o2[i] = from[2 + x];
      }
      RLK_UNROLL
      for (int i = 0; i < kAhead; ++i) {
        if (first + i >= num_splits) continue;
        if (first + i == 0) {
          m = m2[0];
          l = l2[0];
          o = o2[0];
          continue;
        }
        const MergeWeights w = merge(&m, &l, m2[i], l2[i]);
        o = numerics::fma(o, w.a1, o2[i] * w.a2);
      }
    }
    store(p.y(query.token, query.head, x), o / l + 0.0f);
    if (p.lse && x == 0) {
      p.lse(query.token, query.head) = lse_of(l, m);
    }
  }
}

template <int kD>
void run(Exec& exec, const DecodeProblem& p) {
  launch_cluster(exec, {p.kv_heads, p.num_tiles}, kMergeRows * kD, 0, {.overlaps_previous = true},
                 attention_decode_merge_kernel<kD>, p);
}

}  // namespace

void attention_decode_merge(Exec& exec, const DecodeProblem& p, int d) {
  d == 64 ? run<64>(exec, p) : run<128>(exec, p);
}

}  // namespace rlk::gpu::sm90
