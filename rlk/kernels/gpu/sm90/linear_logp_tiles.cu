#include "rlk/kernels/gpu/sm90/linear_logp_tiles.h"

#include <algorithm>

#include "rlk/kernels/gpu/logit_row.h"
#include "rlk/kernels/gpu/sm90/gemm_tiles.h"
#include "rlk/kernels/gpu/sm90/linear_logp_sums.h"
#include "rlk/kernels/gpu/sm90/store_tile.h"
#include "rlk/kernels/gpu/sm90/tensor_map.h"
#include "rlk/numerics/sums.h"

namespace rlk::gpu::sm90 {
namespace {

constexpr int kColumns = 256;  // of a tile
constexpr std::int64_t kGradientBytes = std::int64_t{192} << 20;

// The scale and target of each row.
struct RowParams {
  const SamplingParams* params;
  std::int64_t num_params;
  Ref<const std::int32_t> targets;

  RLK_DEVICE float scale(std::int64_t t) const { return scale_of(params[num_params == 1 ? 0 : t]); }
};

RowParams row_params(Exec& exec, device::Workspace::Frame& frame, const LinearLogpArgs& args) {
  return {on_device(exec, frame, args.params, args.num_params), args.num_params,
          ref<std::int32_t>(args.targets)};
}

// ---- the sums of rows ----

// Stripes of rows of tiles. A block keeps one row of tiles of each stripe and takes every
// per_row-th of its columns, so that it has one partial sum of a row in the end.
struct Stripes {
  int rows, columns;  // of tiles
  int count;
  int blocks;

  struct Stripe {
    int first, tall;
    int per_row;  // blocks
  };
  RLK_HD Stripe stripe(int i) const {
    const int first = first_of(i), tall = first_of(i + 1) - first;
    return {first, tall, blocks / tall};
  }
  RLK_HD int first_of(int i) const { return static_cast<int>(std::int64_t{rows} * i / count); }
  RLK_HD Stripe stripe_of(int row) const {
    return stripe(static_cast<int>(((row + std::int64_t{1}) * count - 1) / rows));
  }
  // The partial sums of a row.
  RLK_HD int parts(const Stripe& s) const { return smaller(s.per_row, columns); }

  // begin(row of tiles, which of its parts) and visit(column of tiles) for the tiles of a block;
  // end() behind the last of a row.
  template <typename Begin, typename Visit, typename End>
  RLK_DEVICE void for_each(const Begin& begin, const Visit& visit, const End& end) const {
    const int block = static_cast<int>(block_x());
#pragma unroll 1
    for (int i = 0; i < count; ++i) {
      const Stripe s = stripe(i);
      const int part = block / s.tall;
      if (part >= parts(s)) continue;
      begin(s.first + block % s.tall, part);
#pragma unroll 1
      for (int column = part; column < columns; column += s.per_row) visit(column);
      end();
    }
  }
};

// As many stripes as take the fewest rounds of tiles.
Stripes stripes_of(std::int64_t num_rows, std::int64_t vocab_size) {
  constexpr int kTallest = 16;  // as TileGrid has it
  Stripes now{}, best{};
  now.rows = static_cast<int>(ceil_div(num_rows, kTileRows));
  now.columns = static_cast<int>(ceil_div(vocab_size, kColumns));
  now.blocks = static_cast<int>(
      std::min<std::int64_t>(std::int64_t{now.rows} * now.columns, num_processors()));
  std::int64_t fewest = 0;
  const int least = static_cast<int>(ceil_div(now.rows, std::min(kTallest, now.blocks)));
  for (now.count = least; now.count <= std::min(now.rows, 3 * least); ++now.count) {
    std::int64_t rounds = 0;
    for (int i = 0; i < now.count; ++i) rounds += ceil_div(now.columns, now.stripe(i).per_row);
    if (best.count != 0 && rounds >= fewest) continue;
    best = now;
    fewest = rounds;
  }
  return best;
}

template <bool kEntropy>
struct SumRows {
  PartialSums<kEntropy>* partial;  // [rows, parts]
  int parts;
  float* target_z;  // [rows]
  RowParams params;
  int num_rows, vocab_size;
};

// The 16 rows of a warp that multiplies, while they grow.
template <bool kEntropy>
class WarpRows {
 public:
  RLK_DEVICE WarpRows(const SumRows<kEntropy>& to, GrowingRow<kEntropy>* rows)
      : to_(to), first_((thread() - 128) / 32 * 16), rows_(rows + first_) {}

  // m0: the first row of the block.
  RLK_DEVICE void begin(int m0, int part) {
    m0_ = m0 + first_;
    part_ = part;
    if (thread() % 32 < 16) {
      const int row = m0_ + thread() % 16;
      const bool inside = row < to_.num_rows;
      rows_[thread() % 16] = {{},
                              inside ? to_.params.scale(row) : 0.0f,
                              inside ? to_.params.targets(row) : kIgnoreIndex};
    }
    __syncwarp();
  }
  RLK_DEVICE void add(int n0, float (&acc)[kColumns / 2]) {
    add_row<0>(n0, acc);
    add_row<1>(n0, acc);
    __syncwarp();
  }
  RLK_DEVICE void end() const {
    const int row = m0_ + thread() % 16;
    if (thread() % 32 < 16 && row < to_.num_rows) {
      to_.partial[std::int64_t{row} * to_.parts + part_] = rows_[thread() % 16].sums;
    }
    __syncwarp();
  }

 private:
  template <int h>
  RLK_DEVICE void add_row(int n0, float (&acc)[kColumns / 2]) {
    const int r = thread() % 32 / 4 + 8 * h;
    GrowingRow<kEntropy>& row = rows_[r];
    add_to_row<kColumns, kEntropy, h>(acc, to_.vocab_size - n0, row);
    const int target = row.target - n0 - thread() % 4 * 2;
    if (target < 0 || target >= kColumns || target % 8 > 1) return;
    float z = 0.0f;
    RLK_UNROLL
    for (int j = 0; j < kColumns / 4; ++j) {
      if (target == j / 2 * 8 + j % 2) z = acc[j / 2 * 4 + 2 * h + j % 2];
    }
    to_.target_z[m0_ + r] = z;
  }

  const SumRows<kEntropy>& to_;
  int first_;  // row of the block
  GrowingRow<kEntropy>* rows_;
  int m0_ = 0, part_ = 0;
};

template <bool kEntropy>
using SumRing = Ring<kColumns, kTileRows * sizeof(GrowingRow<kEntropy>)>;

template <bool kEntropy>
__global__ void __launch_bounds__(kTileThreads, 1)
    sum_rows_kernel(const __grid_constant__ CUtensorMap map_a,
                    const __grid_constant__ CUtensorMap map_b, const int steps,
                    const __grid_constant__ Stripes stripes,
                    const __grid_constant__ SumRows<kEntropy> to) {
  RLK_DYNAMIC_SHARED(shared);
  SumRing<kEntropy> ring(shared);
  if (thread() == 0) ring.init();
  barrier();
  allow_next_kernel();
  const int warpgroup = warpgroup_index();
  int m0 = 0;
  if (warpgroup == 0) {
    fewer_registers<40>();
    if (thread() != 0) return;
    wait_for_previous_kernel();
    stripes.for_each([&](int row, int) { m0 = row * kTileRows; },
                     [&](int column) {
                       for (int i = 0; i < steps; ++i) {
                         ring.wait_empty();
                         ring.load(&map_a, &map_b, m0, column * kColumns, i * kStep);
                       }
                     },
                     [] {});
    return;
  }
  more_registers<232>();
  wait_for_previous_kernel();
  const int consumer = warpgroup - 1;
  WarpRows<kEntropy> rows(to, reinterpret_cast<GrowingRow<kEntropy>*>(
                                  shared + (ring.extra() - shared_address(shared))));
  stripes.for_each([&](int row, int part) { rows.begin(row * kTileRows, part); },
                   [&](int column) {
                     typename SumRing<kEntropy>::Sums acc;
                     ring.chain(acc, consumer, steps, [] {});
                     rows.add(column * kColumns, acc);
                   },
                   [&] { rows.end(); });
}

constexpr int kMergeThreads = 32;

// A block a row. The state of a row that is an error, or whose target is, is all 0.
template <bool kEntropy>
RLK_KERNEL(kMergeThreads)
merge_sums_kernel(Ref<float> logp, Ref<float> entropy, Ref<std::int32_t> state,
                  const PartialSums<kEntropy>* partial, int parts, Stripes stripes,
                  const float* target_z, Ref<const std::int32_t> targets, std::int64_t vocab_size,
                  unsigned long long* fault) {
  const std::int64_t t = block_x();
  const int count = stripes.parts(stripes.stripe_of(static_cast<int>(t / kTileRows)));
  numerics::EntropySumExp sums;
  for (int i = thread(); i < count; i += kMergeThreads) {
    const PartialSums<kEntropy> part = partial[t * parts + i];
    numerics::EntropySumExp one;
    one.sum.z_max = part.z_max;
    one.sum.bad = part.z_max == numerics::kInfinity;
    one.sum.any = !one.sum.bad && part.z_max != -numerics::kInfinity;
    one.sum.bin = part.bin;
    for (int k = 0; k < 4; ++k) {
      one.sum.s[static_cast<std::size_t>(k)] = part.s[k];
      if constexpr (kEntropy) one.e[static_cast<std::size_t>(k)] = part.e[k];
    }
    sums.merge(one);
  }
  RLK_SHARED(ReduceBytes, shared, kMergeThreads);
  sums = block_reduce<kMergeThreads>(
      sums, shared, [](numerics::EntropySumExp a, const numerics::EntropySumExp& b) {
        a.merge(b);
        return a;
      });
  if (thread() != 0) return;
  const std::int32_t target = targets(t);
  const bool ignored = target == kIgnoreIndex;
  const bool good = !ignored && sums.status() == LogitStatus::kOk && target >= 0 &&
                    target < vocab_size &&
                    numerics::classify_logit(target_z[t]) == LogitStatus::kOk;
  if (state) write_state(state, t, good ? sums.sum : LogSumExp{});
  if (good) {
    const numerics::LogSumExpEnd end(sums.sum);
    if (logp) logp(t) = end.logp(target_z[t]);
    if (entropy) entropy(t) = static_cast<float>(end.entropy(sums));
  } else if (ignored) {
    if (logp) logp(t) = 0.0f;
    if (entropy) entropy(t) = 0.0f;
  } else if (fault != nullptr) {
    report(fault, t);
  }
}

// fault: null where faulty rows are the caller's business.
template <bool kEntropy>
void sums_of_rows(Exec& exec, const LinearLogpArgs& args, unsigned long long* fault) {
  const std::int64_t rows = args.hidden.shape(0), k = args.hidden.shape(1);
  const Stripes stripes = stripes_of(rows, args.vocab_size);
  int parts = 0;
  for (int i = 0; i < stripes.count; ++i) {
    parts = std::max(parts, stripes.parts(stripes.stripe(i)));
  }
  device::Workspace::Frame frame(exec.gpu->workspace());
  const RowParams params = row_params(exec, frame, args);
  float* const target_z = frame.take<float>(rows);
  auto* const partial = frame.take<PartialSums<kEntropy>>(rows * parts);
  launch_cluster(exec, {stripes.blocks}, kTileThreads, SumRing<kEntropy>::kBytes, {1, true},
                 sum_rows_kernel<kEntropy>,
                 tensor_map(args.hidden.data, k, rows, args.hidden.stride(0), kTileRows),
                 tensor_map(args.head.data, k, args.vocab_size, args.head.stride(0), kColumns),
                 static_cast<int>(ceil_div(k, kStep)), stripes,
                 SumRows<kEntropy>{partial, parts, target_z, params, static_cast<int>(rows),
                                   static_cast<int>(args.vocab_size)});
  launch(exec, {rows}, kMergeThreads, 0, merge_sums_kernel<kEntropy>, ref<float>(args.logp),
         ref<float>(args.entropy), ref<std::int32_t>(args.state), partial, parts, stripes, target_z,
         ref<std::int32_t>(args.targets), args.vocab_size, fault);
}

void sums_of_rows(Exec& exec, const LinearLogpArgs& args, unsigned long long* fault) {
  args.entropy ? sums_of_rows<true>(exec, args, fault) : sums_of_rows<false>(exec, args, fault);
}

// ---- backward ----

// Rows in equal parts of at most `most`, multiples of a tile.
std::int64_t rows_of_a_part(std::int64_t rows, std::int64_t most) {
  most = std::max<std::int64_t>(kTileRows, most / kTileRows * kTileRows);
  return ceil_div(rows, ceil_div(rows, most) * kTileRows) * kTileRows;
}

constexpr int kEndThreads = 128;

RLK_KERNEL(kEndThreads)
row_ends_kernel(RowEnd* ends, std::int64_t num_rows, Ref<const std::int32_t> state,
                Ref<const float> entropy, RowParams params, Ref<const float> g,
                Ref<const float> g_entropy, unsigned long long* fault) {
  const std::int64_t t = block_x() * kEndThreads + thread();
  if (t >= num_rows) return;
  RowEnd row{};
  row.target = params.targets(t);
  row.g = g(t);
  row.g_entropy = g_entropy ? g_entropy(t) : 0.0f;
  if (row.target != kIgnoreIndex && !(row.g == 0.0f && row.g_entropy == 0.0f)) {
    const LogSumExp sum = read_state(state, t);
    row.used = sum.any;
    if (row.used) {
      const numerics::LogSumExpEnd end(sum);
      row.bin = end.bin;
      row.scale = params.scale(t);
      row.inverse = end.inverse;
      row.z_max = static_cast<double>(end.z_max);
      row.c = end.c;
      if (row.g_entropy != 0.0f) row.entropy = entropy(t);
    } else {
      report(fault, t);
    }
  }
  ends[t] = row;
}

struct StoreDlogits {
  const RowEnd* ends;
  Target dlogits;  // rows by the columns of a leaf
  int first;       // column of the leaf
  int vocab_size;

  RLK_DEVICE void operator()(int m0, int n0, float (&acc)[kColumns / 2]) const {
    const int row = m0 + thread() % 128 / 32 * 16 + thread() % 32 / 4;
    const auto end_of = [&](int m) { return m < dlogits.m ? ends[m] : RowEnd{}; };
    const int column = first + n0;
    dlogits_of_row<kColumns, 0>(end_of(row), column, vocab_size - column, acc);
    dlogits_of_row<kColumns, 1>(end_of(row + 8), column, vocab_size - column, acc);
    store_values<kColumns>(dlogits, m0, n0, acc);
  }
};

// The neighbour tree over leaves that come one after the other. level[i] waits for 2^i of them.
struct PushLeaf {
  Target d_hidden;
  float* level;
  std::int64_t level_size;
  int leaf, leaves;

  RLK_DEVICE void operator()(int m0, int n0, float (&acc)[kColumns / 2]) const {
    float* at = level;
    const std::int64_t stride = d_hidden.n;
    const auto for_each_inside = [&](const auto& visit) {
      for_each_four<kColumns>(acc, [&](int m, int n, float4& x) {
        if (m0 + m >= d_hidden.m || n0 + n >= d_hidden.n) return;
        visit(*reinterpret_cast<float4*>(at + (m0 + m) * stride + n0 + n), x);
      });
    };
    turn<kColumns>(acc);
    for (int rest = leaf; rest % 2 != 0; rest /= 2) {
      for_each_inside([](const float4& left, float4& x) {
        x.x = left.x + x.x;
        x.y = left.y + x.y;
        x.z = left.z + x.z;
        x.w = left.w + x.w;
      });
      at += level_size;
    }
    if (leaf + 1 < leaves) return for_each_inside([](float4& to, const float4& x) { to = x; });
    turn<kColumns>(acc);
    RLK_UNROLL
    for (int i = 0; i < kColumns / 2; ++i) acc[i] = acc[i] + 0.0f;
    store_values<kColumns>(d_hidden, m0, n0, acc);
  }
};

bool dense(const ConstTensorView& t) { return t.stride(1) == 1 && copyable(t, t.stride(0)); }

// Of a row: dlogits of a leaf, sums of leaves that wait, and its end.
std::int64_t gradient_bytes(const LinearLogpArgs& args, int leaves) {
  const std::int64_t units = (args.head.shape(0) + 15) / 16;
  const std::int64_t columns = 16 * ceil_div(units, leaves);
  int levels = 0;
  for (int i = leaves; i > 1; i /= 2) ++levels;
  return 2 * columns + 4 * levels * args.hidden.shape(1) +
         static_cast<std::int64_t>(sizeof(RowEnd));
}

}  // namespace

bool linear_logp_has_tiles(const Exec& exec, const LinearLogpArgs& args) {
  for (std::int64_t i = 0; i < args.num_params; ++i) {
    if (filters(args.params[i])) return false;
  }
  const std::int64_t leaves = exec.contract.leaves;
  return args.hidden.dtype == DType::kBF16 && args.hidden.shape(0) > 0 &&
         args.hidden.shape(0) < (std::int64_t{1} << 30) && dense(args.hidden) && dense(args.head) &&
         args.hidden.shape(1) % 4 == 0 && leaves <= kMaxLeaves &&
         args.head.shape(0) >= 16 * leaves && args.vocab_size > 0;
}

bool linear_logp_backward_has_tiles(const Exec& exec, const LinearLogpBackwardArgs& args) {
  GemmBackwardWeightArgs product;
  product.dw = args.dw;
  product.chain = args.chain;
  product.dy = product.x = args.forward.hidden;
  return linear_logp_has_tiles(exec, args.forward) && gemm_backward_weight_copies(product) &&
         args.d_hidden.stride(1) == 1;
}

void linear_logp_tiles(Exec& exec, const LinearLogpArgs& args) {
  sums_of_rows(exec, args, exec.gpu->fault());
}

void linear_logp_backward_tiles(Exec& exec, const LinearLogpBackwardArgs& args) {
  const LinearLogpArgs& all = args.forward;
  const std::int64_t num_rows = all.hidden.shape(0), k = all.hidden.shape(1);
  const int leaves = exec.contract.leaves;
  device::Workspace::Frame frame(exec.gpu->workspace());

  // What forward found, or finds now.
  LinearLogpArgs forward = all;
  forward.logp = {};
  forward.entropy = {};
  if (!all.state || args.g_entropy) {
    forward.state = view(frame.take<std::int32_t>(num_rows * kLogprobStateWords),
                         {num_rows, kLogprobStateWords});
    if (args.g_entropy) forward.entropy = view(frame.take<float>(num_rows), {num_rows});
    sums_of_rows(exec, forward, nullptr);
  }
  RowEnd* const ends = frame.take<RowEnd>(num_rows);
  launch(exec, {ceil_div(num_rows, kEndThreads)}, kEndThreads, 0, row_ends_kernel, ends, num_rows,
         ref<std::int32_t>(ConstTensorView(forward.state)),
         ref<float>(ConstTensorView(forward.entropy)), row_params(exec, frame, all),
         ref<float>(args.g), ref<float>(args.g_entropy), exec.gpu->fault());

  // Parts of rows. The last group of mac of a part may reach into the next: dlogits of as many rows
  // more are there for dW.
  constexpr std::int64_t kReach = 15;
  const std::int64_t part =
      std::min(num_rows, rows_of_a_part(num_rows, kGradientBytes / gradient_bytes(all, leaves)));
  const auto bound = [&](std::int64_t leaf) {
    return numerics::leaf_bound(all.head.shape(0), leaves, leaf);
  };
  std::int64_t widest = 0;
  for (int leaf = 0; leaf < leaves; ++leaf) {
    widest = std::max(widest, bound(leaf + 1) - bound(leaf));
  }
  widest = (widest + 7) / 8 * 8;
  const std::int64_t level_size = part * k;
  int levels = 0;
  for (int i = leaves; i > 1; i /= 2) ++levels;
  const std::int64_t dlogits_bytes = ((part + kReach) * widest * 2 + 255) / 256 * 256;
  char* const memory = frame.take<char>(dlogits_bytes + level_size * levels * 4);
  bf16* const dlogits = reinterpret_cast<bf16*>(memory);
  float* const level = reinterpret_cast<float*>(memory + dlogits_bytes);

  for (std::int64_t begin = 0; begin < num_rows; begin += part) {
    const std::int64_t end = std::min(begin + part, num_rows);
    const std::int64_t reach = std::min(end + kReach, num_rows);
    const std::int64_t count = end - begin;
    const ConstTensorView hidden = rows(all.hidden, begin, reach);
    const TensorView d_hidden = rows(args.d_hidden, begin, end);
    for (int leaf = 0; leaf < leaves; ++leaf) {
      const std::int64_t first = bound(leaf), width = bound(leaf + 1) - first;
      const ConstTensorView head = rows(all.head, first, first + width);
      launch_chain_tiles<kColumns, false>(
          exec, tensor_map(hidden.data, k, reach - begin, hidden.stride(0), kTileRows),
          tensor_map(head.data, k, width, head.stride(0), kColumns), reach - begin, width, k,
          StoreDlogits{
              ends + begin,
              {dlogits, widest, static_cast<int>(reach - begin), static_cast<int>(width), false},
              static_cast<int>(first),
              static_cast<int>(all.vocab_size)});
      launch_chain_tiles<kColumns, true>(
          exec, tensor_map(dlogits, width, count, widest, kTileRows),
          tensor_map(head.data, k, width, head.stride(0), kStep), count, k, width,
          PushLeaf{{d_hidden.data, d_hidden.stride(0), static_cast<int>(count), static_cast<int>(k),
                    false},
                   level,
                   level_size,
                   leaf,
                   leaves});
      GemmBackwardWeightArgs product;
      product.dw = rows(args.dw, first, first + width);
      product.chain = rows(args.chain, first, first + width);
      product.dy = view(static_cast<const bf16*>(dlogits), {reach - begin, width});
      product.dy.layout.stride[0] = widest;
      product.x = hidden;
      product.group_ends = args.group_ends;
      product.cu_seqlens = args.cu_seqlens;
      gemm_backward_weight_tiles(exec, product, {begin, end, num_rows});
    }
  }
}

}  // namespace rlk::gpu::sm90
