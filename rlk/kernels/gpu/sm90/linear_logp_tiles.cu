#include "rlk/kernels/gpu/sm90/linear_logp_tiles.h"

#include <algorithm>

#include "rlk/kernels/gpu/logit_row.h"
#include "rlk/kernels/gpu/sm90/gemm_tiles.h"
#include "rlk/kernels/gpu/sm90/linear_logp_sums.h"
#include "rlk/kernels/gpu/sm90/store_tile.h"
#include "rlk/kernels/gpu/sm90/tensor_map.h"
#include "rlk/kernels/linear_logp_rows.h"
#include "rlk/numerics/sums.h"

namespace rlk::gpu::sm90 {
namespace {

constexpr int kColumns = 256;  // of a tile
constexpr std::int64_t kPartialBytes = std::int64_t{32} << 20;
constexpr std::int64_t kGradientBytes = std::int64_t{192} << 20;

std::int64_t column_tiles(std::int64_t n) { return ceil_div(n, kColumns); }

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

template <bool kEntropy>
struct StoreSums {
  PartialSums<kEntropy>* partial;  // [rows, tiles]
  int tiles;
  float* target_z;  // [rows]
  RowParams params;
  int num_rows, vocab_size;

  RLK_DEVICE void operator()(int m0, int n0, float (&acc)[kColumns / 2]) const {
    const int row = m0 + thread() % 128 / 32 * 16 + thread() % 32 / 4;
    row_sums<0>(row, n0, acc);
    row_sums<1>(row + 8, n0, acc);
  }

 private:
  template <int h>
  RLK_DEVICE void row_sums(int row, int n0, const float (&acc)[kColumns / 2]) const {
    const bool inside = row < num_rows;
    const float scale = inside ? params.scale(row) : 0.0f;
    PartialSums<kEntropy> sums = sums_of_row<kColumns, kEntropy, h>(acc, scale, vocab_size - n0);
    sums.merge_lanes();
    if (!inside) return;
    if (thread() % 4 == 0) partial[std::int64_t{row} * tiles + n0 / kColumns] = sums;
    const int target = params.targets(row) - n0 - thread() % 4 * 2;
    if (target < 0 || target >= kColumns || target % 8 > 1) return;
    RLK_UNROLL
    for (int j = 0; j < kColumns / 4; ++j) {
      if (target == j / 2 * 8 + j % 2) target_z[row] = acc[j / 2 * 4 + 2 * h + j % 2] * scale;
    }
  }
};

constexpr int kMergeThreads = 128;

// A block a row. The state of a row that is an error, or whose target is, is all 0.
template <bool kEntropy>
RLK_KERNEL(kMergeThreads)
merge_sums_kernel(Ref<float> logp, Ref<float> entropy, Ref<std::int32_t> state,
                  const PartialSums<kEntropy>* partial, int tiles, const float* target_z,
                  Ref<const std::int32_t> targets, std::int64_t vocab_size, std::int64_t first_row,
                  unsigned long long* fault) {
  const std::int64_t t = block_x();
  numerics::EntropySumExp sums;
  for (int i = thread(); i < tiles; i += kMergeThreads) {
    const PartialSums<kEntropy> part = partial[t * tiles + i];
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
    report(fault, first_row + t);
  }
}

template <bool kEntropy>
void sums_of_rows(Exec& exec, const LinearLogpArgs& args, std::int64_t first_row,
                  unsigned long long* fault) {
  const std::int64_t rows = args.hidden.shape(0), k = args.hidden.shape(1);
  const std::int64_t tiles = column_tiles(args.vocab_size);
  device::Workspace::Frame frame(exec.gpu->workspace());
  // The small ones first: the workspace grows by at least twice what it had.
  const RowParams params = row_params(exec, frame, args);
  float* const target_z = frame.take<float>(rows);
  auto* const partial = frame.take<PartialSums<kEntropy>>(rows * tiles);
  launch_chain_tiles<kColumns, false>(
      exec, tensor_map(args.hidden.data, k, rows, args.hidden.stride(0), kTileRows),
      tensor_map(args.head.data, k, args.vocab_size, args.head.stride(0), kColumns), rows,
      args.vocab_size, k,
      StoreSums<kEntropy>{partial, static_cast<int>(tiles), target_z, row_params(exec, frame, args),
                          static_cast<int>(rows), static_cast<int>(args.vocab_size)});
  launch(exec, {rows}, kMergeThreads, 0, merge_sums_kernel<kEntropy>, ref<float>(args.logp),
         ref<float>(args.entropy), ref<std::int32_t>(args.state), partial, static_cast<int>(tiles),
         target_z, ref<std::int32_t>(args.targets), args.vocab_size, first_row, fault);
}

// Rows in equal parts of at most `most`, multiples of a tile.
std::int64_t rows_of_a_part(std::int64_t rows, std::int64_t most) {
  most = std::max<std::int64_t>(kTileRows, most / kTileRows * kTileRows);
  return ceil_div(rows, ceil_div(rows, most) * kTileRows) * kTileRows;
}

// fault: null where faulty rows are the caller's business.
void sums_of_all_rows(Exec& exec, const LinearLogpArgs& args, unsigned long long* fault) {
  const std::int64_t num_rows = args.hidden.shape(0);
  const std::int64_t bytes = column_tiles(args.vocab_size) *
                             static_cast<std::int64_t>(args.entropy ? sizeof(PartialSums<true>)
                                                                    : sizeof(PartialSums<false>));
  const std::int64_t part = rows_of_a_part(num_rows, kPartialBytes / bytes);
  for (std::int64_t begin = 0; begin < num_rows; begin += part) {
    const LinearLogpArgs rows = rows_of(args, begin, std::min(begin + part, num_rows));
    args.entropy ? sums_of_rows<true>(exec, rows, begin, fault)
                 : sums_of_rows<false>(exec, rows, begin, fault);
  }
}

// ---- backward ----

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
  sums_of_all_rows(exec, args, exec.gpu->fault());
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
    sums_of_all_rows(exec, forward, nullptr);
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
