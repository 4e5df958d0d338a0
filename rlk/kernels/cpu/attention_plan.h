// How the driver of attention cuts a call into tasks. A plan: no bit depends on it.
#pragma once

#include <cstdint>

#include "rlk/core/workspace.h"
#include "rlk/kernels/attention.h"
#include "rlk/kernels/exec.h"

namespace rlk::cpu {

// The queries of one tile: rows [token, token + queries) of q, the first at `position`, and the
// KV heads [first_head, last_head).
struct Queries {
  std::int64_t tile;
  std::int64_t sequence;
  std::int64_t token;
  std::int64_t position;
  std::int64_t queries;
  std::int64_t first_head;
  std::int64_t last_head;

  std::int64_t end() const { return position + queries; }
  std::int64_t heads() const { return last_head - first_head; }
};

class AttentionPlan {
 public:
  // Reports queries at a negative position: they see nothing and belong to no tile. What the plan
  // holds lives as long as `frame`.
  AttentionPlan(Exec& exec, const AttentionArgs& args, Workspace::Frame& frame);

  std::int64_t group;  // query heads per KV head
  std::int64_t kv_heads;
  int d;
  std::int64_t kv_block;
  std::int64_t kv_split;
  std::int64_t kv_len_max = 1;
  std::int64_t tile_queries = 1;
  std::int64_t task_heads = 1;  // KV heads that a task works on side by side
  bool by_split = false;        // a task is one split of a tile, not all

  std::int64_t tile_rows() const { return tile_queries * group; }
  std::int64_t tiles() const { return tile_begin_[num_seqs_]; }
  std::int64_t parts() const { return (kv_heads + task_heads - 1) / task_heads; }
  std::int64_t splits_max() const { return (kv_len_max + kv_split - 1) / kv_split; }

  // Of a tile the heads of one part.
  Queries queries(const AttentionArgs& args, std::int64_t tile, std::int64_t part) const;

 private:
  void cut_tiles(Exec& exec, const AttentionArgs& args);

  std::int64_t num_seqs_;
  std::int64_t* tile_begin_;  // [num_seqs + 1], tiles before each sequence
};

}  // namespace rlk::cpu
