// dq: a block holds 128 queries of one head; one warpgroup feeds the copy engine, two hold 64
// queries each. Keys come 64 at a time, rising.
//
//   shared memory   q | dy | stages of k and v
//   registers       dq (kD / 2), scores and the products of dy and v (32 each), ds as bf16
#include "rlk/kernels/gpu/attention_tile.h"
#include "rlk/kernels/gpu/sm90/attention_backward_tiles.h"
#include "rlk/kernels/gpu/sm90/instructions.h"
#include "rlk/kernels/gpu/sm90/kv_rows.h"
#include "rlk/kernels/gpu/sm90/launch.h"
#include "rlk/kernels/reference/softmax_scale.h"

namespace rlk::gpu::sm90 {
namespace {

constexpr int kQueries = 128;  // of a block
constexpr int kKeys = 64;      // of a step
constexpr int kStages = 4;
constexpr int kThreads = 384;
constexpr int kConsumers = 256;
constexpr int kQueryAtom = kQueries * 128;  // 128 rows of 64 bf16
constexpr int kKeyAtom = kKeys * 128;       // 64 rows of 64 bf16

template <int kD>
struct Layout {
  static constexpr int kBlock = kD / 64 * kQueryAtom;  // q or dy
  static constexpr int kTile = kD / 64 * kKeyAtom;     // k or v
  static constexpr int kBytes = 2 * kBlock + kStages * 2 * kTile + 2048;
};

struct Problem {
  Ref<bf16> dq;
  QueryStats stats;
  TileMap tiles;
  int group;  // heads per KV head
  float c;    // log2(e) / sqrt(d)
  float c2;   // 1 / sqrt(d)
};

template <int kD>
__global__ void __launch_bounds__(kThreads, 1)
    query_gradient_kernel(const __grid_constant__ CUtensorMap map_q,
                          const __grid_constant__ CUtensorMap map_dy,
                          const __grid_constant__ CUtensorMap map_k,
                          const __grid_constant__ CUtensorMap map_v, const Problem p) {
  using L = Layout<kD>;
  RLK_DYNAMIC_SHARED(shared);
  const std::uint32_t base = swizzle_base(shared);
  const std::uint32_t shared_q = base;
  const std::uint32_t shared_dy = shared_q + L::kBlock;
  const std::uint32_t shared_k = shared_dy + L::kBlock;
  const std::uint32_t shared_v = shared_k + kStages * L::kTile;
  const std::uint32_t full_queries = shared_v + kStages * L::kTile;
  const std::uint32_t full = full_queries + 8;
  const std::uint32_t empty = full + 8 * kStages;

  // Late queries see most keys: they start first.
  const SequenceTile tile = find_tile(p.tiles, gridDim.y - 1 - block_y());
  if (tile.num_rows == 0) return;
  const int head = static_cast<int>(block_x());
  const int kv_head = head / p.group;
  const int first = static_cast<int>(tile.first);
  const int token0 = static_cast<int>(tile.begin);
  const int last = first + static_cast<int>(tile.num_rows) - 1;
  const int warpgroup = warpgroup_index();
  if (thread() == 0) {
    mbarrier_init(full_queries, 1);
    for (int i = 0; i < kStages; ++i) {
      mbarrier_init(full + 8 * i, 1);
      mbarrier_init(empty + 8 * i, kConsumers / 32);
    }
    mbarrier_init_fence();
  }
  barrier();

  if (warpgroup == 0) {
    fewer_registers<24>();
    if (thread() == 0) {
      mbarrier_expect(full_queries, 2 * L::kBlock);
      for (int x = 0; x < kD; x += 64) {
        const int at = x / 64 * kQueryAtom;
        tma_load(shared_q + at, &map_q, full_queries, x, head, token0 + first);
        tma_load(shared_dy + at, &map_dy, full_queries, x, head, token0 + first);
      }
      const int num_steps = last / kKeys + 1;
      for (int j = 0; j < num_steps; ++j) {
        const int stage = j % kStages;
        const std::uint32_t bar = full + 8 * stage;
        mbarrier_wait(empty + 8 * stage, j / kStages % 2 ^ 1);
        mbarrier_expect(bar, 2 * L::kTile);
        for (int x = 0; x < kD; x += 64) {
          const int at = stage * L::kTile + x / 64 * kKeyAtom;
          tma_load(shared_k + at, &map_k, bar, x, kv_head, token0 + j * kKeys);
          tma_load(shared_v + at, &map_v, bar, x, kv_head, token0 + j * kKeys);
        }
      }
    }
    return;
  }

  more_registers<240>();
  const int consumer = warpgroup - 1;
  const int row = consumer * 64 + thread() % 128 / 32 * 16 + thread() % 32 / 4;
  const int column = 2 * (thread() % 4);
  float dq[kD / 2] = {};
  float s[32], dp[32];
  std::uint32_t terms[16];
  float minus_lse[2] = {}, d_sum[2] = {};
  for (int h = 0; h < 2; ++h) {
    if (row + 8 * h >= tile.num_rows) continue;
    const float* const stats =
        p.stats.of(head, tile.sequence, first / kStatQueries + consumer) + row % 64 + 8 * h;
    minus_lse[h] = stats[0];
    d_sum[h] = stats[kStatQueries];
  }
  const auto release = [&](int stage) {
    if (thread() % 32 == 0) mbarrier_arrive(empty + 8 * stage);
  };
  // The 64 queries of a warpgroup see no key of the last steps of the block: they change nothing.
  const int last_row = first + consumer * 64 + 63;
  const int num_steps = (last_row < last ? last_row : last) / kKeys + 1;

  mbarrier_wait(full_queries, 0);
  for (int j = 0; j < num_steps; ++j) {
    const int stage = j % kStages;
    mbarrier_wait(full + 8 * stage, j / kStages % 2);
    wgmma_fence();
    RLK_UNROLL
    for (int x = 0; x < kD; x += 16) {
      const int at_row = consumer * 64 * 128 + x / 64 * kQueryAtom + x % 64 * 2;
      const int at_key = stage * L::kTile + x / 64 * kKeyAtom + x % 64 * 2;
      start_or_go_on(x == 0, s, k_major(shared_q + at_row), k_major(shared_k + at_key));
    }
    wgmma_commit();
    RLK_UNROLL
    for (int x = 0; x < kD; x += 16) {
      const int at_row = consumer * 64 * 128 + x / 64 * kQueryAtom + x % 64 * 2;
      const int at_key = stage * L::kTile + x / 64 * kKeyAtom + x % 64 * 2;
      start_or_go_on(x == 0, dp, k_major(shared_dy + at_row), k_major(shared_v + at_key));
    }
    wgmma_commit();
    wgmma_wait<1>();
    // Keys that row h sees: columns below limit[h].
    const int limit[2] = {first + row + 1 - j * kKeys - column,
                          first + row + 9 - j * kKeys - column};
    const auto visible = [&](int h, int x) { return x < limit[h]; };
    const auto of_row = [](const float(&x)[2]) {
      return [&x](int h, int) { return make_float2(x[h], x[h]); };
    };
    const bool masked = (j + 1) * kKeys > first + consumer * 64 + 1;
    std::uint32_t unused[16];
    if (masked) {
      probabilities<true>(s, p.c, of_row(minus_lse), visible, unused);
    } else {
      probabilities<false>(s, p.c, of_row(minus_lse), visible, unused);
    }
    wgmma_wait<0>();
    if (masked) {
      score_gradients<true>(s, dp, of_row(d_sum), visible, terms);
    } else {
      score_gradients<false>(s, dp, of_row(d_sum), visible, terms);
    }
    wgmma_fence();
    RLK_UNROLL
    for (int i = 0; i < kKeys / 16; ++i) {
      WgmmaA<kD>::run(dq, terms + 4 * i,
                      i_major(shared_k + stage * L::kTile + i * 16 * 128, kKeyAtom));
    }
    wgmma_commit();
    wgmma_wait<0>();
    release(stage);
  }

  RLK_UNROLL
  for (int h = 0; h < 2; ++h) {
    if (row + 8 * h >= tile.num_rows) continue;
    const std::int64_t token = tile.begin + first + row + 8 * h;
    RLK_UNROLL
    for (int n = 0; n < kD / 8; ++n) {
      store_two(&p.dq(token, head, 8 * n + column), p.c2 * (dq[4 * n + 2 * h] + 0.0f),
                p.c2 * (dq[4 * n + 2 * h + 1] + 0.0f));
    }
  }
}

template <int kD>
void run(Exec& exec, const AttentionBackwardArgs& args, const Problem& p) {
  const Grid grid{args.q.shape(1), p.tiles.bound(args.q.shape(0))};
  launch_cluster(exec, grid, kThreads, Layout<kD>::kBytes, {}, query_gradient_kernel<kD>,
                 heads_map(args.q, kQueries), heads_map(args.dy, kQueries),
                 heads_map(args.k, kKeys), heads_map(args.v, kKeys), p);
}

}  // namespace

void attention_query_gradients(Exec& exec, const AttentionBackwardArgs& args,
                               const QueryStats& stats) {
  const std::int64_t d = args.q.shape(2);
  const Problem p{ref<bf16>(args.dq),
                  stats,
                  {ref<std::int32_t>(args.cu_seqlens), args.cu_seqlens.shape(0) - 1, 1, kQueries},
                  static_cast<int>(args.q.shape(1) / args.k.shape(1)),
                  reference::log2e_over_sqrt(d),
                  reference::one_over_sqrt(d)};
  d == 64 ? run<64>(exec, args, p) : run<128>(exec, args, p);
}

}  // namespace rlk::gpu::sm90
