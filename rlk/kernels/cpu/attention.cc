#include "rlk/kernels/attention.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "rlk/core/error.h"
#include "rlk/kernels/cpu/attention_isa.h"
#include "rlk/kernels/cpu/table.h"

namespace rlk::cpu {
namespace {

// Rows per tile: enough to pay for widening a block of keys and values, few enough to stay in
// cache.
constexpr std::int64_t kTileRows = 8 * kAttentionRows;

// Tiles of at most so many rows are bound by memory, not by arithmetic.
constexpr std::int64_t kDecodeRows = 8;

std::int64_t padded(std::int64_t n) {
  return (n + kAttentionPad - 1) / kAttentionPad * kAttentionPad;
}

// Leading dimension for rows of n numbers: an odd count of cache lines, so that a column of rows
// spreads over all sets of the cache.
std::int64_t leading(std::int64_t n) { return (padded(n) / kAttentionPad | 1) * kAttentionPad; }

const std::uint16_t* bf16_row(const ConstTensorView& x, std::int64_t row, std::int64_t head) {
  return &x.at<bf16>(row, head)->bits;
}

struct Shape {
  std::int64_t group;  // query heads per KV head
  std::int64_t kv_heads;
  int d;
  std::int64_t kv_block;
  std::int64_t kv_split;
  std::int64_t tile_queries;
  std::int64_t task_heads;  // KV heads that a task works on side by side
  float c;

  std::int64_t tile_rows() const { return tile_queries * group; }
  std::int64_t tasks_per_tile() const { return (kv_heads + task_heads - 1) / task_heads; }
};

// Where the keys and values of a block lie.
struct KvRows {
  const std::uint16_t** k;  // [kv_block]
  const std::uint16_t** v;  // [kv_block]
  int n;
};

// The tile of one KV head.
struct Head {
  AttentionTile tile;
  float* q;
  SoftmaxState total;
  SoftmaxState split;
};

// Scratch of one thread.
struct Scratch {
  Head* heads;  // [task_heads]
  KvRows kv;
  KvRows next_kv;
  int* visible;                  // [tile_rows]
  const std::uint16_t** q_rows;  // [tile_rows]
  std::uint16_t** y_rows;        // [tile_rows]
  float* lse;                    // [tile_rows]
};

SoftmaxState take_state(Workspace::Frame& frame, std::int64_t rows, std::int64_t ld) {
  return {frame.take<float>(rows), frame.take<float>(rows), frame.take<float>(rows * ld)};
}

Scratch take_scratch(Workspace::Frame& frame, const Shape& shape, std::int64_t keys) {
  const std::int64_t rows = padded(shape.tile_rows());
  keys = padded(std::min(keys, shape.kv_block));
  AttentionTile tile{};
  tile.d = shape.d;
  tile.ld = static_cast<int>(leading(shape.d));
  tile.c = shape.c;
  tile.lds = leading(keys);
  tile.kt = frame.take<float>(shape.d * tile.lds);
  tile.v = frame.take<float>(keys * tile.ld);
  tile.s = frame.take<float>(std::min<std::int64_t>(rows, kAttentionRows) * tile.lds);

  Scratch s;
  s.heads = frame.take<Head>(shape.task_heads);
  for (std::int64_t h = 0; h < shape.task_heads; ++h) {
    Head& head = s.heads[h];
    head.tile = tile;
    head.tile.q = head.q = frame.take<float>(rows * tile.ld);
    head.tile.lanes = frame.take<float>(rows * kSoftmaxLanes);
    head.tile.fault = frame.take<int>(rows);
    head.total = take_state(frame, rows, tile.ld);
    head.split = take_state(frame, rows, tile.ld);
  }
  for (KvRows* kv : {&s.kv, &s.next_kv}) {
    kv->k = frame.take<const std::uint16_t*>(keys);
    kv->v = frame.take<const std::uint16_t*>(keys);
  }
  s.visible = frame.take<int>(rows);
  s.q_rows = frame.take<const std::uint16_t*>(rows);
  s.y_rows = frame.take<std::uint16_t*>(rows);
  s.lse = frame.take<float>(rows);
  return s;
}

// The rows of k and v that hold positions [begin, end) of sequence s; none where begin >= end.
void find_kv(const KvView& kv, std::int64_t s, std::int64_t kv_head, std::int64_t begin,
             std::int64_t end, KvRows& rows) {
  rows.n = static_cast<int>(std::max<std::int64_t>(0, end - begin));
  for (std::int64_t i = 0; begin < end;) {
    std::int64_t row;
    std::int64_t run_end = end;
    if (kv.block_table) {
      const std::int64_t page = begin / kv.page_size;
      const std::int64_t in_page = begin % kv.page_size;
      row = *kv.block_table.at<std::int32_t>(s, page) * kv.page_size + in_page;
      run_end = std::min(end, begin - in_page + kv.page_size);
    } else {
      row = *kv.kv_start.at<std::int32_t>(s) + begin;
    }
    const std::uint16_t* k = bf16_row(kv.k, row, kv_head);
    const std::uint16_t* v = bf16_row(kv.v, row, kv_head);
    for (; begin < run_end; ++begin, ++i, k += kv.k.stride(0), v += kv.v.stride(0)) {
      rows.k[i] = k;
      rows.v[i] = v;
    }
  }
}

// The queries of one tile: rows [token, token + queries) of q, the first at `position`, and the
// KV heads [first_head, last_head).
struct Queries {
  std::int64_t sequence;
  std::int64_t token;
  std::int64_t position;
  std::int64_t queries;
  std::int64_t first_head;
  std::int64_t last_head;
};

// Sets scratch.visible to the keys in [begin, begin + n) that each row sees; returns the first row
// that sees one.
int find_visible(const Shape& shape, const Queries& at, std::int64_t begin, std::int64_t n,
                 Scratch& scratch) {
  int first = 0;
  int* visible = scratch.visible;
  for (std::int64_t i = 0; i < at.queries; ++i) {
    const std::int64_t seen = std::clamp<std::int64_t>(at.position + i + 1 - begin, 0, n);
    if (seen == 0) first += static_cast<int>(shape.group);
    visible = std::fill_n(visible, shape.group, static_cast<int>(seen));
  }
  return first;
}

// One block for every head of the task in turn. Meanwhile the next block, all heads of a position
// together as they lie, comes closer: a slice of it during each head.
void run_block(const AttentionArgs& args, const AttentionIsa& isa, const Shape& shape,
               const Queries& at, std::int64_t block, bool first_split, Scratch& scratch) {
  const std::int64_t end = at.position + at.queries;
  const std::int64_t block_end = std::min(block + shape.kv_block, end);
  const std::int64_t next_end = std::min(block_end + shape.kv_block, end);
  const std::int64_t heads = at.last_head - at.first_head;
  const int first = find_visible(shape, at, block, block_end - block, scratch);
  KvRows& next = scratch.next_kv;
  find_kv(args.kv, at.sequence, at.first_head, block_end, next_end, next);
  for (std::int64_t h = 0; h < heads; ++h) {
    KvRows& kv = scratch.kv;
    find_kv(args.kv, at.sequence, at.first_head + h, block, block_end, kv);
    const std::int64_t slice = next.n * h / heads;  // of the keys and values to ask for
    const Head& head = scratch.heads[h];
    isa.add_block(
        head.tile, first_split ? head.total : head.split, first,
        {kv.k, kv.v, kv.n, scratch.visible, next.k + slice, next.v + slice,
         static_cast<int>(next.n * (h + 1) / heads - slice), static_cast<int>(heads * shape.d)});
  }
}

void run_splits(const AttentionArgs& args, const AttentionIsa& isa, const Shape& shape,
                const Queries& at, Scratch& scratch) {
  const std::int64_t heads = at.last_head - at.first_head;
  const std::int64_t end = at.position + at.queries;
  for (std::int64_t split = 0; split < end; split += shape.kv_split) {
    const std::int64_t split_end = std::min(split + shape.kv_split, end);
    const int first = find_visible(shape, at, split, 1, scratch);
    for (std::int64_t h = 0; h < heads; ++h) {
      const Head& head = scratch.heads[h];
      isa.begin_split(head.tile, split == 0 ? head.total : head.split, first);
    }
    for (std::int64_t block = split; block < split_end; block += shape.kv_block) {
      run_block(args, isa, shape, at, block, split == 0, scratch);
    }
    for (std::int64_t h = 0; h < heads; ++h) {
      const Head& head = scratch.heads[h];
      isa.end_split(head.tile, split == 0 ? head.total : head.split, first);
      if (split > 0) isa.fold(head.tile, head.total, head.split, first);
    }
  }
}

void begin_head(const AttentionArgs& args, const AttentionIsa& isa, const Shape& shape,
                const Queries& at, std::int64_t kv_head, Scratch& scratch) {
  Head& head = scratch.heads[kv_head - at.first_head];
  head.tile.rows = static_cast<int>(at.queries * shape.group);
  for (std::int64_t i = 0, r = 0; i < at.queries; ++i) {
    for (std::int64_t h = 0; h < shape.group; ++h, ++r) {
      scratch.q_rows[r] = bf16_row(args.q, at.token + i, kv_head * shape.group + h);
      head.tile.fault[r] = 0;
    }
  }
  isa.widen_rows(head.q, head.tile.ld, scratch.q_rows, head.tile.rows, shape.d);
}

void end_head(Exec& exec, const AttentionArgs& args, const AttentionIsa& isa, const Shape& shape,
              const Queries& at, std::int64_t kv_head, Scratch& scratch) {
  const Head& head = scratch.heads[kv_head - at.first_head];
  const std::int64_t first_head = kv_head * shape.group;
  for (std::int64_t i = 0, r = 0; i < at.queries; ++i) {
    for (std::int64_t h = 0; h < shape.group; ++h, ++r) {
      scratch.y_rows[r] = &args.y.at<bf16>(at.token + i, first_head + h)->bits;
    }
  }
  isa.finish(head.tile, head.total, scratch.y_rows, scratch.lse);
  const std::int64_t heads = shape.group * shape.kv_heads;
  for (std::int64_t i = 0, r = 0; i < at.queries; ++i) {
    for (std::int64_t h = 0; h < shape.group; ++h, ++r) {
      if (head.tile.fault[r]) exec.fault.report((at.token + i) * heads + first_head + h);
      if (args.lse) *args.lse.at<float>(at.token + i, first_head + h) = scratch.lse[r];
    }
  }
}

// tile_begin[s] = tiles before sequence s. Queries at a negative position see nothing: they are
// reported and belong to no tile.
void cut_tiles(Exec& exec, const AttentionArgs& args, std::int64_t tile_queries,
               std::int64_t* tile_begin) {
  tile_begin[0] = 0;
  for (std::int64_t s = 0; s < args.kv_lens.shape(0); ++s) {
    const std::int64_t begin = *args.cu_seqlens_q.at<std::int32_t>(s);
    const std::int64_t queries = *args.cu_seqlens_q.at<std::int32_t>(s + 1) - begin;
    const std::int64_t kv_len = *args.kv_lens.at<std::int32_t>(s);
    if (kv_len < queries) exec.fault.report(begin * args.q.shape(1));
    tile_begin[s + 1] =
        tile_begin[s] + (std::min(queries, kv_len) + tile_queries - 1) / tile_queries;
  }
}

// Chooses the size of tasks: a plan, never a bit. Fills tile_begin.
void plan_tasks(Exec& exec, const AttentionArgs& args, Shape& shape, std::int64_t* tile_begin) {
  const std::int64_t num_seqs = args.kv_lens.shape(0);
  const std::int64_t threads = exec.pool.num_threads();
  std::int64_t queries_max = 1;
  for (std::int64_t s = 0; s < num_seqs; ++s) {
    queries_max = std::max<std::int64_t>(queries_max, *args.cu_seqlens_q.at<std::int32_t>(s + 1) -
                                                          *args.cu_seqlens_q.at<std::int32_t>(s));
  }
  shape.tile_queries =
      std::clamp<std::int64_t>(kTileRows / shape.group, std::int64_t{1}, queries_max);
  cut_tiles(exec, args, shape.tile_queries, tile_begin);
  // Few tiles leave threads without work: smaller ones widen more often, but everywhere at once.
  while (threads > 1 && shape.tile_rows() > kAttentionRows && shape.tile_queries > 1 &&
         tile_begin[num_seqs] * shape.kv_heads < 4 * threads) {
    shape.tile_queries = (shape.tile_queries + 1) / 2;
    cut_tiles(exec, args, shape.tile_queries, tile_begin);
  }
  // Single queries wait for memory: one task reads the rows of all KV heads, which lie together.
  shape.task_heads = shape.tile_rows() <= kDecodeRows ? shape.kv_heads : 1;
  while (shape.task_heads > 1 && tile_begin[num_seqs] * shape.tasks_per_tile() < 2 * threads) {
    shape.task_heads = (shape.task_heads + 1) / 2;
  }
}

Shape make_shape(const Exec& exec, const AttentionArgs& args) {
  const Contract& contract = exec.contract;
  Shape shape{};
  shape.kv_heads = args.kv.k.shape(1);
  shape.group = args.q.shape(1) / shape.kv_heads;
  shape.d = static_cast<int>(args.q.shape(2));
  shape.kv_block = contract.kv_block;
  shape.kv_split = contract.kv_split;
  shape.c = static_cast<float>(0x1.71547652b82fep+0 / std::sqrt(static_cast<double>(shape.d)));
  RLK_ASSERT(shape.d % 2 == 0 && shape.d <= kMaxHeadDim);
  RLK_ASSERT(contract.softmax_lanes == kSoftmaxLanes && contract.profile == Profile::kPortable);
  RLK_ASSERT(args.q.stride(2) == 1 && args.y.stride(2) == 1);
  RLK_ASSERT(args.kv.k.stride(2) == 1 && args.kv.v.stride(2) == 1);
  return shape;
}

// The tile-th tile, heads of the part-th task of it.
Queries find_queries(const AttentionArgs& args, const Shape& shape, const std::int64_t* tile_begin,
                     std::int64_t tile, std::int64_t part) {
  const std::int64_t num_seqs = args.kv_lens.shape(0);
  const std::int64_t s =
      std::upper_bound(tile_begin, tile_begin + num_seqs + 1, tile) - tile_begin - 1;
  const std::int64_t begin = *args.cu_seqlens_q.at<std::int32_t>(s);
  const std::int64_t end = *args.cu_seqlens_q.at<std::int32_t>(s + 1);
  const std::int64_t kv_len = *args.kv_lens.at<std::int32_t>(s);
  const std::int64_t token =
      std::max(begin, end - kv_len) + (tile - tile_begin[s]) * shape.tile_queries;
  const std::int64_t first_head = part * shape.task_heads;
  return {s,
          token,
          kv_len - (end - token),
          std::min(shape.tile_queries, end - token),
          first_head,
          std::min(first_head + shape.task_heads, shape.kv_heads)};
}

void forward(Exec& exec, const AttentionArgs& args, const AttentionIsa& isa) {
  const std::int64_t num_seqs = args.kv_lens.shape(0);
  const std::int64_t threads = exec.pool.num_threads();
  Workspace::Frame frame(exec.workspace);
  std::int64_t* tile_begin = frame.take<std::int64_t>(num_seqs + 1);
  Shape shape = make_shape(exec, args);
  plan_tasks(exec, args, shape, tile_begin);
  std::int64_t kv_len_max = 1;
  for (std::int64_t s = 0; s < num_seqs; ++s) {
    kv_len_max = std::max<std::int64_t>(kv_len_max, *args.kv_lens.at<std::int32_t>(s));
  }
  Scratch* scratch = frame.take<Scratch>(threads);
  for (std::int64_t i = 0; i < threads; ++i) scratch[i] = take_scratch(frame, shape, kv_len_max);

  const std::int64_t parts = shape.tasks_per_tile();
  const std::int64_t tasks = tile_begin[num_seqs] * parts;
  exec.pool.parallel_for(tasks, 1, [&](std::int64_t begin, std::int64_t end, int thread) {
    for (std::int64_t task = begin; task < end; ++task) {
      // Late tiles of a sequence see most keys: they start first, so that none is left at the end.
      const std::int64_t reversed = tasks - 1 - task;
      const Queries at = find_queries(args, shape, tile_begin, reversed / parts, reversed % parts);
      Scratch& s = scratch[thread];
      for (std::int64_t h = at.first_head; h < at.last_head; ++h) {
        begin_head(args, isa, shape, at, h, s);
      }
      run_splits(args, isa, shape, at, s);
      for (std::int64_t h = at.first_head; h < at.last_head; ++h) {
        end_head(exec, args, isa, shape, at, h, s);
      }
    }
  });
}

}  // namespace

const AttentionIsa& attention_isa(Isa isa) {
  switch (isa) {
    case Isa::kAvx2: return kAttentionAvx2;
    case Isa::kAvx512: return kAttentionAvx512;
    default: return kAttentionScalar;
  }
}

template <Isa I>
void attention(Exec& exec, const AttentionArgs& args) {
  forward(exec, args, attention_isa(I));
}

RLK_INSTANTIATE(attention, AttentionArgs);

}  // namespace rlk::cpu
