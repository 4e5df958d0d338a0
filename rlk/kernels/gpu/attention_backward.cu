#include <numeric>

#include "rlk/kernels/attention.h"
#include "rlk/kernels/gpu/attention_d_sum.h"
#include "rlk/kernels/gpu/attention_tile.h"
#include "rlk/kernels/gpu/table.h"
#include "rlk/kernels/gpu/trees.h"
#include "rlk/kernels/reference/softmax_scale.h"
#include "rlk/numerics/math.h"

namespace rlk::gpu {
namespace {

constexpr int kSlice = 8;  // columns whose vectors over d are in shared memory at a time
constexpr int kStrideW = kScoreColumns + 1;

template <typename T>
struct Problem {
  Ref<T> dq, dk, dv;
  Ref<const T> dy, q, k, v;
  Ref<const float> lse;
  TileMap tiles;
  const float* d_sum;  // [tokens, heads], D of the contract
  std::int64_t num_tokens;
  std::int64_t heads;
  std::int64_t group;  // heads per KV head
  int d;
  int parts;  // of the sum over a group's heads
  float c;    // log2(e) / sqrt(d)
  float c2;   // 1 / sqrt(d)
};

// Probability and score gradient of one visible pair, rounded as products take them.
struct Pair {
  float p;
  float ds;
};
template <typename T>
RLK_DEVICE Pair make_pair(const Problem<T>& problem, float s, float dp, std::int64_t query,
                          std::int64_t head) {
  const float p = numerics::exp2p(numerics::fma(s, problem.c, -problem.lse(query, head)));
  const float ds = p * (dp - problem.d_sum[query * problem.heads + head]);
  return {round_to<T>(p), round_to<T>(ds)};
}

template <int kColumns>
constexpr int slice_floats() {
  constexpr int kScores = kScoreColumns * (kScoreSlice + 1);
  constexpr int kVectors = kSlice * 16 * kColumns;
  return kScores > kVectors ? kScores : kVectors;
}

// Rows are (token, head of the group); columns are keys, from the sequence's first.
template <int kRows, int kColumns>
struct QueryTile {
  static constexpr int kSize = 16 * kRows;
  static constexpr int kStride = 16 * kColumns + 1;
  static std::size_t shared_bytes() {
    return sizeof(float) * (2 * kSize * kStride + kSize * kStrideW + slice_floats<kColumns>());
  }
};

template <typename T, int kRows, int kColumns>
RLK_KERNEL(kAttentionThreads)
query_gradient_kernel(Problem<T> p) {
  using Tile = QueryTile<kRows, kColumns>;
  RLK_DYNAMIC_SHARED(shared);
  float* const q = reinterpret_cast<float*>(shared);
  float* const dy = q + Tile::kSize * Tile::kStride;
  float* const weights = dy + Tile::kSize * Tile::kStride;
  float* const slice = weights + Tile::kSize * kStrideW;
  const SequenceTile tile = find_tile(p.tiles, block_x());
  if (tile.num_rows == 0) return;
  const std::int64_t kv_head = block_y();

  std::int64_t token[kRows];  // in the sequence; -1: no row
  std::int64_t head[kRows];
  for (int i = 0; i < kRows; ++i) {
    const int r = thread_y() + 16 * i;
    const bool live = r < tile.num_rows;
    token[i] = live ? divide(tile.first + r, p.group) : -1;
    head[i] = live ? kv_head * p.group + (tile.first + r - token[i] * p.group) : 0;
    for (int x = thread_x(); x < p.d; x += 16) {
      q[r * Tile::kStride + x] = live ? load(p.q(tile.begin + token[i], head[i], x)) : 0.0f;
      dy[r * Tile::kStride + x] = live ? load(p.dy(tile.begin + token[i], head[i], x)) : 0.0f;
    }
  }
  barrier();

  const std::int64_t num_keys = divide(tile.first + tile.num_rows - 1, p.group) + 1;
  float acc[kRows][kColumns] = {};
  for (std::int64_t key = 0; key < num_keys; key += kScoreColumns) {
    const std::int64_t rest = num_keys - key;
    const int count = rest < kScoreColumns ? static_cast<int>(rest) : kScoreColumns;
    const auto element = [&](const Ref<const T>& x, int column, int i) {
      return column < count ? load(x(tile.begin + key + column, kv_head, i)) : 0.0f;
    };
    float s[kRows][kScoreColumns / 16];
    float dp[kRows][kScoreColumns / 16];
    dot_products<kRows>(
        q, Tile::kStride, p.d, slice, [&](int column, int i) { return element(p.k, column, i); },
        s);
    dot_products<kRows>(
        dy, Tile::kStride, p.d, slice, [&](int column, int i) { return element(p.v, column, i); },
        dp);
    std::int64_t low[kRows];
    std::int64_t high[kRows];
    for (int i = 0; i < kRows; ++i) {
      low[i] = 0;
      high[i] = token[i] + 1 - key;
      for (int c = 0; c < kScoreColumns / 16; ++c) {
        const int column = thread_x() + 16 * c;
        if (column >= high[i]) continue;
        weights[(thread_y() + 16 * i) * kStrideW + column] =
            make_pair(p, s[i][c], dp[i][c], tile.begin + token[i], head[i]).ds;
      }
    }
    barrier();
    weighted_sum<kRows, kColumns, kSlice>(
        weights, kStrideW, count, p.d, low, high, slice,
        [&](int column, int i) { return element(p.k, column, i); }, acc);
  }
  for (int i = 0; i < kRows; ++i) {
    if (token[i] < 0) continue;
    for (int c = 0; c < kColumns; ++c) {
      const int x = thread_x() + 16 * c;
      if (x < p.d) store(p.dq(tile.begin + token[i], head[i], x), p.c2 * (acc[i][c] + 0.0f));
    }
  }
}

// Rows are 16 keys of one KV head; columns are queries, of one head after the other.
template <int kColumns>
struct KeyTile {
  static constexpr int kSize = 16;
  static constexpr int kStride = 16 * kColumns + 1;
  static std::size_t shared_bytes() {
    return sizeof(float) * (2 * kSize * kStride + 2 * kSize * kStrideW + slice_floats<kColumns>());
  }
};

template <typename T, int kColumns>
RLK_KERNEL(kAttentionThreads)
key_gradient_kernel(Problem<T> p) {
  using Tile = KeyTile<kColumns>;
  RLK_DYNAMIC_SHARED(shared);
  float* const k = reinterpret_cast<float*>(shared);
  float* const v = k + Tile::kSize * Tile::kStride;
  float* const weights_p = v + Tile::kSize * Tile::kStride;
  float* const weights_ds = weights_p + Tile::kSize * kStrideW;
  float* const slice = weights_ds + Tile::kSize * kStrideW;
  const SequenceTile tile = find_tile(p.tiles, block_x());
  if (tile.num_rows == 0) return;
  const std::int64_t kv_head = block_y();
  const std::int64_t length = tile.end - tile.begin;
  const std::int64_t key = tile.first + thread_y();  // in the sequence
  const bool live = thread_y() < tile.num_rows;
  for (int x = thread_x(); x < p.d; x += 16) {
    k[thread_y() * Tile::kStride + x] = live ? load(p.k(tile.begin + key, kv_head, x)) : 0.0f;
    v[thread_y() * Tile::kStride + x] = live ? load(p.v(tile.begin + key, kv_head, x)) : 0.0f;
  }
  barrier();

  // dk, then dv; a part is one chain over its heads and their queries.
  TreeStack<2 * kColumns, kMaxTreeLevels> tree;
  for (int part = 0; part < p.parts; ++part) {
    float dk[1][kColumns] = {};
    float dv[1][kColumns] = {};
    const std::int64_t first_head = kv_head * p.group;
    const std::int64_t end_head = first_head + (part + 1) * p.group / p.parts;
    for (std::int64_t head = first_head + part * p.group / p.parts; head < end_head; ++head) {
      for (std::int64_t query = tile.first; query < length; query += kScoreColumns) {
        const std::int64_t rest = length - query;
        const int count = rest < kScoreColumns ? static_cast<int>(rest) : kScoreColumns;
        const auto element = [&](const Ref<const T>& x, int column, int i) {
          return column < count ? load(x(tile.begin + query + column, head, i)) : 0.0f;
        };
        const auto q_of = [&](int column, int i) { return element(p.q, column, i); };
        const auto dy_of = [&](int column, int i) { return element(p.dy, column, i); };
        float s[1][kScoreColumns / 16];
        float dp[1][kScoreColumns / 16];
        dot_products<1>(k, Tile::kStride, p.d, slice, q_of, s);
        dot_products<1>(v, Tile::kStride, p.d, slice, dy_of, dp);
        const std::int64_t low[1] = {key - query};
        const std::int64_t high[1] = {live ? count : 0};
        for (int c = 0; c < kScoreColumns / 16; ++c) {
          const int column = thread_x() + 16 * c;
          if (column < low[0] || column >= high[0]) continue;
          const Pair pair = make_pair(p, s[0][c], dp[0][c], tile.begin + query + column, head);
          weights_p[thread_y() * kStrideW + column] = pair.p;
          weights_ds[thread_y() * kStrideW + column] = pair.ds;
        }
        barrier();
        weighted_sum<1, kColumns, kSlice>(weights_ds, kStrideW, count, p.d, low, high, slice, q_of,
                                          dk);
        weighted_sum<1, kColumns, kSlice>(weights_p, kStrideW, count, p.d, low, high, slice, dy_of,
                                          dv);
      }
    }
    float sums[2 * kColumns];
    for (int c = 0; c < kColumns; ++c) {
      sums[c] = dk[0][c];
      sums[kColumns + c] = dv[0][c];
    }
    tree.push(sums);
  }
  if (!live) return;
  for (int c = 0; c < kColumns; ++c) {
    const int x = thread_x() + 16 * c;
    if (x >= p.d) continue;
    store(p.dk(tile.begin + key, kv_head, x), p.c2 * tree.result(c));
    store(p.dv(tile.begin + key, kv_head, x), tree.result(kColumns + c));
  }
}

template <typename T, int kRows, int kColumns>
void run_query_gradient(Exec& exec, Problem<T> p, std::int64_t kv_heads) {
  p.tiles.rows_per_token = p.group;
  p.tiles.size = QueryTile<kRows, kColumns>::kSize;
  launch(exec, {p.tiles.bound(p.num_tokens), kv_heads}, kAttentionThreads,
         QueryTile<kRows, kColumns>::shared_bytes(), query_gradient_kernel<T, kRows, kColumns>, p);
}

}  // namespace

void attention_backward(Exec& exec, const AttentionBackwardArgs& args) {
  const std::int64_t heads = args.q.shape(1);
  const std::int64_t kv_heads = args.k.shape(1);
  const std::int64_t d = args.q.shape(2);
  const std::int64_t num_tokens = args.q.shape(0);
  const Contract& contract = exec.contract;
  device::Workspace::Frame frame(exec.gpu->workspace());
  float* const d_sum = frame.take<float>(num_tokens * heads);
  with_storage(args.q.dtype, [&]<typename T>() {
    Problem<T> p{};
    p.dq = ref<T>(args.dq);
    p.dk = ref<T>(args.dk);
    p.dv = ref<T>(args.dv);
    p.dy = ref<T>(args.dy);
    p.q = ref<T>(args.q);
    p.k = ref<T>(args.k);
    p.v = ref<T>(args.v);
    p.lse = ref<float>(args.lse);
    p.tiles = {ref<std::int32_t>(args.cu_seqlens), args.cu_seqlens.shape(0) - 1, 0, 0};
    p.d_sum = d_sum;
    p.num_tokens = num_tokens;
    p.heads = heads;
    p.group = heads / kv_heads;
    p.d = static_cast<int>(d);
    p.parts = static_cast<int>(contract.leaves / std::gcd<std::int64_t>(contract.leaves, kv_heads));
    p.c = reference::log2e_over_sqrt(d);
    p.c2 = reference::one_over_sqrt(d);
    attention_d_sum<T>(exec, args, d_sum);
    with_head_dim(d, [&]<int kColumns>() {
      run_query_gradient<T, kColumns <= 8 ? 2 : 1, kColumns>(exec, p, kv_heads);
      p.tiles.rows_per_token = 1;
      p.tiles.size = KeyTile<kColumns>::kSize;
      launch(exec, {p.tiles.bound(num_tokens), kv_heads}, kAttentionThreads,
             KeyTile<kColumns>::shared_bytes(), key_gradient_kernel<T, kColumns>, p);
    });
  });
}

}  // namespace rlk::gpu
