#include <algorithm>
#include <numeric>

#include "rlk/core/error.h"
#include "rlk/kernels/attention.h"
#include "rlk/kernels/cpu/attention_rows.h"
#include "rlk/kernels/cpu/columns.h"
#include "rlk/kernels/cpu/storage.h"
#include "rlk/kernels/cpu/table.h"
#include "rlk/kernels/reference/softmax_scale.h"

namespace rlk::cpu {
namespace {

// A long sequence is cut in ranges of this many queries (for dq) and keys (for dk, dv) when there
// are too few sequences and KV heads for all threads; multiples of the cell sizes.
constexpr std::int64_t kRange = 2 * kGradKeys;
static_assert(kGradQueries == kGradKeys);  // so that no cell starts above the diagonal

struct Shape {
  const numerics::mma::ColumnsIsa* model;
  std::int64_t kv_heads;
  std::int64_t group;  // query heads per KV head
  int d;
  int ld;
  int parts;
  int levels;  // of the neighbour tree over parts
  int norm_lanes;
  float c;
  float c2;
};

// Scratch of one thread, for ranges of up to `keys` keys.
template <typename T>
struct Scratch {
  float* q;     // [kGradQueries, ld]
  float* dy;    // [kGradQueries, ld]
  float* lse;   // [kGradQueries]
  float* dsum;  // [kGradQueries]
  float* p;     // [kGradQueries, kGradStride]
  float* ds;    // [kGradQueries, kGradStride]
  float* dq;    // [kGradQueries, ld]; a range of queries for dq alone
  float* kt;    // [blocks of kGradKeys keys, d, ldk]: a block lies in few pages of memory
  float* vt;    // the same
  float* k;     // [keys, ld]
  float* dk;    // [levels + 1, keys, ld]
  float* dv;    // [levels + 1, keys, ld]
  std::int64_t keys;
  std::int64_t ldk;  // of kt and vt
  const T** rows;    // [keys or kGradQueries]
  T** out_rows;
};

template <typename T>
Scratch<T> take_scratch(Workspace::Frame& frame, const Shape& shape, std::int64_t keys) {
  const std::int64_t queries = std::min<std::int64_t>(kGradQueries, padded(keys));
  Scratch<T> s;
  s.keys = padded(keys);
  s.ldk = leading(std::min<std::int64_t>(keys, kGradKeys));
  const std::int64_t blocks = (keys + kGradKeys - 1) / kGradKeys;
  s.q = frame.take<float>(queries * shape.ld);
  s.dy = frame.take<float>(queries * shape.ld);
  s.lse = frame.take<float>(queries);
  s.dsum = frame.take<float>(queries);
  s.p = frame.take<float>(queries * kGradStride);
  s.ds = frame.take<float>(queries * kGradStride);
  s.dq = frame.take<float>(queries * shape.ld);
  s.kt = frame.take<float>(blocks * shape.d * s.ldk);
  s.vt = frame.take<float>(blocks * shape.d * s.ldk);
  s.k = frame.take<float>(s.keys * shape.ld);
  s.dk = frame.take<float>((shape.levels + 1) * s.keys * shape.ld);
  s.dv = frame.take<float>((shape.levels + 1) * s.keys * shape.ld);
  const std::int64_t rows = std::max(s.keys, queries);
  s.rows = frame.take<const T*>(rows);
  s.out_rows = frame.take<T*>(rows);
  return s;
}

// What a task computes: for one sequence and KV head, dk and dv of the keys [begin, end), dq of the
// queries of the sequence (only with all keys), or both in one pass.
struct Range {
  std::int64_t token;   // first of the sequence
  std::int64_t length;  // of the sequence
  std::int64_t kv_head;
  std::int64_t begin;
  std::int64_t end;
};

template <typename T>
class Task {
 public:
  Task(const AttentionBackwardArgs& args, const AttentionIsa<T>& isa, const Shape& shape,
       Scratch<T>& scratch)
      : args_(args), isa_(isa), shape_(shape), s_(scratch) {}

  // dk and dv of the range's keys; dq of every query too where the range is the whole sequence and
  // `with_dq`.
  void key_range(const Range& range, bool with_dq) {
    range_ = range;
    with_dq_ = with_dq;
    load_keys(range.begin, range.end, with_dq);
    part_tree(0, shape_.parts, 0);
    store(args_.dk, s_.dk, range.begin, range.end - range.begin, range.kv_head, shape_.c2);
    store(args_.dv, s_.dv, range.begin, range.end - range.begin, range.kv_head, 1.0f);
  }

  // dq of the queries [range.begin, range.end) of one head, keys in blocks from position 0.
  void query_range(const Range& range, std::int64_t head) {
    range_ = range;
    for (std::int64_t i = range.begin; i < range.end; i += kGradQueries) {
      const std::int64_t n = std::min<std::int64_t>(kGradQueries, range.end - i);
      load_queries(i, n, head);
      std::fill_n(s_.dq, n * shape_.ld, 0.0f);
      for (std::int64_t j = 0; j < i + n; j += kGradKeys) {
        const std::int64_t keys = std::min<std::int64_t>(kGradKeys, i + n - j);
        load_keys(j, j + keys, true);
        cell(i, n, j, keys, 0, s_.dq, nullptr, nullptr);
      }
      store(args_.dq, s_.dq, i, n, head, shape_.c2);
    }
  }

 private:
  std::int64_t part_bound(std::int64_t i) const { return i * shape_.group / shape_.parts; }

  // The neighbour tree over parts [first, first + count), into buffer `level` of dk and dv. An
  // empty part is +0: it is not added.
  void part_tree(int first, int count, int level) {
    const std::int64_t stride = s_.keys * shape_.ld;
    const std::int64_t size = (range_.end - range_.begin) * shape_.ld;
    float* dk = s_.dk + level * stride;
    float* dv = s_.dv + level * stride;
    const bool left_empty = part_bound(first) == part_bound(first + count / 2);
    const bool right_empty = part_bound(first + count / 2) == part_bound(first + count);
    if (count == 1) {
      std::fill_n(dk, size, 0.0f);
      std::fill_n(dv, size, 0.0f);
      for (std::int64_t h = part_bound(first); h < part_bound(first + 1); ++h) {
        head_chains(range_.kv_head * shape_.group + h, dk, dv);
      }
    } else if (left_empty || right_empty) {
      part_tree(left_empty ? first + count / 2 : first, count / 2, level);
    } else {
      part_tree(first, count / 2, level);
      part_tree(first + count / 2, count / 2, level + 1);
      isa_.add(dk, dk + stride, size);
      isa_.add(dv, dv + stride, size);
    }
  }

  // The chains of the range's keys go on through the queries of one head.
  void head_chains(std::int64_t head, float* dk, float* dv) {
    for (std::int64_t i = range_.begin; i < range_.length; i += kGradQueries) {
      const std::int64_t n = std::min<std::int64_t>(kGradQueries, range_.length - i);
      load_queries(i, n, head);
      if (with_dq_) std::fill_n(s_.dq, n * shape_.ld, 0.0f);
      const std::int64_t end = std::min(range_.end, i + n);
      for (std::int64_t j = range_.begin; j < end; j += kGradKeys) {
        const std::int64_t keys = std::min<std::int64_t>(kGradKeys, end - j);
        const std::int64_t at = j - range_.begin;
        cell(i, n, j, keys, at, with_dq_ ? s_.dq : nullptr, dk + at * shape_.ld,
             dv + at * shape_.ld);
      }
      if (with_dq_) store(args_.dq, s_.dq, i, n, head, shape_.c2);
    }
  }

  // Queries [i, i + n) against keys [j, j + keys), which are the loaded keys from `at` on.
  void cell(std::int64_t i, std::int64_t n, std::int64_t j, std::int64_t keys, std::int64_t at,
            float* dq, float* dk, float* dv) {
    GradCell cell;
    cell.model = shape_.model;
    cell.queries = static_cast<int>(n);
    cell.keys = static_cast<int>(keys);
    cell.offset = static_cast<int>(i - j);
    cell.d = shape_.d;
    cell.ld = shape_.ld;
    cell.ldk = s_.ldk;
    cell.c = shape_.c;
    cell.q = s_.q;
    cell.dy = s_.dy;
    cell.lse = s_.lse;
    cell.dsum = s_.dsum;
    cell.kt = s_.kt + at / kGradKeys * shape_.d * s_.ldk;
    cell.vt = s_.vt + at / kGradKeys * shape_.d * s_.ldk;
    cell.k = s_.k + at * shape_.ld;
    cell.p = s_.p;
    cell.ds = s_.ds;
    cell.dq = dq;
    cell.dk = dk;
    cell.dv = dv;
    isa_.grad_cell(cell);
  }

  RowList<T> find_rows(const ConstTensorView& x, std::int64_t first, std::int64_t n,
                       std::int64_t head) {
    for (std::int64_t r = 0; r < n; ++r) {
      s_.rows[r] = row_at<T>(x, range_.token + first + r, head);
    }
    return {s_.rows, 0};
  }

  void load_keys(std::int64_t begin, std::int64_t end, bool with_rows) {
    for (std::int64_t j = begin, to = 0; j < end; j += kGradKeys, to += shape_.d * s_.ldk) {
      const int n = static_cast<int>(std::min<std::int64_t>(kGradKeys, end - j));
      RowList<T> rows = find_rows(args_.k, j, n, range_.kv_head);
      isa_.widen_transposed(s_.kt + to, s_.ldk, rows, n, shape_.d);
      if (with_rows) isa_.widen_rows(s_.k + (j - begin) * shape_.ld, shape_.ld, rows, n, shape_.d);
      rows = find_rows(args_.v, j, n, range_.kv_head);
      isa_.widen_transposed(s_.vt + to, s_.ldk, rows, n, shape_.d);
    }
  }

  void load_queries(std::int64_t first, std::int64_t count, std::int64_t head) {
    const int n = static_cast<int>(count);
    isa_.widen_rows(s_.q, shape_.ld, find_rows(args_.q, first, n, head), n, shape_.d);
    isa_.widen_rows(s_.dy, shape_.ld, find_rows(args_.dy, first, n, head), n, shape_.d);
    isa_.row_dots(s_.dsum, s_.dy, shape_.ld, find_rows(args_.y, first, n, head), n, shape_.d,
                  shape_.norm_lanes);
    for (int r = 0; r < n; ++r)
      s_.lse[r] = *args_.lse.template at<float>(range_.token + first + r, head);
  }

  void store(const TensorView& x, const float* from, std::int64_t first, std::int64_t n,
             std::int64_t head, float scale) {
    for (std::int64_t r = 0; r < n; ++r) {
      s_.out_rows[r] = row_at<T>(x, range_.token + first + r, head);
    }
    isa_.store_scaled(s_.out_rows, from, shape_.ld, static_cast<int>(n), shape_.d, scale);
  }

  const AttentionBackwardArgs& args_;
  const AttentionIsa<T>& isa_;
  const Shape& shape_;
  Scratch<T>& s_;
  Range range_{};
  bool with_dq_ = false;
};

// One pass over every sequence and KV head: five products per cell.
template <typename T>
void one_pass(Exec& exec, const AttentionBackwardArgs& args, const AttentionIsa<T>& isa,
              const Shape& shape, Scratch<T>* scratch) {
  const std::int64_t n = (args.cu_seqlens.shape(0) - 1) * shape.kv_heads;
  exec.pool.parallel_for(n, 1, [&](std::int64_t begin, std::int64_t end, int thread) {
    Task<T> task(args, isa, shape, scratch[thread]);
    for (std::int64_t i = begin; i < end; ++i) {
      const std::int64_t s = i / shape.kv_heads;
      const std::int64_t token = *args.cu_seqlens.at<std::int32_t>(s);
      const std::int64_t length = *args.cu_seqlens.at<std::int32_t>(s + 1) - token;
      if (length > 0) task.key_range({token, length, i % shape.kv_heads, 0, length}, true);
    }
  });
}

// Ranges of keys, then ranges of queries: seven products per cell, but no task longer than a range.
template <typename T>
void two_passes(Exec& exec, const AttentionBackwardArgs& args, const AttentionIsa<T>& isa,
                const Shape& shape, Scratch<T>* scratch, std::int64_t* range_begin) {
  const std::int64_t num_seqs = args.cu_seqlens.shape(0) - 1;
  range_begin[0] = 0;
  for (std::int64_t s = 0; s < num_seqs; ++s) {
    const std::int64_t length =
        *args.cu_seqlens.at<std::int32_t>(s + 1) - *args.cu_seqlens.at<std::int32_t>(s);
    range_begin[s + 1] = range_begin[s] + (length + kRange - 1) / kRange;
  }
  const auto range_at = [&](std::int64_t i, std::int64_t kv_head) {
    const std::int64_t s =
        std::upper_bound(range_begin, range_begin + num_seqs + 1, i) - range_begin - 1;
    const std::int64_t token = *args.cu_seqlens.at<std::int32_t>(s);
    const std::int64_t length = *args.cu_seqlens.at<std::int32_t>(s + 1) - token;
    const std::int64_t begin = (i - range_begin[s]) * kRange;
    return Range{token, length, kv_head, begin, std::min(begin + kRange, length)};
  };
  const std::int64_t ranges = range_begin[num_seqs];
  exec.pool.parallel_for(
      ranges * shape.kv_heads, 1, [&](std::int64_t begin, std::int64_t end, int thread) {
        Task<T> task(args, isa, shape, scratch[thread]);
        for (std::int64_t i = begin; i < end; ++i) {
          task.key_range(range_at(i / shape.kv_heads, i % shape.kv_heads), false);
        }
      });
  const std::int64_t heads = shape.kv_heads * shape.group;
  exec.pool.parallel_for(ranges * heads, 1, [&](std::int64_t begin, std::int64_t end, int thread) {
    Task<T> task(args, isa, shape, scratch[thread]);
    for (std::int64_t i = ranges * heads - begin; i > ranges * heads - end; --i) {
      const std::int64_t head = (i - 1) % heads;
      task.query_range(range_at((i - 1) / heads, head / shape.group), head);
    }
  });
}

template <typename T>
void backward(Exec& exec, const AttentionBackwardArgs& args, Isa level) {
  const AttentionIsa<T>& isa = attention_isa<T>(level);
  const Contract& contract = exec.contract;
  Shape shape;
  shape.model = columns_isa(level, contract.profile);
  shape.kv_heads = args.k.shape(1);
  shape.group = args.q.shape(1) / shape.kv_heads;
  shape.d = static_cast<int>(args.q.shape(2));
  shape.ld = static_cast<int>(leading(shape.d));
  shape.parts =
      static_cast<int>(contract.leaves / std::gcd<std::int64_t>(contract.leaves, shape.kv_heads));
  shape.levels = 0;
  while ((1 << shape.levels) < shape.parts) ++shape.levels;
  shape.norm_lanes = contract.norm_lanes;
  shape.c = reference::log2e_over_sqrt(shape.d);
  shape.c2 = reference::one_over_sqrt(shape.d);
  RLK_ASSERT(shape.d % 2 == 0 && shape.d <= kMaxHeadDim);
  RLK_ASSERT(contract.norm_lanes >= kAttentionPad);
  for (const ConstTensorView& x : {args.q, args.k, args.v, args.y, args.dy}) {
    RLK_ASSERT(x.stride(2) == 1);
  }
  RLK_ASSERT(args.dq.stride(2) == 1 && args.dk.stride(2) == 1 && args.dv.stride(2) == 1);

  const std::int64_t num_seqs = args.cu_seqlens.shape(0) - 1;
  const std::int64_t threads = exec.pool.num_threads();
  std::int64_t length_max = 1;
  double pairs = 0;
  for (std::int64_t s = 0; s < num_seqs; ++s) {
    const std::int64_t length =
        *args.cu_seqlens.at<std::int32_t>(s + 1) - *args.cu_seqlens.at<std::int32_t>(s);
    length_max = std::max(length_max, length);
    pairs += static_cast<double>(length) * static_cast<double>(length);
  }
  // A plan, not a bit: one pass unless its longest task would keep all other threads waiting.
  const double longest = static_cast<double>(length_max) * static_cast<double>(length_max);
  const bool cut = length_max > kRange && longest * static_cast<double>(threads) >
                                              1.4 * pairs * static_cast<double>(shape.kv_heads);

  Workspace::Frame frame(exec.workspace);
  Scratch<T>* scratch = frame.take<Scratch<T>>(threads);
  for (std::int64_t i = 0; i < threads; ++i) {
    scratch[i] = take_scratch<T>(frame, shape, cut ? kRange : length_max);
  }
  if (cut) {
    two_passes(exec, args, isa, shape, scratch, frame.take<std::int64_t>(num_seqs + 1));
  } else {
    one_pass(exec, args, isa, shape, scratch);
  }
}

}  // namespace

template <Isa I>
void attention_backward(Exec& exec, const AttentionBackwardArgs& args) {
  with_storage(args.q.dtype, [&]<typename T>() { backward<T>(exec, args, I); });
}

RLK_INSTANTIATE(attention_backward, AttentionBackwardArgs);

}  // namespace rlk::cpu
