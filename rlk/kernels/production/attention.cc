// Attention as fast engines run it: one query of a sequence (decode) goes through whole rows of
// scores, several queries (prefill, training) through blocks with a running softmax.
#include "rlk/kernels/attention.h"

#include <algorithm>
#include <cmath>

#include "rlk/core/error.h"
#include "rlk/kernels/production/attention_isa.h"
#include "rlk/kernels/production/table.h"

namespace rlk::production {
namespace {

constexpr std::int64_t kTileRows = 2 * kFlashRows;

std::int64_t padded(std::int64_t n) {
  return (n + kAttentionPad - 1) / kAttentionPad * kAttentionPad;
}

const AttentionIsa& attention_isa() {
  return available(Isa::kAvx512) ? kAttentionAvx512
         : available(Isa::kAvx2) ? kAttentionAvx2
                                 : kAttentionScalar;
}

const std::uint16_t* bf16_row(const ConstTensorView& x, std::int64_t row, std::int64_t head) {
  return &x.at<bf16>(row, head)->bits;
}

struct Shape {
  std::int64_t kv_heads;
  std::int64_t group;  // query heads per KV head
  int d;
  float c;
  std::int64_t queries;  // of a tile

  std::int64_t heads() const { return kv_heads * group; }
};

// The queries of one task: one tile, or the single query of a sequence, of one KV head.
struct Task {
  std::int64_t sequence;
  std::int64_t kv_head;
  std::int64_t token;
  std::int64_t position;
  std::int64_t queries;
  bool decode;
};

struct Scratch {
  FlashTile tile;
  float* q;
  int* visible;
  const std::uint16_t** q_rows;
  std::uint16_t** y_rows;
  const std::uint16_t** k;  // [keys]
  const std::uint16_t** v;
  float* scores;  // of decode
};

// keys: the longest sequence that is decoded, at least one block.
Scratch take_scratch(Workspace::Frame& frame, const Shape& shape, std::int64_t keys) {
  const std::int64_t rows = padded(shape.queries * shape.group);
  const std::int64_t ld = padded(shape.d);
  Scratch s;
  s.q = frame.take<float>(rows * ld);
  s.tile.d = shape.d;
  s.tile.ld = static_cast<int>(ld);
  s.tile.c = shape.c;
  s.tile.q = s.q;
  s.tile.m = frame.take<float>(rows);
  s.tile.l = frame.take<float>(rows);
  s.tile.o = frame.take<float>(rows * ld);
  s.tile.kt = frame.take<float>(shape.d * kFlashStride);
  s.tile.v = frame.take<float>(kFlashKeys * ld);
  s.tile.s = frame.take<float>(kFlashRows * kFlashStride);
  s.visible = frame.take<int>(rows);
  s.q_rows = frame.take<const std::uint16_t*>(rows);
  s.y_rows = frame.take<std::uint16_t*>(rows);
  s.k = frame.take<const std::uint16_t*>(keys);
  s.v = frame.take<const std::uint16_t*>(keys);
  s.scores = frame.take<float>(shape.group * padded(keys));
  return s;
}

// Rows of k and v at positions [begin, end).
void find_kv(const KvView& kv, const Task& task, std::int64_t begin, std::int64_t end, Scratch& s) {
  for (std::int64_t i = 0; begin < end;) {
    std::int64_t row;
    std::int64_t run_end = end;
    if (kv.block_table) {
      const std::int64_t in_page = begin % kv.page_size;
      row = *kv.block_table.at<std::int32_t>(task.sequence, begin / kv.page_size) * kv.page_size +
            in_page;
      run_end = std::min(end, begin - in_page + kv.page_size);
    } else {
      row = *kv.kv_start.at<std::int32_t>(task.sequence) + begin;
    }
    const std::uint16_t* k = bf16_row(kv.k, row, task.kv_head);
    const std::uint16_t* v = bf16_row(kv.v, row, task.kv_head);
    for (; begin < run_end; ++begin, ++i, k += kv.k.stride(0), v += kv.v.stride(0)) {
      s.k[i] = k;
      s.v[i] = v;
    }
  }
}

void run_flash(const AttentionArgs& args, const Shape& shape, const Task& task, Scratch& s) {
  const AttentionIsa& isa = attention_isa();
  const int rows = s.tile.rows;
  isa.widen_rows(s.q, s.tile.ld, {s.q_rows, 0}, rows, shape.d);
  std::fill_n(s.tile.m, rows, -HUGE_VALF);
  std::fill_n(s.tile.l, rows, 0.0f);
  std::fill_n(s.tile.o, static_cast<std::int64_t>(rows) * s.tile.ld, 0.0f);
  const std::int64_t end = task.position + task.queries;
  for (std::int64_t block = 0; block < end; block += kFlashKeys) {
    const std::int64_t n = std::min<std::int64_t>(kFlashKeys, end - block);
    find_kv(args.kv, task, block, block + n, s);
    int* visible = s.visible;
    for (std::int64_t i = 0; i < task.queries; ++i) {
      const auto seen = std::clamp<std::int64_t>(task.position + i + 1 - block, 0, n);
      visible = std::fill_n(visible, shape.group, static_cast<int>(seen));
    }
    isa.flash_block(s.tile, {s.k, s.v, static_cast<int>(n), s.visible});
  }
  isa.flash_end(s.tile, s.y_rows);
}

void run_decode(const AttentionArgs& args, const Shape& shape, const Task& task, Scratch& s) {
  const std::int64_t n = task.position + 1;
  find_kv(args.kv, task, 0, n, s);
  DecodeRow row;
  row.heads = static_cast<int>(shape.group);
  row.d = shape.d;
  row.ld = s.tile.ld;
  row.c = shape.c;
  row.q = s.q_rows;
  row.k = s.k;
  row.v = s.v;
  row.n = static_cast<int>(n);
  row.wide_q = s.q;
  row.s = s.scores;
  row.o = s.tile.o;
  row.m = s.tile.m;
  row.l = s.tile.l;
  row.y = s.y_rows;
  attention_isa().decode(row);
}

void run_task(Exec& exec, const AttentionArgs& args, const Shape& shape, const Task& task,
              Scratch& s) {
  const std::int64_t first_head = task.kv_head * shape.group;
  s.tile.rows = static_cast<int>(task.queries * shape.group);
  for (std::int64_t i = 0, r = 0; i < task.queries; ++i) {
    for (std::int64_t h = 0; h < shape.group; ++h, ++r) {
      s.q_rows[r] = bf16_row(args.q, task.token + i, first_head + h);
      s.y_rows[r] = &args.y.at<bf16>(task.token + i, first_head + h)->bits;
    }
  }
  task.decode ? run_decode(args, shape, task, s) : run_flash(args, shape, task, s);
  for (std::int64_t i = 0, r = 0; i < task.queries; ++i) {
    for (std::int64_t h = 0; h < shape.group; ++h, ++r) {
      const float m = s.tile.m[r];
      const float l = s.tile.l[r];
      // A NaN score makes l NaN.
      if (!(std::fabs(m) < 0x1p22f && std::isfinite(l))) {
        exec.fault.report((task.token + i) * shape.heads() + first_head + h);
      }
      if (args.lse) *args.lse.at<float>(task.token + i, first_head + h) = std::log2(l) + m;
    }
  }
}

// Tasks before each sequence, for one KV head. A query without a visible key is reported.
struct Cut {
  std::int64_t* begin;  // [num_seqs + 1]
  std::int64_t decode_keys = kFlashKeys;
};

Cut cut_tasks(Exec& exec, const AttentionArgs& args, const Shape& shape, std::int64_t* begin) {
  Cut cut{begin};
  begin[0] = 0;
  for (std::int64_t s = 0; s < args.kv_lens.shape(0); ++s) {
    const std::int64_t token = *args.cu_seqlens_q.at<std::int32_t>(s);
    const std::int64_t queries = *args.cu_seqlens_q.at<std::int32_t>(s + 1) - token;
    const std::int64_t kv_len = *args.kv_lens.at<std::int32_t>(s);
    if (kv_len < queries) exec.fault.report(token * shape.heads());
    if (queries == 1) cut.decode_keys = std::max(cut.decode_keys, kv_len);
    begin[s + 1] = begin[s] + (std::min(queries, kv_len) + shape.queries - 1) / shape.queries;
  }
  return cut;
}

Task find_task(const AttentionArgs& args, const Shape& shape, const Cut& cut, std::int64_t index) {
  const std::int64_t tile = index / shape.kv_heads;
  const std::int64_t* begin = cut.begin;
  const std::int64_t s =
      std::upper_bound(begin, begin + args.kv_lens.shape(0) + 1, tile) - begin - 1;
  const std::int64_t first = *args.cu_seqlens_q.at<std::int32_t>(s);
  const std::int64_t last = *args.cu_seqlens_q.at<std::int32_t>(s + 1);
  const std::int64_t kv_len = *args.kv_lens.at<std::int32_t>(s);
  const std::int64_t seen = std::max(first, last - kv_len);  // first query with a position
  const std::int64_t token = seen + (tile - cut.begin[s]) * shape.queries;
  return {s,
          index % shape.kv_heads,
          token,
          kv_len - (last - token),
          std::min(shape.queries, last - token),
          last - first == 1};
}

}  // namespace

void attention(Exec& exec, const AttentionArgs& args) {
  if (args.q.dtype == DType::kF32) return cpu_kernels().attention(exec, args);
  Shape shape;
  shape.kv_heads = args.kv.k.shape(1);
  shape.group = args.q.shape(1) / shape.kv_heads;
  shape.d = static_cast<int>(args.q.shape(2));
  shape.c = static_cast<float>(1.4426950408889634 / std::sqrt(static_cast<double>(shape.d)));
  shape.queries = std::max<std::int64_t>(1, kTileRows / shape.group);
  RLK_ASSERT(shape.d % 2 == 0 && shape.d <= kMaxHeadDim);
  RLK_ASSERT(args.q.stride(2) == 1 && args.y.stride(2) == 1);
  RLK_ASSERT(args.kv.k.stride(2) == 1 && args.kv.v.stride(2) == 1);

  const std::int64_t num_seqs = args.kv_lens.shape(0);
  const std::int64_t threads = exec.pool.num_threads();
  Workspace::Frame frame(exec.workspace);
  std::int64_t* begin = frame.take<std::int64_t>(num_seqs + 1);
  Cut cut = cut_tasks(exec, args, shape, begin);
  while (shape.queries > 8 && begin[num_seqs] * shape.kv_heads < 4 * threads) {
    shape.queries /= 2;
    cut = cut_tasks(exec, args, shape, begin);
  }
  Scratch* scratch = frame.take<Scratch>(threads);
  for (std::int64_t i = 0; i < threads; ++i) {
    scratch[i] = take_scratch(frame, shape, cut.decode_keys);
  }
  const std::int64_t tasks = begin[num_seqs] * shape.kv_heads;
  exec.pool.parallel_for(tasks, 1, [&](std::int64_t first, std::int64_t last, int thread) {
    for (std::int64_t i = first; i < last; ++i) {
      // Late tiles of a sequence see most keys: they start first, so that none is left at the end.
      run_task(exec, args, shape, find_task(args, shape, cut, tasks - 1 - i), scratch[thread]);
    }
  });
}

// The tiles of the CPU backend are the fastest there are here; heads are simply added up in order.
void attention_backward(Exec& exec, const AttentionBackwardArgs& args) {
  Contract contract = exec.contract;
  contract.leaves = 1;
  contract.profile = Profile::kPortable;
  Exec plain{exec.pool, exec.workspace, contract, exec.fault};
  cpu_kernels().attention_backward(plain, args);
}

}  // namespace rlk::production
