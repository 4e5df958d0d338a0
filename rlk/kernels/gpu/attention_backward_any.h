// Gradients of attention, any shape and strides (see any_shape.h): a wave holds 16 rows (queries by
// the heads of a group, or keys) and goes through keys, or queries of one head after the other, in
// groups of 16 from position 0.
#pragma once

#include "rlk/kernels/gpu/any_shape.h"
#include "rlk/kernels/gpu/attention_backward_parts.h"

namespace rlk::gpu::any_shape {

// N heads of x: of token find(i), or none where that is -1.
template <int N, typename Find>
RLK_DEVICE Vectors<N> heads_of(const Ref<const bf16>& x, std::int64_t head, const Find& find) {
  return find_vectors<N>([&](int i) -> const bf16* {
    const std::int64_t token = find(i);
    return token < 0 ? nullptr : &x(token, head);
  });
}

template <typename S, int kTiles>
RLK_KERNEL(S::kWave)
query_gradient_any_kernel(GradientProblem p) {
  const SequenceTile tile = find_tile(p.tiles, block_x());
  if (tile.num_rows == 0) return;
  const std::int64_t kv_head = block_y();
  const int length = static_cast<int>(tile.end - tile.begin);
  Query query[S::kLines];  // visible: its position + 1
  RLK_UNROLL
  for (int h = 0; h < S::kLines; ++h) {
    query[h] = query_of(tile, p.group, kv_head, length, S::line(h));
  }
  typename S::Operand q[kTiles], dy[kTiles];
  const auto load_rows = [&](const Ref<const bf16>& x, typename S::Operand(&to)[kTiles]) {
    load_vectors<S>(find_vectors<S::kLines>([&](int h) -> const bf16* {
                      return query[h].live ? &x(query[h].token, query[h].head) : nullptr;
                    }),
                    p.d, to);
  };
  load_rows(p.q, q);
  load_rows(p.dy, dy);

  const int num_keys =
      query_of(tile, p.group, kv_head, length, static_cast<int>(tile.num_rows) - 1).visible;
  const auto find_key = [&](int key) { return key < num_keys ? tile.begin + key : -1; };
  float acc[kTiles][S::kSums] = {};
  for (int key = 0; key < num_keys; key += 16) {
    const auto line = [&](int h) { return find_key(key + S::line(h)); };
    const auto place = [&](int j) { return find_key(key + S::place(j)); };
    float s[S::kSums], dp[S::kSums];
    multiply_vectors<S>(q, heads_of<S::kLines>(p.k, kv_head, line), p.d, s);
    multiply_vectors<S>(dy, heads_of<S::kLines>(p.v, kv_head, line), p.d, dp);
    RLK_UNROLL
    for (int i = 0; i < S::kSums; ++i) {
      const Query& of = query[i / 4];
      const bool sees = key + S::place(i % 4) < of.visible;
      dp[i] = sees ? p.pair(s[i], dp[i], of.token, of.head).ds : 0.0f;
    }
    add_weighted<S>(rounded<S>(dp), heads_of<4>(p.k, kv_head, place), p.d, acc);
  }
  for_each_number<S, kTiles>(p.d, [&](int h, int x, int of, int i) {
    if (!query[h].live) return;
    store(p.dq(query[h].token, query[h].head, x), p.c2 * (acc[of][i] + 0.0f));
  });
}

// One part of dk and dv of 16 keys of a KV head: a chain over its heads and their queries.
template <typename S, int kTiles>
RLK_KERNEL(S::kWave)
key_gradient_any_kernel(GradientProblem p) {
  const SequenceTile tile = find_tile(p.tiles, block_x());
  if (tile.num_rows == 0) return;
  const std::int64_t kv_head = block_y();
  const std::int64_t part = block_z();
  const std::int64_t length = tile.end - tile.begin;
  const auto own_key = [&](int h) {
    return S::line(h) < tile.num_rows ? tile.begin + tile.first + S::line(h) : -1;
  };
  typename S::Operand k[kTiles], v[kTiles];
  load_vectors<S>(heads_of<S::kLines>(p.k, kv_head, own_key), p.d, k);
  load_vectors<S>(heads_of<S::kLines>(p.v, kv_head, own_key), p.d, v);

  float dk[kTiles][S::kSums] = {};
  float dv[kTiles][S::kSums] = {};
  for (std::int64_t head = p.first_head(kv_head, part); head < p.first_head(kv_head, part + 1);
       ++head) {
    // Queries before the tile see none of its keys: zeros, which change nothing.
    for (std::int64_t query = tile.first; query < length; query += 16) {
      const auto find_query = [&](std::int64_t at) { return at < length ? tile.begin + at : -1; };
      const auto line = [&](int h) { return find_query(query + S::line(h)); };
      const auto place = [&](int j) { return find_query(query + S::place(j)); };
      float s[S::kSums], dp[S::kSums];
      multiply_vectors<S>(k, heads_of<S::kLines>(p.q, head, line), p.d, s);
      multiply_vectors<S>(v, heads_of<S::kLines>(p.dy, head, line), p.d, dp);
      RLK_UNROLL
      for (int i = 0; i < S::kSums; ++i) {
        const std::int64_t at = query + S::place(i % 4);
        const int key = S::line(i / 4);
        const bool sees = key < tile.num_rows && at < length && tile.first + key <= at;
        const auto pair =
            sees ? p.pair(s[i], dp[i], tile.begin + at, head) : GradientProblem::Pair{0.0f, 0.0f};
        s[i] = pair.p;
        dp[i] = pair.ds;
      }
      add_weighted<S>(rounded<S>(dp), heads_of<4>(p.q, head, place), p.d, dk);
      add_weighted<S>(rounded<S>(s), heads_of<4>(p.dy, head, place), p.d, dv);
    }
  }
  for_each_number<S, kTiles>(p.d, [&](int h, int x, int of, int i) {
    const std::int64_t token = own_key(h);
    if (token < 0) return;
    const std::int64_t at = ((token * p.kv_heads + kv_head) * p.parts.parts + part) * p.d + x;
    p.parts.dk[at] = dk[of][i];
    p.parts.dv[at] = dv[of][i];
  });
}

// d_sum: D of the contract.
template <typename S>
void attention_backward(Exec& exec, const AttentionBackwardArgs& args, const float* d_sum) {
  const std::int64_t num_tokens = args.q.shape(0);
  GradientProblem p = GradientProblem::of(args, d_sum);
  const std::int64_t parts = GradientParts::count(exec, p.kv_heads);
  device::Workspace::Frame frame(exec.gpu->workspace());
  p.parts = {frame.take<float>(num_tokens * p.kv_heads * parts * p.d),
             frame.take<float>(num_tokens * p.kv_heads * parts * p.d), parts};
  with_head_dim(p.d, [&]<int kTiles>() {
    p.tiles.rows_per_token = p.group;
    p.tiles.size = 16;
    launch(exec, {p.tiles.bound(num_tokens), p.kv_heads}, S::kWave, 0,
           query_gradient_any_kernel<S, kTiles>, p);
    p.tiles.rows_per_token = 1;
    launch(exec, {p.tiles.bound(num_tokens), p.kv_heads, parts}, S::kWave, 0,
           key_gradient_any_kernel<S, kTiles>, p);
  });
  merge_parts(exec, args, p.parts, p.c2);
}

}  // namespace rlk::gpu::any_shape
