// Attention of any shape, strides and pages (see any_shape.h): a wave holds 16 rows (tokens by the
// heads of a group) against 16 keys at a time. Scores are computed twice, for the largest of a
// block and for its terms, so that nothing is stored, whatever the size of a block.
#pragma once

#include "rlk/kernels/gpu/any_shape.h"
#include "rlk/kernels/gpu/attention_tile.h"
#include "rlk/kernels/gpu/kv_rows.h"
#include "rlk/kernels/reference/softmax_scale.h"

namespace rlk::gpu::any_shape {

struct AttentionProblem {
  Ref<bf16> y;
  Ref<float> lse;
  Ref<const bf16> q;
  Ref<const bf16> k;
  Ref<const bf16> v;
  Ref<const std::int32_t> kv_lens;
  KvRows kv;
  TileMap tiles;
  std::int64_t heads;
  std::int64_t group;
  int d;
  int kv_block;
  std::int64_t kv_split;
  float c;
  unsigned long long* fault;
};

// A query in one split: m, and those of the 16 lanes of l that are places of the lane.
struct SplitState {
  float m = -numerics::kInfinity;
  float l[4] = {};
};

// 16 * kTiles >= d. A group of padding behind the last visible key leaves a sum as it is (but may
// make +0 of -0, which no result shows): what a group of CDNA2 leaves is never subnormal.
template <typename S, int kTiles>
RLK_KERNEL(S::kWave)
attention_any_kernel(AttentionProblem p) {
  const SequenceTile tile = find_tile(p.tiles, block_x());
  if (tile.num_rows == 0) return;
  const std::int64_t kv_head = block_y();
  const int kv_len = p.kv_lens(tile.sequence);
  const auto query_at = [&](int r) { return query_of(tile, p.group, kv_head, kv_len, r); };
  const int max_visible = query_at(static_cast<int>(tile.num_rows) - 1).visible;
  Query query[S::kLines];
  RLK_UNROLL
  for (int h = 0; h < S::kLines; ++h) query[h] = query_at(S::line(h));
  typename S::Operand q[kTiles];
  load_vectors<S>(find_vectors<S::kLines>([&](int h) -> const bf16* {
                    return query[h].live ? &p.q(query[h].token, query[h].head) : nullptr;
                  }),
                  p.d, q);
  // The key or value at a position; there is none from max_visible on.
  const auto find = [&](const Ref<const bf16>& from, std::int64_t position) -> const bf16* {
    return position < max_visible ? &from(p.kv.row(tile.sequence, position), kv_head) : nullptr;
  };
  const auto multiply_keys = [&](std::int64_t first, float(&s)[S::kSums]) {
    const auto keys = find_vectors<S::kLines>([&](int h) { return find(p.k, first + S::line(h)); });
    multiply_vectors<S>(q, keys, p.d, s);
  };

  bool in_range[S::kLines];
  float total_m[S::kLines] = {}, total_l[S::kLines] = {};
  float total[kTiles][S::kSums] = {};
  RLK_UNROLL
  for (bool& x : in_range) x = true;
  for (std::int64_t split = 0; split < max_visible; split += p.kv_split) {
    SplitState state[S::kLines];
    float o[kTiles][S::kSums] = {};
    const std::int64_t split_end =
        split + p.kv_split < max_visible ? split + p.kv_split : max_visible;
    for (std::int64_t block = split; block < split_end; block += p.kv_block) {
      const std::int64_t end = block + p.kv_block < split_end ? block + p.kv_block : split_end;
      const auto sees = [&](int i, std::int64_t first) {
        return first + S::place(i % 4) < query[i / 4].visible;
      };
      float max_s[S::kLines], minus_m[S::kLines], a[S::kLines];
      RLK_UNROLL
      for (float& x : max_s) x = -numerics::kInfinity;
      for (std::int64_t first = block; first < end; first += 16) {
        float s[S::kSums];
        multiply_keys(first, s);
        RLK_UNROLL
        for (int i = 0; i < S::kSums; ++i) {
          if (sees(i, first)) max_s[i / 4] = larger(max_s[i / 4], s[i]);
        }
      }
      RLK_UNROLL
      for (int h = 0; h < S::kLines; ++h) {
        const float m = larger(state[h].m, p.c * S::max(max_s[h]));
        if (block < query[h].visible && !(numerics::abs(m) < 0x1p22f)) in_range[h] = false;
        // Without a visible key so far m is -inf, and nothing below changes o or l, which are +0.
        minus_m[h] = m == -numerics::kInfinity ? 0.0f : -m;
        a[h] = numerics::exp2p(state[h].m + minus_m[h]);
        state[h].m = m;
        RLK_UNROLL
        for (float& x : state[h].l) x = x * a[h];
      }
      RLK_UNROLL
      for (auto& sums : o) {
        RLK_UNROLL
        for (int i = 0; i < S::kSums; ++i) sums[i] = sums[i] * a[i / 4];
      }
      for (std::int64_t first = block; first < end; first += 16) {
        float e[S::kSums];
        multiply_keys(first, e);
        RLK_UNROLL
        for (int i = 0; i < S::kSums; ++i) {
          e[i] = sees(i, first) ? numerics::exp2p(numerics::fma(e[i], p.c, minus_m[i / 4])) : 0.0f;
          float& l = state[i / 4].l[i % 4];
          l = l + e[i];
        }
        const auto values = find_vectors<4>([&](int j) { return find(p.v, first + S::place(j)); });
        add_weighted<S>(rounded<S>(e), values, p.d, o);
      }
    }
    // The left fold over splits; a query that sees no key of this one keeps what it has.
    MergeWeights weights[S::kLines] = {};
    RLK_UNROLL
    for (int h = 0; h < S::kLines; ++h) {
      const float l = S::tree(state[h].l);
      if (split >= query[h].visible) continue;
      if (split == 0) {
        weights[h] = {0.0f, 1.0f};
        total_m[h] = state[h].m;
        total_l[h] = l;
      } else {
        weights[h] = merge(&total_m[h], &total_l[h], state[h].m, l);
      }
    }
    for_each_number<S, kTiles>(p.d, [&](int h, int, int of, int i) {
      if (split >= query[h].visible) return;
      total[of][i] = numerics::fma(total[of][i], weights[h].a1, o[of][i] * weights[h].a2);
    });
  }
  RLK_UNROLL
  for (int h = 0; h < S::kLines; ++h) {
    if (!query[h].live || S::place(0) != 0) continue;
    if (query[h].visible <= 0 || !in_range[h]) {  // a query without a key is an error, not a zero
      report(p.fault, query[h].token * p.heads + query[h].head);
    }
    if (query[h].visible > 0 && p.lse) {
      p.lse(query[h].token, query[h].head) = lse_of(total_l[h], total_m[h]);
    }
  }
  for_each_number<S, kTiles>(p.d, [&](int h, int x, int of, int i) {
    if (query[h].visible <= 0) return;
    store(p.y(query[h].token, query[h].head, x), total[of][i] / total_l[h] + 0.0f);
  });
}

template <typename S>
void attention(Exec& exec, const AttentionArgs& args) {
  const Contract& contract = exec.contract;
  RLK_ASSERT(contract.softmax_lanes == 16);
  const std::int64_t d = args.q.shape(2);
  const std::int64_t kv_heads = args.kv.k.shape(1);
  const std::int64_t group = args.q.shape(1) / kv_heads;
  const AttentionProblem p{ref<bf16>(args.y),
                           ref<float>(args.lse),
                           ref<bf16>(args.q),
                           ref<bf16>(args.kv.k),
                           ref<bf16>(args.kv.v),
                           ref<std::int32_t>(args.kv_lens),
                           KvRows(args.kv),
                           {ref<std::int32_t>(args.cu_seqlens_q), args.kv_lens.shape(0), group, 16},
                           args.q.shape(1),
                           group,
                           static_cast<int>(d),
                           contract.kv_block,
                           contract.kv_split,
                           reference::log2e_over_sqrt(d),
                           exec.gpu->fault()};
  with_head_dim(d, [&]<int kTiles>() {
    launch(exec, {p.tiles.bound(args.q.shape(0)), kv_heads}, S::kWave, 0,
           attention_any_kernel<S, kTiles>, p);
  });
}

}  // namespace rlk::gpu::any_shape
