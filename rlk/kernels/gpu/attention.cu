#include "rlk/kernels/attention.h"

#include <algorithm>

#include "rlk/kernels/gpu/attention_tile.h"
#include "rlk/kernels/gpu/elements.h"
#include "rlk/kernels/gpu/kv_rows.h"
#include "rlk/kernels/gpu/table.h"
#include "rlk/kernels/reference/softmax_scale.h"
#include "rlk/numerics/math.h"

namespace rlk::gpu {
namespace {

using numerics::exp2p;

constexpr int kValueSlice = 16;  // keys whose v is in shared memory at a time

// The softmax of some keys of a query: exp2 terms summed to l and o, relative to 2^m.
struct PartialRef {
  float* data;  // [splits, tokens * heads, d + 2]: m, l, o
  std::int64_t rows;
  std::int64_t d;

  RLK_HD float* at(std::int64_t split, std::int64_t row) const {
    return data + (split * rows + row) * (d + 2);
  }
};

template <typename T>
struct Problem {
  Ref<T> y;
  Ref<float> lse;
  Ref<const T> q;
  Ref<const T> k;
  Ref<const T> v;
  Ref<const std::int32_t> block_table;
  Ref<const std::int32_t> kv_start;
  Ref<const std::int32_t> kv_lens;
  TileMap tiles;  // rows are (token, head of the group), tokens first
  std::int64_t page_size;
  std::int64_t heads;
  std::int64_t group;  // heads per KV head
  int d;
  int kv_block;
  std::int64_t kv_split;
  float c;             // log2(e) / sqrt(d)
  PartialRef partial;  // data null: a block does all splits of its rows
  char* scratch;       // per block, where it does not fit into shared memory
  std::int64_t scratch_bytes;
  unsigned long long* fault;

  RLK_DEVICE std::int64_t kv_row(std::int64_t s, std::int64_t position) const {
    if (!block_table) return kv_start(s) + position;
    const std::int64_t page = divide(position, page_size);
    return block_table(s, page) * page_size + (position - page * page_size);
  }
};

// One query of one head, of those a thread has a part of.
struct OwnQuery {
  std::int64_t token;
  std::int64_t head;
  std::int64_t visible;  // keys; 0: there is no such query, or it is an error
};

template <typename T, int kRows, int kColumns>
struct AttentionBlock {
  static constexpr int kQueries = 16 * kRows;
  static constexpr int kSliceFloats = kScoreColumns * (kScoreSlice + 1) >
                                              kValueSlice * 16 * kColumns
                                          ? kScoreColumns*(kScoreSlice + 1)
                                          : kValueSlice * 16 * kColumns;
  static constexpr int kStrideQ = 16 * kColumns + 1;

  const Problem<T>& p;
  SequenceTile tile;
  std::int64_t kv_head;
  std::int64_t max_visible;
  float* q;               // [kQueries][kStrideQ]
  float* slice;           // [kSliceFloats]
  std::int64_t* kv_rows;  // [kv_block], of the block's keys
  float* terms;           // [kQueries][kv_block], scores, then rounded terms
  OwnQuery query[kRows];
  bool in_range[kRows];  // every m' was

  // Of one split.
  float m[kRows];
  float lane[kRows];  // lane x of l
  float o[kRows][kColumns];

  static std::size_t shared_bytes() { return sizeof(float) * (kQueries * kStrideQ + kSliceFloats); }
  static std::size_t scratch_bytes(int kv_block) {
    return static_cast<std::size_t>(kv_block) * (sizeof(std::int64_t) + sizeof(float) * kQueries);
  }

  RLK_DEVICE std::int64_t visible_of(std::int64_t token) const {
    return p.kv_lens(tile.sequence) - (tile.end - 1 - token);
  }

  RLK_DEVICE void load_queries() {
    const std::int64_t last = tile.first + tile.num_rows - 1;
    max_visible = visible_of(tile.begin + divide(last, p.group));
    for (int i = 0; i < kRows; ++i) {
      const std::int64_t r = thread_y() + 16 * i;
      query[i] = {0, 0, 0};
      in_range[i] = true;
      if (r < tile.num_rows) {
        const std::int64_t token = divide(tile.first + r, p.group);
        query[i].head = kv_head * p.group + (tile.first + r - token * p.group);
        query[i].token = tile.begin + token;
        query[i].visible = visible_of(query[i].token);
        if (query[i].visible <= 0) {  // an error, not a zero
          query[i].visible = 0;
          if (thread_x() == 0) report(p.fault, query[i].token * p.heads + query[i].head);
        }
      }
      for (int x = thread_x(); x < p.d; x += 16) {
        q[r * kStrideQ + x] =
            query[i].visible > 0 ? load(p.q(query[i].token, query[i].head, x)) : 0.0f;
      }
    }
    barrier();
  }

  // Keys of the block at `begin` that query i sees, of `count`.
  RLK_DEVICE std::int64_t seen(int i, std::int64_t begin, std::int64_t count) const {
    const std::int64_t n = query[i].visible - begin;
    return n < 0 ? 0 : n < count ? n : count;
  }

  // Goes on with m, o and l through the `count` keys from `begin`, which lie in one block.
  RLK_DEVICE void add_block(std::int64_t begin, int count) {
    for (int j = thread(); j < count; j += kAttentionThreads) {
      kv_rows[j] = p.kv_row(tile.sequence, begin + j);
    }
    barrier();
    for (int j0 = 0; j0 < count; j0 += kScoreColumns) {
      float s[kRows][kScoreColumns / 16];
      dot_products<kRows>(
          q, kStrideQ, p.d, slice,
          [&](int column, int x) {
            return j0 + column < count ? load(p.k(kv_rows[j0 + column], kv_head, x)) : 0.0f;
          },
          s);
      for (int i = 0; i < kRows; ++i) {
        for (int c = 0; c < kScoreColumns / 16; ++c) {
          const int j = j0 + thread_x() + 16 * c;
          if (j < count) terms[(thread_y() + 16 * i) * p.kv_block + j] = s[i][c];
        }
      }
    }
    barrier();

    std::int64_t low[kRows];
    std::int64_t high[kRows];
    for (int i = 0; i < kRows; ++i) {
      const std::int64_t n = seen(i, begin, count);
      low[i] = 0;
      high[i] = n;
      float* const row = terms + (thread_y() + 16 * i) * p.kv_block;
      float max_s = -numerics::kInfinity;
      for (std::int64_t j = thread_x(); j < n; j += 16) max_s = larger(max_s, row[j]);
      max_s = row_max(max_s);
      if (n == 0) continue;
      const float new_m = larger(m[i], p.c * max_s);
      if (!(numerics::abs(new_m) < 0x1p22f)) in_range[i] = false;
      const float a = exp2p(m[i] - new_m);
      m[i] = new_m;
      lane[i] = lane[i] * a;
      for (std::int64_t j = thread_x(); j < n; j += 16) {
        const float e = exp2p(numerics::fma(row[j], p.c, -new_m));
        lane[i] = lane[i] + e;
        row[j] = round_to<T>(e);
      }
      for (int c = 0; c < kColumns; ++c) o[i][c] = o[i][c] * a;
    }
    barrier();
    weighted_sum<kRows, kColumns, kValueSlice>(
        terms, p.kv_block, count, p.d, low, high, slice,
        [&](int j, int x) { return load(p.v(kv_rows[j], kv_head, x)); }, o);
  }

  // m, o and the lanes of l over the visible keys of one split.
  RLK_DEVICE void run_split(std::int64_t begin) {
    for (int i = 0; i < kRows; ++i) {
      m[i] = -numerics::kInfinity;
      lane[i] = 0.0f;
      for (int c = 0; c < kColumns; ++c) o[i][c] = 0.0f;
    }
    const std::int64_t end = begin + p.kv_split < max_visible ? begin + p.kv_split : max_visible;
    for (std::int64_t block = begin; block < end; block += p.kv_block) {
      const std::int64_t count = end - block < p.kv_block ? end - block : p.kv_block;
      add_block(block, static_cast<int>(count));
    }
  }
};

template <typename T, int kRows, int kColumns>
RLK_KERNEL(kAttentionThreads)
attention_kernel(Problem<T> p, bool scratch_is_shared, std::int64_t tile_bound) {
  using Block = AttentionBlock<T, kRows, kColumns>;
  RLK_DYNAMIC_SHARED(shared);
  const SequenceTile tile = find_tile(p.tiles, block_x());
  if (tile.num_rows == 0) return;
  float* const q = reinterpret_cast<float*>(shared);
  float* const slice = q + Block::kQueries * Block::kStrideQ;
  const std::int64_t kv_heads = divide(p.heads, p.group);
  const std::int64_t number = (block_z() * kv_heads + block_y()) * tile_bound + block_x();
  // (The slice is a multiple of 8 bytes long, and q too, as kQueries is even.)
  auto* const kv_rows = reinterpret_cast<std::int64_t*>(
      scratch_is_shared ? reinterpret_cast<char*>(slice + Block::kSliceFloats)
                        : p.scratch + number * p.scratch_bytes);
  float* const terms = reinterpret_cast<float*>(kv_rows + p.kv_block);
  Block block{p, tile, block_y(), 0, q, slice, kv_rows, terms, {}, {}, {}, {}, {}};
  block.load_queries();

  float total_m[kRows] = {};
  float total_l[kRows] = {};
  float total_o[kRows][kColumns] = {};
  const std::int64_t first = block_z() * p.kv_split;
  const std::int64_t end = p.partial.data != nullptr && first + p.kv_split < block.max_visible
                               ? first + p.kv_split
                               : block.max_visible;
  for (std::int64_t begin = first; begin < end; begin += p.kv_split) {
    block.run_split(begin);
    for (int i = 0; i < kRows; ++i) {
      const float l = row_tree(block.lane[i]);
      if (begin >= block.query[i].visible) continue;  // sees no key of this split
      if (begin == first) {
        total_m[i] = block.m[i];
        total_l[i] = l;
        for (int c = 0; c < kColumns; ++c) total_o[i][c] = block.o[i][c];
        continue;
      }
      const MergeWeights w = merge(&total_m[i], &total_l[i], block.m[i], l);
      for (int c = 0; c < kColumns; ++c) {
        total_o[i][c] = numerics::fma(total_o[i][c], w.a1, block.o[i][c] * w.a2);
      }
    }
  }
  for (int i = 0; i < kRows; ++i) {
    const OwnQuery& query = block.query[i];
    if (first >= query.visible) continue;
    const std::int64_t row = query.token * p.heads + query.head;
    float* const partial = p.partial.data != nullptr ? p.partial.at(block_z(), row) : nullptr;
    for (int c = 0; c < kColumns; ++c) {
      const int x = thread_x() + 16 * c;
      if (x >= p.d) continue;
      if (partial != nullptr) {
        partial[2 + x] = total_o[i][c];
      } else {
        store(p.y(query.token, query.head, x), total_o[i][c] / total_l[i] + 0.0f);
      }
    }
    if (thread_x() != 0) continue;
    if (!block.in_range[i]) report(p.fault, row);
    if (partial != nullptr) {
      partial[0] = total_m[i];
      partial[1] = total_l[i];
    } else if (p.lse) {
      p.lse(query.token, query.head) = lse_of(total_l[i], total_m[i]);
    }
  }
}

// The left fold over the splits of one query and head.
template <typename T>
RLK_KERNEL(kAttentionThreads)
merge_splits_kernel(Problem<T> p) {
  const SequenceTile tile = find_tile(p.tiles, block_x());
  const std::int64_t r = block_y();
  if (r >= tile.num_rows) return;
  const std::int64_t token = divide(tile.first + r, p.group);
  const std::int64_t t = tile.begin + token;
  const std::int64_t head = block_z() * p.group + (tile.first + r - token * p.group);
  const std::int64_t visible = p.kv_lens(tile.sequence) - (tile.end - 1 - t);
  if (visible <= 0 || thread() >= p.d) return;
  const std::int64_t row = t * p.heads + head;
  float m = 0.0f;
  float l = 0.0f;
  float o = 0.0f;
  for (std::int64_t split = 0; split * p.kv_split < visible; ++split) {
    const float* const partial = p.partial.at(split, row);
    if (split == 0) {
      m = partial[0];
      l = partial[1];
      o = partial[2 + thread()];
      continue;
    }
    const MergeWeights w = merge(&m, &l, partial[0], partial[1]);
    o = numerics::fma(o, w.a1, partial[2 + thread()] * w.a2);
  }
  store(p.y(t, head, thread()), o / l + 0.0f);
  if (p.lse && thread() == 0) p.lse(t, head) = lse_of(l, m);
}

template <typename T, int kRows, int kColumns>
void run(Exec& exec, const AttentionArgs& args, Problem<T> p, std::int64_t max_splits) {
  using Block = AttentionBlock<T, kRows, kColumns>;
  device::Workspace::Frame frame(exec.gpu->workspace());
  p.tiles.size = Block::kQueries;
  const std::int64_t num_tokens = args.q.shape(0);
  const std::int64_t kv_heads = args.kv.k.shape(1);
  const std::int64_t bound = p.tiles.bound(num_tokens);
  // With few queries the splits are worked on in parallel and merged afterwards.
  constexpr std::int64_t kManyBlocks = 512;
  constexpr std::int64_t kMaxPartialFloats = std::int64_t{1} << 26;
  const std::int64_t partial_floats = max_splits * num_tokens * p.heads * (p.d + 2);
  const bool parallel = max_splits > 1 && max_splits < 65536 && bound * kv_heads < kManyBlocks &&
                        partial_floats <= kMaxPartialFloats;
  if (parallel) p.partial.data = frame.take<float>(partial_floats);
  const Grid grid{bound, kv_heads, parallel ? max_splits : 1};

  constexpr std::size_t kMaxSharedScratch = 20 * 1024;
  std::size_t shared_bytes = Block::shared_bytes();
  p.scratch_bytes = static_cast<std::int64_t>(Block::scratch_bytes(p.kv_block));
  const bool scratch_is_shared = Block::scratch_bytes(p.kv_block) <= kMaxSharedScratch;
  if (scratch_is_shared) {
    shared_bytes += Block::scratch_bytes(p.kv_block);
  } else {
    p.scratch = frame.take<char>(grid.x * grid.y * grid.z * p.scratch_bytes);
  }
  launch(exec, grid, kAttentionThreads, shared_bytes, attention_kernel<T, kRows, kColumns>, p,
         scratch_is_shared, bound);
  if (parallel) {
    launch(exec, {bound, Block::kQueries, kv_heads}, kAttentionThreads, 0, merge_splits_kernel<T>,
           p);
  }
}

}  // namespace

void attention(Exec& exec, const AttentionArgs& args) {
  const Contract& contract = exec.contract;
  RLK_ASSERT(contract.softmax_lanes == 16);
  const std::int64_t heads = args.q.shape(1);
  const std::int64_t kv_heads = args.kv.k.shape(1);
  const std::int64_t d = args.q.shape(2);
  const std::int64_t num_seqs = args.kv_lens.shape(0);
  with_storage(args.q.dtype, [&]<typename T>() {
    Problem<T> p{};
    p.y = ref<T>(args.y);
    p.lse = ref<float>(args.lse);
    p.q = ref<T>(args.q);
    p.k = ref<T>(args.kv.k);
    p.v = ref<T>(args.kv.v);
    p.block_table = ref<std::int32_t>(args.kv.block_table);
    p.kv_start = ref<std::int32_t>(args.kv.kv_start);
    p.kv_lens = ref<std::int32_t>(args.kv_lens);
    p.tiles = {ref<std::int32_t>(args.cu_seqlens_q), num_seqs, heads / kv_heads, 0};
    p.page_size = args.kv.page_size;
    p.heads = heads;
    p.group = heads / kv_heads;
    p.d = static_cast<int>(d);
    p.kv_block = contract.kv_block;
    p.kv_split = contract.kv_split;
    p.c = reference::log2e_over_sqrt(d);
    p.partial = {nullptr, args.q.shape(0) * heads, d};
    p.fault = exec.gpu->fault();
    const std::int64_t max_splits = ceil_div(max_keys(args.kv), p.kv_split);
    with_head_dim(d, [&]<int kColumns>() {
      // Tiles of 32 rows, unless most would stay empty or do not fit into shared memory.
      const bool few = args.q.shape(0) * p.group <= 16 * num_seqs;
      if (few || kColumns > 8) {
        run<T, 1, kColumns>(exec, args, p, max_splits);
      } else {
        run<T, 2, kColumns>(exec, args, p, max_splits);
      }
    });
  });
}

}  // namespace rlk::gpu
