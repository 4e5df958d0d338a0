// Gradients of attention for head_dim 64 and 128: a kernel for dq, and one for dk and dv, which
// computes the probabilities again. Nothing is added from two sides, so the order of every sum is
// that of its chain, and memory is linear in the tokens.
//
//   dq       a block holds 128 rows (queries by the heads of a KV head) and goes through keys
//   dk, dv   a block holds 128 keys and goes through the queries of its heads
//
// What a block holds are columns of its matrices, 32 a wave, in registers; what it goes through
// comes to shared memory in items of 4096 / kD rows, while the one before is used: by rows for
// scores, by columns for the sums.
#include "rlk/kernels/gpu/attention_backward_parts.h"
#include "rlk/kernels/gpu/cdna/attention.h"
#include "rlk/kernels/gpu/cdna/attention_items.h"

namespace rlk::gpu::cdna {
namespace {

using S = Shape32;

constexpr int kTileRows = 128;
constexpr int kThreads = 256;

// Items of two tensors: half of the threads move each.
template <int kD>
class TwoItems {
 public:
  using It = Item<kD, 4096 / kD>;
  static_assert(It::kThreads == kThreads / 2);

  RLK_DEVICE TwoItems(const Ref<const bf16>& x0, const Ref<const bf16>& x1, std::int64_t begin)
      : half_(uniform(thread() / It::kThreads)) {
    const Ref<const bf16>& x = half_ == 0 ? x0 : x1;
    row_stride_ = x.stride[0];
    head_stride_ = x.stride[1];
    from_ = &x(begin) + (It::row0() * row_stride_ + 8 * It::octet());
  }

  // Rows from `first` on; +0 from `end` on.
  RLK_DEVICE void request(std::int64_t head, std::int64_t first, std::int64_t end) {
    const bf16* at = from_ + (head * head_stride_ + first * row_stride_);
    RLK_UNROLL
    for (int j = 0; j < 4; ++j, at += row_stride_) {
      waiting_[j] = first + It::row0() + j < end ? Octet::read(at) : Octet{};
    }
  }
  RLK_DEVICE void put_rows(char* x0, char* x1) const {
    It::put_rows(half_ == 0 ? x0 : x1, waiting_);
  }
  // Null: not this one.
  RLK_DEVICE void put_columns(char* x0, char* x1) const {
    char* const to = half_ == 0 ? x0 : x1;
    if (to != nullptr) It::put_columns(to, waiting_);
  }

 private:
  const int half_;
  const bf16* from_;
  std::int64_t row_stride_, head_stride_;
  Octet waiting_[4];
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

// The column's vector as the right operand of products over d.
template <int kSteps>
RLK_DEVICE void load_column(const bf16* x, Half4 (&to)[kSteps]) {
  RLK_UNROLL
  for (int i = 0; i < kSteps; ++i) {
    to[i] = Half4{};
    if (x != nullptr) to[i] = *reinterpret_cast<const Half4*>(x + 8 * i + 4 * S::group());
  }
}

// Tile `tile` of both items' rows by columns a and b, over d: one chain each.
template <typename It, int kSteps>
RLK_DEVICE void dot_products(const char* rows_a, const char* rows_b, int tile,
                             const Half4 (&a)[kSteps], const Half4 (&b)[kSteps], Float16& sums_a,
                             Float16& sums_b) {
  const int base = It::row_base();
  load_ahead<kSteps>(
      [&](int i) { return It::rows(i % 2 == 0 ? rows_a : rows_b, base, tile, i / 2); },
      [&](int i, const TwoOperands& x) {
        Float16& sums = i % 2 == 0 ? sums_a : sums_b;
        const Half4* const column = (i % 2 == 0 ? a : b) + i / 2 * 2;
        sums = S::multiply(x.of[0], column[0], i < 2 ? Float16{} : sums);
        sums = S::multiply(x.of[1], column[1], sums);
      });
}

// acc goes on over the rows of tile `tile` of an item: their elements by weights.
template <typename It, int kTiles>
RLK_DEVICE void add_weighted(const char* columns, int tile, const Half4 (&weights)[4],
                             Float16 (&acc)[kTiles]) {
  const int base = It::column_base();
  load_ahead<2 * kTiles>(
      [&](int i) { return It::columns(columns, base, i % kTiles, 2 * tile + i / kTiles); },
      [&](int i, const TwoOperands& x) {
        const Half4* const two = weights + i / kTiles * 2;
        acc[i % kTiles] = S::multiply(x.of[0], two[0], acc[i % kTiles]);
        acc[i % kTiles] = S::multiply(x.of[1], two[1], acc[i % kTiles]);
      });
}

RLK_DEVICE Float4 four_of(const Float16& x, int r) {
  return Float4{x[4 * r], x[4 * r + 1], x[4 * r + 2], x[4 * r + 3]};
}

// write(x, sums): sums of elements x .. x + 3 of the lane's column.
template <int kTiles, typename Write>
RLK_DEVICE void for_each_four(const Float16 (&acc)[kTiles], const Write& write) {
  RLK_UNROLL
  for (int i = 0; i < kTiles; ++i) {
    RLK_UNROLL
    for (int r = 0; r < 4; ++r) write(32 * i + 8 * r + 4 * S::group(), four_of(acc[i], r));
  }
}

RLK_DEVICE void store_four(bf16* to, const Float4& x, float scale) {
  float scaled[4];
  RLK_UNROLL
  for (int i = 0; i < 4; ++i) scaled[i] = scale * (x[i] + 0.0f);
  Pack<bf16, 4>::of(scaled).write(to);
}

template <int kD>
RLK_WAVES_PER_SIMD(2)
RLK_KERNEL(kThreads) query_gradient_kernel(GradientProblem p, std::int64_t num_tiles) {
  using It = typename TwoItems<kD>::It;
  RLK_DYNAMIC_SHARED(shared);
  char* const k_rows = shared;
  char* const v_rows = shared + It::kBytes;
  char* const k_columns = shared + 2 * It::kBytes;
  // Late tiles see most keys: they start first. Neighbouring blocks have different KV heads, so
  // that one of several dies keeps to its own.
  const std::int64_t number = divide(block_x(), p.kv_heads);
  const std::int64_t kv_head = block_x() - number * p.kv_heads;
  const SequenceTile tile = find_tile(p.tiles, num_tiles - 1 - number);
  if (tile.num_rows == 0) return;
  const auto position_of = [&](std::int64_t row) { return divide(tile.first + row, p.group); };
  const std::int64_t row0 = uniform(thread() / kWave) * 32;
  const std::int64_t row = row0 + S::column();
  const bool live = row < tile.num_rows;
  const int position = static_cast<int>(live ? position_of(row) : -1);
  const std::int64_t token = tile.begin + (live ? position : 0);
  const std::int64_t head =
      live ? kv_head * p.group + (tile.first + row - position * p.group) : kv_head * p.group;
  Half4 q[kD / 8], dy[kD / 8];
  load_column(live ? &p.q(token, head) : nullptr, q);
  load_column(live ? &p.dy(token, head) : nullptr, dy);
  const Float4 minus_lse = Float4{} - p.lse(token, head);
  const Float4 d_sum = Float4{} + p.d_of(token, head);

  const int num_keys = static_cast<int>(position_of(tile.num_rows - 1)) + 1;
  const int all_see = static_cast<int>(position_of(row0)) + 1;  // all rows of the wave
  TwoItems<kD> items(p.k, p.v, tile.begin);
  items.request(kv_head, 0, num_keys);
  Float16 dq[kD / 32] = {};
  for (int first = 0; first < num_keys; first += It::kRows) {
    barrier();  // the item before has been used
    items.put_rows(k_rows, v_rows);
    items.put_columns(k_columns, nullptr);
    barrier();
    items.request(kv_head, first + It::kRows, num_keys);
    RLK_UNROLL
    for (int i = 0; i < It::kRows / 32; ++i) {
      Float16 s, dp;
      dot_products<It>(k_rows, v_rows, i, q, dy, s, dp);
      const int key = first + 32 * i;
      const int own_limit = position + 1 - key - 4 * S::group();
      Half4 ds[4];
      const auto set_weights = [&]<bool kMasked>() {
        RLK_UNROLL
        for (int r = 0; r < 4; ++r) {
          ds[r] = pair_weights<kMasked>(four_of(s, r), four_of(dp, r), p.c, minus_lse, d_sum,
                                        [&](int j) { return S::offset(4 * r + j) < own_limit; })
                      .ds;
        }
      };
      if (key + 32 > all_see) {
        set_weights.template operator()<true>();
      } else {
        set_weights.template operator()<false>();
      }
      add_weighted<It>(k_columns, i, ds, dq);
    }
  }
  if (!live) return;
  for_each_four(dq,
                [&](int x, const Float4& sums) { store_four(&p.dq(token, head, x), sums, p.c2); });
}

// One part of dk and dv: a chain over its heads and their queries.
template <int kD>
RLK_WAVES_PER_SIMD(kD == 64 ? 2 : 1)
RLK_KERNEL(kThreads) key_gradient_kernel(GradientProblem p) {
  using It = typename TwoItems<kD>::It;
  RLK_DYNAMIC_SHARED(shared);
  char* const q_rows = shared;
  char* const dy_rows = shared + It::kBytes;
  char* const q_columns = shared + 2 * It::kBytes;
  char* const dy_columns = shared + 3 * It::kBytes;
  float* const stats = reinterpret_cast<float*>(shared + 4 * It::kBytes);  // [-lse, D][kRows]
  const std::int64_t number = divide(block_x(), p.kv_heads);
  const std::int64_t kv_head = block_x() - number * p.kv_heads;
  const std::int64_t part = block_y();
  const SequenceTile tile = find_tile(p.tiles, number);
  if (tile.num_rows == 0) return;
  const int length = static_cast<int>(tile.end - tile.begin);
  const int tile_first = static_cast<int>(tile.first);
  const int key0 = tile_first + uniform(thread() / kWave) * 32;  // of the wave
  const int key = key0 + S::column();
  const bool live = key < tile.first + tile.num_rows;
  const std::int64_t token = tile.begin + key;
  Half4 k[kD / 8], v[kD / 8];
  load_column(live ? &p.k(token, kv_head) : nullptr, k);
  load_column(live ? &p.v(token, kv_head) : nullptr, v);

  TwoItems<kD> items(p.q, p.dy, tile.begin);
  float waiting_stat = 0.0f;
  const auto request = [&](std::int64_t head, int first) {
    items.request(head, first, length);
    if (thread() >= 2 * It::kRows) return;
    const int query = first + thread() % It::kRows;
    waiting_stat = 0.0f;
    if (query < length) {
      waiting_stat = thread() < It::kRows ? -p.lse(tile.begin + query, head)
                                          : p.d_of(tile.begin + query, head);
    }
  };
  Float16 dk[kD / 32] = {};
  Float16 dv[kD / 32] = {};
  const std::int64_t end_head = p.first_head(kv_head, part + 1);
  std::int64_t head = p.first_head(kv_head, part);
  if (head < end_head) request(head, tile_first);
  for (; head < end_head; ++head) {
    // Queries before the tile see none of its keys: zeros, which change nothing.
    for (int first = tile_first; first < length; first += It::kRows) {
      barrier();  // the item before has been used
      items.put_rows(q_rows, dy_rows);
      items.put_columns(q_columns, dy_columns);
      if (thread() < 2 * It::kRows) stats[thread()] = waiting_stat;
      barrier();
      const bool same_head = first + It::kRows < length;
      if (same_head || head + 1 < end_head) {
        request(same_head ? head : head + 1, same_head ? first + It::kRows : tile_first);
      }
      RLK_UNROLL
      for (int i = 0; i < It::kRows / 32; ++i) {
        Float16 s, dp;
        dot_products<It>(q_rows, dy_rows, i, k, v, s, dp);
        const int query = first + 32 * i;
        const int own_key = key - query - 4 * S::group();
        Half4 weights_p[4], weights_ds[4];
        const auto set_weights = [&]<bool kMasked>() {
          RLK_UNROLL
          for (int r = 0; r < 4; ++r) {
            const Float4* const of_row =
                reinterpret_cast<const Float4*>(stats + 32 * i + 8 * r + 4 * S::group());
            const PairWeights w = pair_weights<kMasked>(
                four_of(s, r), four_of(dp, r), p.c, of_row[0], of_row[It::kRows / 4],
                [&](int j) { return S::offset(4 * r + j) >= own_key; });
            weights_p[r] = w.p;
            weights_ds[r] = w.ds;
          }
        };
        if (query < key0 + 31) {
          set_weights.template operator()<true>();
        } else {
          set_weights.template operator()<false>();
        }
        add_weighted<It>(q_columns, i, weights_ds, dk);
        add_weighted<It>(dy_columns, i, weights_p, dv);
      }
    }
  }
  if (!live) return;
  if (p.parts.parts == 1) {
    for_each_four(
        dk, [&](int x, const Float4& sums) { store_four(&p.dk(token, kv_head, x), sums, p.c2); });
    for_each_four(
        dv, [&](int x, const Float4& sums) { store_four(&p.dv(token, kv_head, x), sums, 1.0f); });
    return;
  }
  const std::int64_t at = ((token * p.kv_heads + kv_head) * p.parts.parts + part) * kD;
  for_each_four(dk, [&](int x, const Float4& sums) {
    *reinterpret_cast<Float4*>(p.parts.dk + at + x) = sums;
  });
  for_each_four(dv, [&](int x, const Float4& sums) {
    *reinterpret_cast<Float4*>(p.parts.dv + at + x) = sums;
  });
}

template <int kD>
void run(Exec& exec, GradientProblem p, std::int64_t num_tokens) {
  using It = typename TwoItems<kD>::It;
  p.tiles.size = kTileRows;
  p.tiles.rows_per_token = p.group;
  const std::int64_t num_tiles = p.tiles.bound(num_tokens);
  launch(exec, {num_tiles * p.kv_heads}, kThreads, 3 * It::kBytes, query_gradient_kernel<kD>, p,
         num_tiles);
  p.tiles.rows_per_token = 1;
  launch(exec, {p.tiles.bound(num_tokens) * p.kv_heads, p.parts.parts}, kThreads,
         4 * It::kBytes + 2 * It::kRows * sizeof(float), key_gradient_kernel<kD>, p);
}

}  // namespace

bool attention_backward_tiles(Exec& exec, const AttentionBackwardArgs& args, const float* d_sum) {
  const std::int64_t num_tokens = args.q.shape(0), d = args.q.shape(2);
  const bool fits = (d == 64 || d == 128) && packs<8>(args.q) && packs<8>(args.k) &&
                    packs<8>(args.v) && packs<8>(args.dy) && packs<4>(args.dq) &&
                    packs<4>(args.dk) && packs<4>(args.dv);
  if (!fits) return false;
  GradientProblem p = GradientProblem::of(args, d_sum);
  p.parts.parts = GradientParts::count(exec, p.kv_heads);
  device::Workspace::Frame frame(exec.gpu->workspace());
  if (p.parts.parts > 1) {
    p.parts.dk = frame.take<float>(num_tokens * p.kv_heads * p.parts.parts * d);
    p.parts.dv = frame.take<float>(num_tokens * p.kv_heads * p.parts.parts * d);
  }
  d == 64 ? run<64>(exec, p, num_tokens) : run<128>(exec, p, num_tokens);
  if (p.parts.parts > 1) merge_parts(exec, args, p.parts, p.c2);
  return true;
}

}  // namespace rlk::gpu::cdna
