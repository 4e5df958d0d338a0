// What the two kernels of decoding share.
#pragma once

#include "rlk/kernels/gpu/attention_tile.h"
#include "rlk/kernels/gpu/kv_rows.h"

namespace rlk::gpu::sm90 {

// Queries against the splits of their keys.
struct DecodeProblem {
  static constexpr int kRows = 16;  // of a tile: tokens by the heads of a KV head

  Ref<bf16> y;
  Ref<float> lse;
  Ref<const bf16> q;
  Ref<const std::int32_t> kv_lens;
  KvRows kv;
  TileMap tiles;
  std::int64_t num_kv_rows;
  std::int64_t heads;
  std::int64_t group;
  int kv_heads;
  int num_tiles;
  int max_splits;
  int box;
  int kv_split;
  float c;
  float* partial;  // [splits, tokens * heads, kD + 2]: m, l, o
  std::int64_t num_rows;
  unsigned long long* fault;

  RLK_DEVICE float* partial_of(std::int64_t split, std::int64_t row, int d) const {
    return partial + (split * num_rows + row) * (d + 2);
  }
};

// The token, head and visible keys of row r of a tile.
struct Query {
  std::int64_t token;
  std::int64_t head;
  int visible;  // 0: no such row, or one without a key
};
RLK_DEVICE Query query_of(const DecodeProblem& p, const SequenceTile& tile, std::int64_t kv_head,
                          int r) {
  if (r >= tile.num_rows) return {0, 0, 0};
  const std::int64_t token = divide(tile.first + r, p.group);
  const std::int64_t visible = p.kv_lens(tile.sequence) - (tile.end - tile.begin - 1 - token);
  return {tile.begin + token, kv_head * p.group + (tile.first + r - token * p.group),
          visible < 0 ? 0 : static_cast<int>(visible)};
}

// find_tile by a whole warp, which looks at 32 sequences at a time.
RLK_DEVICE SequenceTile find_sequence_tile(const TileMap& map, std::int64_t number) {
  std::int64_t low = 0;
  for (std::int64_t high = map.num_seqs; high - low > 1;) {
    const std::int64_t step = (high - low + 31) / 32;
    const std::int64_t s = low + thread() % 32 * step;
    const unsigned before = __ballot_sync(~0u, s < high && map.number(s) <= number);
    low += (__popc(before) - 1) * step;
    high = low + step < high ? low + step : high;
  }
  return tile_of_sequence(map, low, number);
}

// The second kernel: merges the splits that the kernel before it in the stream has left.
void attention_decode_merge(Exec& exec, const DecodeProblem& p, int d);

}  // namespace rlk::gpu::sm90
