// dk and dv: a block holds 128 keys of one KV head and one part of its heads; one warpgroup feeds
// the copy engine, two hold 64 keys each. Queries come 64 at a time, head after head, rising.
//
//   shared memory   k | v | stages of: q, dy, -lse and D of 64 queries
//   registers       dk and dv (kD / 2 each), scores and their gradients (32 each), both as bf16
//
// Keys are the rows of all products: probabilities and score gradients leave the registers of one
// product for those of the next. While one warpgroup makes them, the other multiplies.
#include "rlk/kernels/gpu/attention_backward_parts.h"
#include "rlk/kernels/gpu/attention_tile.h"
#include "rlk/kernels/gpu/sm90/attention_backward_tiles.h"
#include "rlk/kernels/gpu/sm90/instructions.h"
#include "rlk/kernels/gpu/sm90/kv_rows.h"
#include "rlk/kernels/gpu/sm90/launch.h"
#include "rlk/kernels/reference/softmax_scale.h"

namespace rlk::gpu::sm90 {
namespace {

constexpr int kKeys = 128;              // of a block
constexpr int kQueries = kStatQueries;  // of a step
constexpr int kStages = 4;
constexpr int kThreads = 384;
constexpr int kConsumers = 256;
constexpr int kKeyAtom = kKeys * 128;       // 128 rows of 64 bf16
constexpr int kQueryAtom = kQueries * 128;  // 64 rows of 64 bf16
constexpr int kStatBytes = kQueries * 2 * 4;

template <int kD>
struct Layout {
  static constexpr int kBlock = kD / 64 * kKeyAtom;   // k or v
  static constexpr int kTile = kD / 64 * kQueryAtom;  // q or dy
  static constexpr int kBytes = 2 * kBlock + kStages * (2 * kTile + kStatBytes) + 2048;
};

struct Problem {
  Ref<bf16> dk, dv;
  GradientParts parts;
  QueryStats stats;
  TileMap key_tiles;
  int group;  // heads per KV head
  float c;    // log2(e) / sqrt(d)
  float c2;   // 1 / sqrt(d)
};

// The queries that a block goes through: tiles [first_tile, end_tile) of each head.
struct Walk {
  int first_head, end_head;
  int first_tile, end_tile;

  RLK_DEVICE int steps() const { return (end_head - first_head) * (end_tile - first_tile); }
};

template <int kD>
__global__ void __launch_bounds__(kThreads, 1)
    key_gradient_kernel(const __grid_constant__ CUtensorMap map_q,
                        const __grid_constant__ CUtensorMap map_dy,
                        const __grid_constant__ CUtensorMap map_k,
                        const __grid_constant__ CUtensorMap map_v, const Problem p) {
  using L = Layout<kD>;
  RLK_DYNAMIC_SHARED(shared);
  const std::uint32_t base = swizzle_base(shared);
  const std::uint32_t shared_k = base;
  const std::uint32_t shared_v = shared_k + L::kBlock;
  const std::uint32_t shared_q = shared_v + L::kBlock;
  const std::uint32_t shared_dy = shared_q + kStages * L::kTile;
  const std::uint32_t shared_stats = shared_dy + kStages * L::kTile;
  const std::uint32_t full_keys = shared_stats + kStages * kStatBytes;
  const std::uint32_t full = full_keys + 8;
  const std::uint32_t empty = full + 8 * kStages;

  // Early keys are seen by most queries: they start first.
  const SequenceTile tile = find_tile(p.key_tiles, block_y());
  if (tile.num_rows == 0) return;
  const int num_parts = static_cast<int>(p.parts.parts);
  const int kv_head = static_cast<int>(block_x()) / num_parts;
  const int part = static_cast<int>(block_x()) - kv_head * num_parts;
  const int first_key = static_cast<int>(tile.first);
  const int length = static_cast<int>(tile.end - tile.begin);
  const int token0 = static_cast<int>(tile.begin);
  const Walk walk{kv_head * p.group + part * p.group / num_parts,
                  kv_head * p.group + (part + 1) * p.group / num_parts, first_key / kQueries,
                  (length + kQueries - 1) / kQueries};
  const int num_steps = walk.steps();
  const int warpgroup = warpgroup_index();
  if (thread() == 0) {
    mbarrier_init(full_keys, 1);
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
      mbarrier_expect(full_keys, 2 * L::kBlock);
      for (int x = 0; x < kD; x += 64) {
        const int at = x / 64 * kKeyAtom;
        tma_load(shared_k + at, &map_k, full_keys, x, kv_head, token0 + first_key);
        tma_load(shared_v + at, &map_v, full_keys, x, kv_head, token0 + first_key);
      }
      int i = 0;
      for (int head = walk.first_head; head < walk.end_head; ++head) {
        for (int t = walk.first_tile; t < walk.end_tile; ++t, ++i) {
          const int stage = i % kStages;
          const std::uint32_t bar = full + 8 * stage;
          mbarrier_wait(empty + 8 * stage, i / kStages % 2 ^ 1);
          mbarrier_expect(bar, 2 * L::kTile + kStatBytes);
          for (int x = 0; x < kD; x += 64) {
            const int at = stage * L::kTile + x / 64 * kQueryAtom;
            tma_load(shared_q + at, &map_q, bar, x, head, token0 + t * kQueries);
            tma_load(shared_dy + at, &map_dy, bar, x, head, token0 + t * kQueries);
          }
          bulk_load(shared_stats + stage * kStatBytes, p.stats.of(head, tile.sequence, t),
                    kStatBytes, bar);
        }
      }
    }
    return;
  }

  more_registers<240>();
  const int consumer = warpgroup - 1;
  const int key_row = consumer * 64 + thread() % 128 / 32 * 16 + thread() % 32 / 4;
  const int column = 2 * (thread() % 4);
  const char* const stats =
      shared + (shared_stats - shared_address(shared)) + column * sizeof(float);
  float dk[kD / 2] = {}, dv[kD / 2] = {};
  float s[32], dp[32];
  std::uint32_t terms_p[16], terms_ds[16];

  const auto release = [&](int stage) {
    if (thread() % 32 == 0) mbarrier_arrive(empty + 8 * stage);
  };
  // Scores and the products of dy and v.
  const auto multiply = [&](int stage) {
    wgmma_fence();
    RLK_UNROLL
    for (int x = 0; x < kD; x += 16) {
      const int row = consumer * 64 * 128 + x / 64 * kKeyAtom + x % 64 * 2;
      const int column = stage * L::kTile + x / 64 * kQueryAtom + x % 64 * 2;
      start_or_go_on(x == 0, s, k_major(shared_k + row), k_major(shared_q + column));
    }
    wgmma_commit();
    RLK_UNROLL
    for (int x = 0; x < kD; x += 16) {
      const int row = consumer * 64 * 128 + x / 64 * kKeyAtom + x % 64 * 2;
      const int column = stage * L::kTile + x / 64 * kQueryAtom + x % 64 * 2;
      start_or_go_on(x == 0, dp, k_major(shared_v + row), k_major(shared_dy + column));
    }
    wgmma_commit();
  };
  // sums += terms by 64 rows of q or dy.
  const auto add_weighted = [&](float(&sums)[kD / 2], const std::uint32_t(&terms)[16],
                                std::uint32_t rows) {
    wgmma_fence();
    RLK_UNROLL
    for (int i = 0; i < kQueries / 16; ++i) {
      WgmmaA<kD>::run(sums, terms + 4 * i, i_major(rows + i * 16 * 128, kQueryAtom));
    }
    wgmma_commit();
  };

  mbarrier_wait(full_keys, 0);
  int t = walk.first_tile;
  for (int i = 0; i < num_steps; ++i) {
    const int stage = i % kStages;
    mbarrier_wait(full + 8 * stage, i / kStages % 2);
    const int rows = length - t * kQueries;  // queries of the sequence from this tile on
    if (rows < kQueries) {  // what follows is of another sequence: a weight of zero has to meet +0
      for (int at = thread() % kConsumers * 16; at < L::kTile; at += kConsumers * 16) {
        if (at % kQueryAtom / 128 >= rows) store_zeros(shared_dy + stage * L::kTile + at);
      }
      copy_fence();
      named_barrier_wait(1, kConsumers);
    }
    multiply(stage);
    wgmma_wait<1>();
    // Queries that see the thread's key h: columns [low[h], rows - column).
    const int low[2] = {first_key + key_row - t * kQueries - column,
                        first_key + key_row + 8 - t * kQueries - column};
    const auto visible = [&](int h, int x) { return x >= low[h] && x < rows - column; };
    const auto stat = [&](int which) {
      return [=](int, int n) {
        return *reinterpret_cast<const float2*>(stats + stage * kStatBytes +
                                                (which * kQueries + 8 * n) * 4);
      };
    };
    const bool masked = first_key + consumer * 64 + 63 > t * kQueries || rows < kQueries;
    if (masked) {
      probabilities<true>(s, p.c, stat(0), visible, terms_p);
    } else {
      probabilities<false>(s, p.c, stat(0), visible, terms_p);
    }
    add_weighted(dv, terms_p, shared_dy + stage * L::kTile);
    wgmma_wait<1>();
    if (masked) {
      score_gradients<true>(s, dp, stat(1), visible, terms_ds);
    } else {
      score_gradients<false>(s, dp, stat(1), visible, terms_ds);
    }
    add_weighted(dk, terms_ds, shared_q + stage * L::kTile);
    wgmma_wait<0>();
    release(stage);
    if (++t == walk.end_tile) t = walk.first_tile;
  }

  RLK_UNROLL
  for (int h = 0; h < 2; ++h) {
    const int r = key_row + h * 8;
    if (r >= tile.num_rows) continue;
    const std::int64_t token = tile.begin + first_key + r;
    if (num_parts > 1) {
      const std::int64_t kv_heads = static_cast<std::int64_t>(gridDim.x) / num_parts;
      const std::int64_t at = ((token * kv_heads + kv_head) * num_parts + part) * kD + column;
      RLK_UNROLL
      for (int n = 0; n < kD / 8; ++n) {
        *reinterpret_cast<float2*>(p.parts.dk + at + 8 * n) =
            make_float2(dk[4 * n + 2 * h], dk[4 * n + 2 * h + 1]);
        *reinterpret_cast<float2*>(p.parts.dv + at + 8 * n) =
            make_float2(dv[4 * n + 2 * h], dv[4 * n + 2 * h + 1]);
      }
      continue;
    }
    RLK_UNROLL
    for (int n = 0; n < kD / 8; ++n) {
      store_two(&p.dk(token, kv_head, 8 * n + column), p.c2 * (dk[4 * n + 2 * h] + 0.0f),
                p.c2 * (dk[4 * n + 2 * h + 1] + 0.0f));
      store_two(&p.dv(token, kv_head, 8 * n + column), dv[4 * n + 2 * h] + 0.0f,
                dv[4 * n + 2 * h + 1] + 0.0f);
    }
  }
}

template <int kD>
void run(Exec& exec, const AttentionBackwardArgs& args, const Problem& p) {
  const Grid grid{args.k.shape(1) * p.parts.parts, p.key_tiles.bound(args.k.shape(0))};
  launch_cluster(exec, grid, kThreads, Layout<kD>::kBytes, {}, key_gradient_kernel<kD>,
                 heads_map(args.q, kQueries), heads_map(args.dy, kQueries),
                 heads_map(args.k, kKeys), heads_map(args.v, kKeys), p);
}

}  // namespace

void attention_key_gradients(Exec& exec, const AttentionBackwardArgs& args,
                             const QueryStats& stats) {
  const std::int64_t num_tokens = args.q.shape(0), d = args.q.shape(2);
  const std::int64_t kv_heads = args.k.shape(1);
  const std::int64_t num_parts = GradientParts::count(exec, kv_heads);
  device::Workspace::Frame frame(exec.gpu->workspace());
  GradientParts parts{nullptr, nullptr, num_parts};
  if (num_parts > 1) {
    parts.dk = frame.take<float>(num_tokens * kv_heads * num_parts * d);
    parts.dv = frame.take<float>(num_tokens * kv_heads * num_parts * d);
  }
  const Problem p{ref<bf16>(args.dk),
                  ref<bf16>(args.dv),
                  parts,
                  stats,
                  {ref<std::int32_t>(args.cu_seqlens), args.cu_seqlens.shape(0) - 1, 1, kKeys},
                  static_cast<int>(args.q.shape(1) / kv_heads),
                  reference::log2e_over_sqrt(d),
                  reference::one_over_sqrt(d)};
  d == 64 ? run<64>(exec, args, p) : run<128>(exec, args, p);
  if (num_parts > 1) merge_parts(exec, args, parts, p.c2);
}

}  // namespace rlk::gpu::sm90
