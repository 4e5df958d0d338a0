#include "rlk/kernels/cpu/attention_plan.h"

#include <algorithm>

#include "rlk/core/error.h"
#include "rlk/kernels/cpu/attention_isa.h"

namespace rlk::cpu {
namespace {

// Rows per tile: enough to pay for widening a block of keys and values, few enough to stay in
// cache.
constexpr std::int64_t kTileRows = 8 * kAttentionRows;

std::int64_t first_query(const AttentionArgs& args, std::int64_t s) {
  return *args.cu_seqlens_q.at<std::int32_t>(s);
}

}  // namespace

AttentionPlan::AttentionPlan(Exec& exec, const AttentionArgs& args, Workspace::Frame& frame)
    : group(args.q.shape(1) / args.kv.k.shape(1)),
      kv_heads(args.kv.k.shape(1)),
      d(static_cast<int>(args.q.shape(2))),
      kv_block(exec.contract.kv_block),
      kv_split(exec.contract.kv_split),
      num_seqs_(args.kv_lens.shape(0)),
      tile_begin_(frame.take<std::int64_t>(num_seqs_ + 1)) {
  RLK_ASSERT(d % 2 == 0 && d <= kMaxHeadDim);
  RLK_ASSERT(exec.contract.softmax_lanes == kSoftmaxLanes);
  RLK_ASSERT(args.q.stride(2) == 1 && args.y.stride(2) == 1);
  RLK_ASSERT(args.kv.k.stride(2) == 1 && args.kv.v.stride(2) == 1);
  const std::int64_t threads = exec.pool.num_threads();
  std::int64_t queries_max = 1;
  for (std::int64_t s = 0; s < num_seqs_; ++s) {
    queries_max = std::max(queries_max, first_query(args, s + 1) - first_query(args, s));
    kv_len_max = std::max<std::int64_t>(kv_len_max, *args.kv_lens.at<std::int32_t>(s));
  }
  tile_queries = std::clamp<std::int64_t>(kTileRows / group, std::int64_t{1}, queries_max);
  cut_tiles(exec, args);
  // Few tiles leave threads without work: smaller ones widen more often, but everywhere at once.
  while (threads > 1 && tile_rows() > kAttentionRows && tile_queries > 1 &&
         tiles() * kv_heads < 4 * threads) {
    tile_queries = (tile_queries + 1) / 2;
    cut_tiles(exec, args);
  }
  // Few rows wait for memory: one task reads the rows of all KV heads, which lie together.
  task_heads = tile_rows() <= kFewRows ? kv_heads : 1;
  // A long sequence with few queries has enough splits for all threads.
  by_split = threads > 1 && kv_len_max > kv_split && tiles() * parts() < 4 * threads;
  const std::int64_t splits = by_split ? splits_max() : 1;
  while (task_heads > 1 && tiles() * splits * parts() < 2 * threads) {
    task_heads = (task_heads + 1) / 2;
  }
}

void AttentionPlan::cut_tiles(Exec& exec, const AttentionArgs& args) {
  tile_begin_[0] = 0;
  for (std::int64_t s = 0; s < num_seqs_; ++s) {
    const std::int64_t begin = first_query(args, s);
    const std::int64_t queries = first_query(args, s + 1) - begin;
    const std::int64_t kv_len = *args.kv_lens.at<std::int32_t>(s);
    if (kv_len < queries) exec.fault.report(begin * args.q.shape(1));
    tile_begin_[s + 1] =
        tile_begin_[s] + (std::min(queries, kv_len) + tile_queries - 1) / tile_queries;
  }
}

Queries AttentionPlan::queries(const AttentionArgs& args, std::int64_t tile,
                               std::int64_t part) const {
  const std::int64_t s =
      std::upper_bound(tile_begin_, tile_begin_ + num_seqs_ + 1, tile) - tile_begin_ - 1;
  const std::int64_t begin = first_query(args, s);
  const std::int64_t end = first_query(args, s + 1);
  const std::int64_t kv_len = *args.kv_lens.at<std::int32_t>(s);
  const std::int64_t token = std::max(begin, end - kv_len) + (tile - tile_begin_[s]) * tile_queries;
  const std::int64_t first_head = part * task_heads;
  return {tile,
          s,
          token,
          kv_len - (end - token),
          std::min(tile_queries, end - token),
          first_head,
          std::min(first_head + task_heads, kv_heads)};
}

}  // namespace rlk::cpu
