// Gradients of attention, any shape and strides: a wave holds 16 rows (queries by the heads of a
// group, or keys) as columns of its matrices, and goes through keys, or queries of one head after
// the other, in groups of 16 from position 0, loading its numbers one by one.
#include "rlk/kernels/gpu/attention_d_sum.h"
#include "rlk/kernels/gpu/cdna/attention.h"
#include "rlk/kernels/gpu/cdna/attention_gradients.h"
#include "rlk/kernels/gpu/cdna/fragments.h"
#include "rlk/kernels/gpu/cdna/table.h"

namespace rlk::gpu::cdna {
namespace {

using S = Shape16;

constexpr int kRows = 16;

// The head of a token in x; null where there is no such token.
RLK_DEVICE const bf16* head_of(const Ref<const bf16>& x, bool in, std::int64_t token,
                               std::int64_t head) {
  return in ? &x(token, head) : nullptr;
}

// The column's vector as the right operand of products over d. 16 * kTiles >= d.
template <int kTiles>
RLK_DEVICE void load_column(const bf16* x, int d, Half4 (&to)[kTiles]) {
  RLK_UNROLL
  for (int tile = 0; tile < kTiles; ++tile) {
    const int x0 = 16 * tile + 4 * S::group();
    to[tile] = load_half4(x != nullptr ? d - x0 : 0, [&](int i) { return x[x0 + i]; });
  }
}

// 16 rows, of which the lane has one, by the columns, over d: one chain each.
template <int kTiles>
RLK_DEVICE Float4 dot_products(const bf16* row, const Half4 (&columns)[kTiles], int d) {
  Float4 sums = {};
  RLK_UNROLL
  for (int tile = 0; tile < kTiles; ++tile) {
    if (16 * tile >= d) break;
    const int x0 = 16 * tile + 4 * S::group();
    sums = S::multiply(load_half4(row != nullptr ? d - x0 : 0, [&](int i) { return row[x0 + i]; }),
                       columns[tile], sums);
  }
  return sums + 0.0f;
}

// acc goes on over 16 rows, of which the lane has four: elements of the rows by weights. Sum i of
// acc[tile] is element 16 * tile + row(i).
template <int kTiles>
RLK_DEVICE void add_weighted(const bf16* const (&rows)[4], Half4 weights, int d,
                             Float4 (&acc)[kTiles]) {
  RLK_UNROLL
  for (int tile = 0; tile < kTiles; ++tile) {
    if (16 * tile >= d) break;
    const int x = 16 * tile + thread() % 16;
    Half4 a = {};
    RLK_UNROLL
    for (int i = 0; i < 4; ++i) {
      if (x < d && rows[i] != nullptr) a[i] = static_cast<short>(rows[i][x].bits);
    }
    acc[tile] = S::multiply(a, weights, acc[tile]);
  }
}

template <int kTiles>
RLK_KERNEL(kWave)
query_gradient_any_kernel(GradientProblem p) {
  const SequenceTile tile = find_tile(p.tiles, block_x());
  if (tile.num_rows == 0) return;
  const std::int64_t kv_head = block_y();
  const bool live = S::column() < tile.num_rows;
  const std::int64_t row = tile.first + (live ? S::column() : 0);
  const std::int64_t position = divide(row, p.group);
  const std::int64_t head = kv_head * p.group + (row - position * p.group);
  const std::int64_t token = tile.begin + position;
  Half4 q[kTiles], dy[kTiles];
  load_column(head_of(p.q, live, token, head), p.d, q);
  load_column(head_of(p.dy, live, token, head), p.d, dy);
  const Float4 minus_lse = Float4{} - p.lse(token, head);
  const Float4 d_sum = Float4{} + p.d_of(token, head);

  const std::int64_t num_keys = divide(tile.first + tile.num_rows - 1, p.group) + 1;
  Float4 acc[kTiles] = {};
  for (std::int64_t key = 0; key < num_keys; key += 16) {
    const std::int64_t own = key + thread() % 16;
    const auto key_head = [&](const Ref<const bf16>& x, std::int64_t at) {
      return head_of(x, at < num_keys, tile.begin + at, kv_head);
    };
    const Float4 s = dot_products(key_head(p.k, own), q, p.d);
    const Float4 dp = dot_products(key_head(p.v, own), dy, p.d);
    const PairWeights weights = pair_weights<true>(
        s, dp, p.c, minus_lse, d_sum, [&](int i) { return live && key + S::row(i) <= position; });
    const bf16* keys[4];
    for (int i = 0; i < 4; ++i) keys[i] = key_head(p.k, key + S::row(i));
    add_weighted(keys, weights.ds, p.d, acc);
  }
  if (!live) return;
  RLK_UNROLL
  for (int i = 0; i < kTiles; ++i) {
    RLK_UNROLL
    for (int j = 0; j < 4; ++j) {
      const int x = 16 * i + S::row(j);
      if (x < p.d) store(p.dq(token, head, x), p.c2 * (acc[i][j] + 0.0f));
    }
  }
}

// One part of dk and dv of 16 keys of a KV head: a chain over its heads and their queries.
template <int kTiles>
RLK_KERNEL(kWave)
key_gradient_any_kernel(GradientProblem p) {
  const SequenceTile tile = find_tile(p.tiles, block_x());
  if (tile.num_rows == 0) return;
  const std::int64_t kv_head = block_y();
  const std::int64_t part = block_z();
  const std::int64_t length = tile.end - tile.begin;
  const bool live = S::column() < tile.num_rows;
  const std::int64_t key = tile.first + S::column();
  const std::int64_t token = tile.begin + key;
  Half4 k[kTiles], v[kTiles];
  load_column(head_of(p.k, live, token, kv_head), p.d, k);
  load_column(head_of(p.v, live, token, kv_head), p.d, v);

  Float4 dk[kTiles] = {};
  Float4 dv[kTiles] = {};
  for (std::int64_t head = p.first_head(kv_head, part); head < p.first_head(kv_head, part + 1);
       ++head) {
    // Queries before the tile's group see none of its keys: zeros, which change nothing.
    for (std::int64_t query = tile.first; query < length; query += 16) {
      const std::int64_t own = query + thread() % 16;
      const auto query_head = [&](const Ref<const bf16>& x, std::int64_t at) {
        return head_of(x, at < length, tile.begin + at, head);
      };
      const Float4 s = dot_products(query_head(p.q, own), k, p.d);
      const Float4 dp = dot_products(query_head(p.dy, own), v, p.d);
      Float4 minus_lse = {}, d_sum = {};
      for (int i = 0; i < 4; ++i) {
        const std::int64_t at = query + S::row(i);
        if (at >= length) continue;
        minus_lse[i] = -p.lse(tile.begin + at, head);
        d_sum[i] = p.d_of(tile.begin + at, head);
      }
      const PairWeights weights = pair_weights<true>(s, dp, p.c, minus_lse, d_sum, [&](int i) {
        return live && query + S::row(i) < length && key <= query + S::row(i);
      });
      const bf16* rows[4];
      for (int i = 0; i < 4; ++i) rows[i] = query_head(p.q, query + S::row(i));
      add_weighted(rows, weights.ds, p.d, dk);
      for (int i = 0; i < 4; ++i) rows[i] = query_head(p.dy, query + S::row(i));
      add_weighted(rows, weights.p, p.d, dv);
    }
  }
  if (!live) return;
  const std::int64_t at = ((token * p.kv_heads + kv_head) * p.parts.parts + part) * p.d;
  RLK_UNROLL
  for (int i = 0; i < kTiles; ++i) {
    RLK_UNROLL
    for (int j = 0; j < 4; ++j) {
      const int x = 16 * i + S::row(j);
      if (x >= p.d) continue;
      p.parts.dk[at + x] = dk[i][j];
      p.parts.dv[at + x] = dv[i][j];
    }
  }
}

}  // namespace

void attention_gradients_any(Exec& exec, const AttentionBackwardArgs& args, const float* d_sum) {
  const std::int64_t num_tokens = args.q.shape(0);
  GradientProblem p = GradientProblem::of(args, d_sum);
  const std::int64_t parts = GradientParts::count(exec, p.kv_heads);
  device::Workspace::Frame frame(exec.gpu->workspace());
  p.parts = {frame.take<float>(num_tokens * p.kv_heads * parts * p.d),
             frame.take<float>(num_tokens * p.kv_heads * parts * p.d), parts};
  with_head_dim(p.d, [&]<int kTiles>() {
    p.tiles.rows_per_token = p.group;
    p.tiles.size = kRows;
    launch(exec, {p.tiles.bound(num_tokens), p.kv_heads}, kWave, 0,
           query_gradient_any_kernel<kTiles>, p);
    p.tiles.rows_per_token = 1;
    launch(exec, {p.tiles.bound(num_tokens), p.kv_heads, parts}, kWave, 0,
           key_gradient_any_kernel<kTiles>, p);
  });
  merge_parts(exec, args, p.parts, p.c2);
}

void attention_backward(Exec& exec, const AttentionBackwardArgs& args) {
  check_is_bf16(exec, args.q);
  device::Workspace::Frame frame(exec.gpu->workspace());
  float* const d_sum = frame.take<float>(args.q.shape(0) * args.q.shape(1));
  attention_d_sum<bf16>(exec, args, d_sum);
  if (attention_gradients(exec, args, d_sum)) return;
  attention_gradients_any(exec, args, d_sum);
}

}  // namespace rlk::gpu::cdna
