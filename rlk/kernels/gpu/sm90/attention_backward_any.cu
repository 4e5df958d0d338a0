// Gradients of attention, any shape and strides. A warp holds 16 rows (queries by the heads of a
// group, or keys) in registers and goes through columns (keys, or queries of one head after the
// other) in groups of 16 from position 0, loading its numbers one by one. Weights leave one product
// where the next one takes them.
#include "rlk/kernels/gpu/attention_d_sum.h"
#include "rlk/kernels/gpu/attention_gradient_parts.h"
#include "rlk/kernels/gpu/attention_tile.h"
#include "rlk/kernels/gpu/sm90/attention_backward.h"
#include "rlk/kernels/gpu/sm90/fragments.h"
#include "rlk/kernels/reference/softmax_scale.h"
#include "rlk/numerics/math.h"

namespace rlk::gpu::sm90 {
namespace {

constexpr int kRows = 16;

struct Problem {
  Ref<bf16> dq, dk, dv;
  Ref<const bf16> dy, q, k, v;
  Ref<const float> lse;
  TileMap tiles;
  const float* d_sum;  // [tokens, heads], D of the contract
  GradientParts parts;
  std::int64_t heads;
  std::int64_t group;  // heads per KV head
  int d;
  float c;   // log2(e) / sqrt(d)
  float c2;  // 1 / sqrt(d)
};

// Elements [16 step, 16 step + 16) of the rows' heads, for each step. load(row, x), x < d.
template <int kSteps, typename Load>
RLK_DEVICE void load_rows(int d, const Load& load, std::uint32_t (&rows)[kSteps][4]) {
  RLK_UNROLL
  for (int step = 0; step < kSteps; ++step) {
    load_a(
        [&](int row, int i) {
          const int x = 16 * step + i;
          return x < d ? load(row, x) : bf16{};
        },
        rows[step]);
  }
}

// The rows by 8 columns over d: one chain each. load(column, x), x < d.
template <int kSteps, typename Load>
RLK_DEVICE void dot_products(const std::uint32_t (&rows)[kSteps][4], int d, const Load& load,
                             float (&sums)[4]) {
  for (float& sum : sums) sum = 0.0f;
  RLK_UNROLL
  for (int step = 0; step < kSteps; ++step) {
    if (16 * step >= d) break;
    std::uint32_t b[2];
    load_b(
        [&](int column, int i) {
          const int x = 16 * step + i;
          return x < d ? load(column, x) : bf16{};
        },
        b);
    mma_sync(sums, rows[step], b);
  }
  for (float& sum : sums) sum = sum + 0.0f;
}

// acc goes on over 16 columns: weights by elements of the columns. load(column, x), x < d.
template <int kTiles, typename Load>
RLK_DEVICE void add_weighted(const std::uint32_t (&weights)[4], int d, const Load& load,
                             float (&acc)[kTiles][4]) {
  RLK_UNROLL
  for (int tile = 0; tile < kTiles; ++tile) {
    if (8 * tile >= d) break;
    std::uint32_t b[2];
    load_b(
        [&](int i, int column) {
          const int x = 8 * tile + i;
          return x < d ? load(column, x) : bf16{};
        },
        b);
    mma_sync(acc[tile], weights, b);
  }
}

// Probability and score gradient of a visible pair, rounded as products take them.
RLK_DEVICE void set_pair(const Problem& p, float s, float dp, std::int64_t query, std::int64_t head,
                         bf16* weight_p, bf16* weight_ds) {
  const float probability = numerics::exp2p(numerics::fma(s, p.c, -p.lse(query, head)));
  store(*weight_p, probability);
  store(*weight_ds, probability * (dp - p.d_sum[query * p.heads + head]));
}

// kSteps * 16 >= d.
template <int kSteps>
RLK_KERNEL(32)
query_gradient_any_kernel(Problem p) {
  const SequenceTile tile = find_tile(p.tiles, block_x());
  if (tile.num_rows == 0) return;
  const std::int64_t kv_head = block_y();
  const auto position_of = [&](int row) { return divide(tile.first + row, p.group); };
  const auto head_of = [&](int row) {
    return kv_head * p.group + (tile.first + row - position_of(row) * p.group);
  };
  const auto row_of = [&](const Ref<const bf16>& from) {
    return [&, from](int row, int x) {
      return row < tile.num_rows ? from(tile.begin + position_of(row), head_of(row), x) : bf16{};
    };
  };
  std::uint32_t q[kSteps][4], dy[kSteps][4];
  load_rows(p.d, row_of(p.q), q);
  load_rows(p.d, row_of(p.dy), dy);

  const std::int64_t num_keys = position_of(static_cast<int>(tile.num_rows) - 1) + 1;
  float acc[2 * kSteps][4] = {};
  for (std::int64_t key = 0; key < num_keys; key += 16) {
    const auto column_of = [&](const Ref<const bf16>& from, std::int64_t at) {
      return [&, from, at](int column, int x) {
        return at + column < num_keys ? from(tile.begin + at + column, kv_head, x) : bf16{};
      };
    };
    bf16 weights[2][4];
    for (int half = 0; half < 2; ++half) {
      const std::int64_t at = key + 8 * half;
      float s[4], dp[4];
      dot_products(q, p.d, column_of(p.k, at), s);
      dot_products(dy, p.d, column_of(p.v, at), dp);
      for (int i = 0; i < 4; ++i) {
        const int row = sum_row(i);
        weights[half][i] = bf16{};
        if (row >= tile.num_rows || at + sum_column(i) > position_of(row)) continue;
        bf16 unused;
        set_pair(p, s[i], dp[i], tile.begin + position_of(row), head_of(row), &unused,
                 &weights[half][i]);
      }
    }
    std::uint32_t ds[4];
    a_of_tiles(weights, ds);
    add_weighted(ds, p.d, column_of(p.k, key), acc);
  }
  RLK_UNROLL
  for (int j = 0; j < 2 * kSteps; ++j) {
    RLK_UNROLL
    for (int i = 0; i < 4; ++i) {
      const int row = sum_row(i);
      const int x = 8 * j + sum_column(i);
      if (row >= tile.num_rows || x >= p.d) continue;
      store(p.dq(tile.begin + position_of(row), head_of(row), x), p.c2 * (acc[j][i] + 0.0f));
    }
  }
}

// One part of dk and dv of 16 keys of a KV head: a chain over its heads and their queries.
template <int kSteps>
RLK_KERNEL(32)
key_gradient_any_kernel(Problem p, std::int64_t kv_heads) {
  const SequenceTile tile = find_tile(p.tiles, block_x());
  if (tile.num_rows == 0) return;
  const std::int64_t kv_head = block_y();
  const std::int64_t part = block_z();
  const std::int64_t length = tile.end - tile.begin;
  const auto row_of = [&](const Ref<const bf16>& from) {
    return [&, from](int row, int x) {
      return row < tile.num_rows ? from(tile.begin + tile.first + row, kv_head, x) : bf16{};
    };
  };
  std::uint32_t k[kSteps][4], v[kSteps][4];
  load_rows(p.d, row_of(p.k), k);
  load_rows(p.d, row_of(p.v), v);

  float dk[2 * kSteps][4] = {};
  float dv[2 * kSteps][4] = {};
  const std::int64_t first_head = kv_head * p.group + part * p.group / p.parts.parts;
  const std::int64_t end_head = kv_head * p.group + (part + 1) * p.group / p.parts.parts;
  for (std::int64_t head = first_head; head < end_head; ++head) {
    // Queries before the tile's group see none of its keys: zeros, which change nothing.
    for (std::int64_t query = tile.first; query < length; query += 16) {
      const auto column_of = [&](const Ref<const bf16>& from, std::int64_t at) {
        return [&, from, at](int column, int x) {
          return at + column < length ? from(tile.begin + at + column, head, x) : bf16{};
        };
      };
      bf16 weights_p[2][4], weights_ds[2][4];
      for (int half = 0; half < 2; ++half) {
        const std::int64_t at = query + 8 * half;
        float s[4], dp[4];
        dot_products(k, p.d, column_of(p.q, at), s);
        dot_products(v, p.d, column_of(p.dy, at), dp);
        for (int i = 0; i < 4; ++i) {
          const std::int64_t column = at + sum_column(i);
          weights_p[half][i] = weights_ds[half][i] = bf16{};
          if (sum_row(i) >= tile.num_rows || column >= length || column < tile.first + sum_row(i)) {
            continue;
          }
          set_pair(p, s[i], dp[i], tile.begin + column, head, &weights_p[half][i],
                   &weights_ds[half][i]);
        }
      }
      std::uint32_t a[4];
      a_of_tiles(weights_ds, a);
      add_weighted(a, p.d, column_of(p.q, query), dk);
      a_of_tiles(weights_p, a);
      add_weighted(a, p.d, column_of(p.dy, query), dv);
    }
  }
  RLK_UNROLL
  for (int j = 0; j < 2 * kSteps; ++j) {
    RLK_UNROLL
    for (int i = 0; i < 4; ++i) {
      const int row = sum_row(i);
      const int x = 8 * j + sum_column(i);
      if (row >= tile.num_rows || x >= p.d) continue;
      const std::int64_t token = tile.begin + tile.first + row;
      const std::int64_t at = ((token * kv_heads + kv_head) * p.parts.parts + part) * p.d + x;
      p.parts.dk[at] = dk[j][i];
      p.parts.dv[at] = dv[j][i];
    }
  }
}

template <int kSteps>
void run(Exec& exec, Problem p, std::int64_t num_tokens, std::int64_t kv_heads) {
  p.tiles.rows_per_token = p.group;
  p.tiles.size = kRows;
  launch(exec, {p.tiles.bound(num_tokens), kv_heads}, 32, 0, query_gradient_any_kernel<kSteps>, p);
  p.tiles.rows_per_token = 1;
  launch(exec, {p.tiles.bound(num_tokens), kv_heads, p.parts.parts}, 32, 0,
         key_gradient_any_kernel<kSteps>, p, kv_heads);
}

}  // namespace

void attention_backward(Exec& exec, const AttentionBackwardArgs& args) {
  if (attention_gradients(exec, args)) return;
  const std::int64_t num_tokens = args.q.shape(0), heads = args.q.shape(1), d = args.q.shape(2);
  const std::int64_t kv_heads = args.k.shape(1);
  device::Workspace::Frame frame(exec.gpu->workspace());
  float* const d_sum = frame.take<float>(num_tokens * heads);
  attention_d_sum<bf16>(exec, args, d_sum);
  const std::int64_t parts = GradientParts::count(exec, kv_heads);
  const Problem p{ref<bf16>(args.dq),
                  ref<bf16>(args.dk),
                  ref<bf16>(args.dv),
                  ref<bf16>(args.dy),
                  ref<bf16>(args.q),
                  ref<bf16>(args.k),
                  ref<bf16>(args.v),
                  ref<float>(args.lse),
                  {ref<std::int32_t>(args.cu_seqlens), args.cu_seqlens.shape(0) - 1, 0, 0},
                  d_sum,
                  {frame.take<float>(num_tokens * kv_heads * parts * d),
                   frame.take<float>(num_tokens * kv_heads * parts * d), parts},
                  heads,
                  heads / kv_heads,
                  static_cast<int>(d),
                  reference::log2e_over_sqrt(d),
                  reference::one_over_sqrt(d)};
  with_head_dim(d, [&]<int kSteps>() { run<kSteps>(exec, p, num_tokens, kv_heads); });
  merge_parts(exec, args, p.parts, p.c2);
}

}  // namespace rlk::gpu::sm90
