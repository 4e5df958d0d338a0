#include "rlk/kernels/attention.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "rlk/core/error.h"
#include "rlk/kernels/cpu/attention_isa.h"
#include "rlk/kernels/cpu/table.h"

namespace rlk::cpu {
namespace {

// Rows per tile: enough to pay for widening a block of keys and values, few enough to stay in cache.
constexpr std::int64_t kTileRows = 8 * kAttentionRows;

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
  float c;

  std::int64_t tile_rows() const { return tile_queries * group; }
};

// Where the keys and values of a block lie.
struct KvRows {
  const std::uint16_t** k;  // [kv_block]
  const std::uint16_t** v;  // [kv_block]
  int n;
};

// Scratch of one thread.
struct Scratch {
  AttentionTile tile;
  float* q;
  SoftmaxState total;
  SoftmaxState split;
  float* lse;
  const std::uint16_t** q_rows;  // [tile_rows]
  std::uint16_t** y_rows;        // [tile_rows]
  KvRows kv;
  KvRows next_kv;
  int* visible;                  // [tile_rows]
};

SoftmaxState take_state(Workspace::Frame& frame, std::int64_t rows, std::int64_t ld) {
  return {frame.take<float>(rows), frame.take<float>(rows), frame.take<float>(rows * ld)};
}

Scratch take_scratch(Workspace::Frame& frame, const Shape& shape, std::int64_t keys) {
  const std::int64_t rows = padded(shape.tile_rows());
  const std::int64_t ld = leading(shape.d);
  keys = padded(std::min(keys, shape.kv_block));
  Scratch s;
  s.q = frame.take<float>(rows * ld);
  s.tile.rows = 0;
  s.tile.d = shape.d;
  s.tile.ld = static_cast<int>(ld);
  s.tile.c = shape.c;
  s.tile.q = s.q;
  s.tile.lanes = frame.take<float>(rows * kSoftmaxLanes);
  s.tile.fault = frame.take<int>(rows);
  s.tile.lds = leading(keys);
  s.tile.kt = frame.take<float>(shape.d * s.tile.lds);
  s.tile.v = frame.take<float>(keys * ld);
  s.tile.s = frame.take<float>(std::min<std::int64_t>(rows, kAttentionRows) * s.tile.lds);
  s.total = take_state(frame, rows, ld);
  s.split = take_state(frame, rows, ld);
  s.lse = frame.take<float>(rows);
  s.q_rows = frame.take<const std::uint16_t*>(rows);
  s.y_rows = frame.take<std::uint16_t*>(rows);
  for (KvRows* kv : {&s.kv, &s.next_kv}) {
    kv->k = frame.take<const std::uint16_t*>(keys);
    kv->v = frame.take<const std::uint16_t*>(keys);
  }
  s.visible = frame.take<int>(rows);
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

// The queries of one tile: rows [token, token + queries) of q, the first at `position`.
struct Queries {
  std::int64_t sequence;
  std::int64_t kv_head;
  std::int64_t token;
  std::int64_t position;
  std::int64_t queries;
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

void run_splits(const AttentionArgs& args, const AttentionIsa& isa, const Shape& shape,
                const Queries& at, Scratch& scratch) {
  const AttentionTile& tile = scratch.tile;
  const std::int64_t end = at.position + at.queries;
  const auto find_block = [&](std::int64_t block, KvRows& rows) {
    find_kv(args.kv, at.sequence, at.kv_head, block, std::min(block + shape.kv_block, end), rows);
  };
  find_block(0, scratch.next_kv);
  for (std::int64_t split = 0; split < end; split += shape.kv_split) {
    const std::int64_t split_end = std::min(split + shape.kv_split, end);
    const SoftmaxState& state = split == 0 ? scratch.total : scratch.split;
    const int split_first = find_visible(shape, at, split, 1, scratch);
    isa.begin_split(tile, state, split_first);
    for (std::int64_t block = split; block < split_end; block += shape.kv_block) {
      std::swap(scratch.kv, scratch.next_kv);
      find_block(block + shape.kv_block, scratch.next_kv);
      const KvRows& kv = scratch.kv;
      const int first = find_visible(shape, at, block, kv.n, scratch);
      isa.add_block(tile, state, first, {kv.k, kv.v, kv.n, scratch.visible, scratch.next_kv.k,
                                         scratch.next_kv.n});
    }
    isa.end_split(tile, state, split_first);
    if (split > 0) isa.fold(tile, scratch.total, scratch.split, split_first);
  }
}

void run_tile(Exec& exec, const AttentionArgs& args, const AttentionIsa& isa, const Shape& shape,
              const Queries& at, Scratch& scratch) {
  scratch.tile.rows = static_cast<int>(at.queries * shape.group);
  const std::int64_t first_head = at.kv_head * shape.group;
  for (std::int64_t i = 0, r = 0; i < at.queries; ++i) {
    for (std::int64_t h = 0; h < shape.group; ++h, ++r) {
      scratch.q_rows[r] = bf16_row(args.q, at.token + i, first_head + h);
      scratch.y_rows[r] = &args.y.at<bf16>(at.token + i, first_head + h)->bits;
      scratch.tile.fault[r] = 0;
    }
  }
  isa.widen_rows(scratch.q, scratch.tile.ld, scratch.q_rows, scratch.tile.rows, shape.d);
  run_splits(args, isa, shape, at, scratch);
  isa.finish(scratch.tile, scratch.total, scratch.y_rows, scratch.lse);

  const std::int64_t heads = shape.group * shape.kv_heads;
  for (std::int64_t i = 0, r = 0; i < at.queries; ++i) {
    for (std::int64_t h = 0; h < shape.group; ++h, ++r) {
      if (scratch.tile.fault[r]) exec.fault.report((at.token + i) * heads + first_head + h);
      if (args.lse) *args.lse.at<float>(at.token + i, first_head + h) = scratch.lse[r];
    }
  }
}

// tile_begin[s] = tiles before sequence s. Returns the longest kv_len. Queries at a negative
// position see nothing: they are reported and belong to no tile.
std::int64_t cut_tiles(Exec& exec, const AttentionArgs& args, std::int64_t tile_queries,
                       std::int64_t* tile_begin) {
  const std::int64_t heads = args.q.shape(1);
  std::int64_t kv_len_max = 1;
  tile_begin[0] = 0;
  for (std::int64_t s = 0; s < args.kv_lens.shape(0); ++s) {
    const std::int64_t begin = *args.cu_seqlens_q.at<std::int32_t>(s);
    const std::int64_t queries = *args.cu_seqlens_q.at<std::int32_t>(s + 1) - begin;
    const std::int64_t kv_len = *args.kv_lens.at<std::int32_t>(s);
    if (kv_len < queries) exec.fault.report(begin * heads);
    kv_len_max = std::max(kv_len_max, kv_len);
    tile_begin[s + 1] =
        tile_begin[s] + (std::min(queries, kv_len) + tile_queries - 1) / tile_queries;
  }
  return kv_len_max;
}

void forward(Exec& exec, const AttentionArgs& args, const AttentionIsa& isa) {
  const Contract& contract = exec.contract;
  Shape shape;
  shape.kv_heads = args.kv.k.shape(1);
  shape.group = args.q.shape(1) / shape.kv_heads;
  shape.d = static_cast<int>(args.q.shape(2));
  shape.kv_block = contract.kv_block;
  shape.kv_split = contract.kv_split;
  shape.tile_queries = std::max<std::int64_t>(1, kTileRows / shape.group);
  shape.c = static_cast<float>(0x1.71547652b82fep+0 / std::sqrt(static_cast<double>(shape.d)));
  RLK_ASSERT(shape.d % 2 == 0 && shape.d <= kMaxHeadDim);
  RLK_ASSERT(contract.softmax_lanes == kSoftmaxLanes && contract.profile == Profile::kPortable);
  RLK_ASSERT(args.q.stride(2) == 1 && args.y.stride(2) == 1);
  RLK_ASSERT(args.kv.k.stride(2) == 1 && args.kv.v.stride(2) == 1);

  const std::int64_t num_seqs = args.kv_lens.shape(0);
  Workspace::Frame frame(exec.workspace);
  std::int64_t* tile_begin = frame.take<std::int64_t>(num_seqs + 1);
  std::int64_t kv_len_max = cut_tiles(exec, args, shape.tile_queries, tile_begin);
  // Few tiles leave threads without work: smaller ones widen more often, but everywhere at once.
  const std::int64_t threads = exec.pool.num_threads();
  while (shape.tile_rows() > kAttentionRows && shape.tile_queries > 1 &&
         tile_begin[num_seqs] * shape.kv_heads < 4 * threads) {
    shape.tile_queries = (shape.tile_queries + 1) / 2;
    kv_len_max = cut_tiles(exec, args, shape.tile_queries, tile_begin);
  }

  Scratch* scratch = frame.take<Scratch>(threads);
  for (std::int64_t i = 0; i < threads; ++i) scratch[i] = take_scratch(frame, shape, kv_len_max);

  const std::int64_t tasks = tile_begin[num_seqs] * shape.kv_heads;
  exec.pool.parallel_for(tasks, 1, [&](std::int64_t begin, std::int64_t end, int thread) {
    for (std::int64_t task = begin; task < end; ++task) {
      // Late tiles of a sequence see most keys: they start first, so that none is left at the end.
      const std::int64_t reversed = tasks - 1 - task;
      const std::int64_t tile = reversed / shape.kv_heads;
      const std::int64_t s = std::upper_bound(tile_begin, tile_begin + num_seqs + 1, tile) -
                             tile_begin - 1;
      const std::int64_t first = *args.cu_seqlens_q.at<std::int32_t>(s);
      const std::int64_t last = *args.cu_seqlens_q.at<std::int32_t>(s + 1);
      const std::int64_t kv_len = *args.kv_lens.at<std::int32_t>(s);
      const std::int64_t seen = std::max(first, last - kv_len);  // first query with a position
      const std::int64_t token = seen + (tile - tile_begin[s]) * shape.tile_queries;
      const Queries at{s, reversed % shape.kv_heads, token, kv_len - (last - token),
                       std::min(shape.tile_queries, last - token)};
      run_tile(exec, args, isa, shape, at, scratch[thread]);
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
