// Gradients of attention: the numbers of each query, then dq, then dk and dv.
#include "rlk/kernels/gpu/lanes.h"
#include "rlk/kernels/gpu/sm90/attention.h"
#include "rlk/kernels/gpu/sm90/attention_backward_tiles.h"
#include "rlk/kernels/gpu/sm90/kv_rows.h"

namespace rlk::gpu::sm90 {
namespace {

constexpr int kStatThreads = 256;

// -lse and D of a tile of queries and a head. D is a lane sum, and no row is longer than the lanes
// are many: each lane is one product, kPack of them a thread.
template <int kD>
RLK_KERNEL(kStatThreads)
query_stats_kernel(QueryStats stats, Ref<const bf16> dy, Ref<const bf16> y, Ref<const float> lse) {
  constexpr int kPack = 8;
  constexpr int kParts = kD / kPack;  // threads of a row
  constexpr int kRows = kStatThreads / kParts;
  const SequenceTile tile = find_tile(stats.tiles, block_x());
  const int part = thread() % kParts;
  Pack<bf16, kPack> held[2][kStatQueries / kRows];
  RLK_UNROLL
  for (int i = 0; i < kStatQueries / kRows; ++i) {
    const int row = thread() / kParts + i * kRows;
    if (row >= tile.num_rows) continue;
    const std::int64_t token = tile.begin + tile.first + row;
    held[0][i] = Pack<bf16, kPack>::read(&dy(token, block_y(), part * kPack));
    held[1][i] = Pack<bf16, kPack>::read(&y(token, block_y(), part * kPack));
  }
  RLK_UNROLL
  for (int i = 0; i < kStatQueries / kRows; ++i) {
    const int row = thread() / kParts + i * kRows;
    float a[kPack] = {}, b[kPack] = {};
    if (row < tile.num_rows) {
      held[0][i].get(a);
      held[1][i].get(b);
    }
    RLK_UNROLL
    for (int j = 0; j < kPack; ++j) a[j] = numerics::fma(a[j], b[j], 0.0f);
    RLK_UNROLL
    for (int step = 1; step < kPack; step *= 2) {
      RLK_UNROLL
      for (int j = 0; j < kPack; j += 2 * step) a[j] = a[j] + a[j + step];
    }
    float sum = a[0];
    RLK_UNROLL
    for (int mask = 1; mask < kParts; mask *= 2) sum = sum + shuffle_xor(sum, mask);
    if (row >= tile.num_rows || part != 0) continue;
    float* const to = stats.of(block_y(), tile.sequence, tile.first / kStatQueries) + row;
    to[0] = -lse(tile.begin + tile.first + row, block_y());
    to[kStatQueries] = sum + 0.0f;
  }
}

}  // namespace

bool attention_backward_tiles(Exec& exec, const AttentionBackwardArgs& args) {
  constexpr std::int64_t kMaxTiles = 65536;  // of 128 tokens, in a grid
  const std::int64_t num_tokens = args.q.shape(0), heads = args.q.shape(1), d = args.q.shape(2);
  const TileMap tiles{ref<std::int32_t>(args.cu_seqlens), args.cu_seqlens.shape(0) - 1, 1,
                      kStatQueries};
  const bool fits = (d == 64 || d == 128) && exec.contract.norm_lanes >= d && num_tokens > 0 &&
                    num_tokens / 128 + tiles.num_seqs < kMaxTiles && heads < 65536 &&
                    heads_copyable(args.q) && heads_copyable(args.dy) && heads_copyable(args.k) &&
                    heads_copyable(args.v) && heads_copyable(args.y) && packs<2>(args.dq) &&
                    packs<2>(args.dk) && packs<2>(args.dv);
  if (!fits) return false;
  const std::int64_t num_tiles = tiles.bound(num_tokens);
  device::Workspace::Frame frame(exec.gpu->workspace());
  const QueryStats stats{frame.take<float>(heads * num_tiles * 2 * kStatQueries), tiles, num_tiles};
  const auto run_stats = [&](auto kernel) {
    launch(exec, {num_tiles, heads}, kStatThreads, 0, kernel, stats, ref<bf16>(args.dy),
           ref<bf16>(args.y), ref<float>(args.lse));
  };
  d == 64 ? run_stats(query_stats_kernel<64>) : run_stats(query_stats_kernel<128>);
  attention_query_gradients(exec, args, stats);
  attention_key_gradients(exec, args, stats);
  return true;
}

}  // namespace rlk::gpu::sm90
