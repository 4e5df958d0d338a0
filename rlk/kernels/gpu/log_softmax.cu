#include "rlk/kernels/gpu/elements.h"
#include "rlk/kernels/gpu/row_parts.h"
#include "rlk/kernels/gpu/table.h"
#include "rlk/kernels/logprob.h"

namespace rlk::gpu {
namespace {

using numerics::LogSumExpEnd;

// False where the row is an error.
RLK_DEVICE bool read_row(const Rows& rows, std::int64_t t, ReduceBytes* shared, LogitRow* row,
                         LogSumExpEnd* end) {
  const SamplingParams& params = rows.params_of(t);
  if (filters(params)) {
    if (!rows.make(t, shared, row)) return false;
    *end = LogSumExpEnd(log_sum_exp(*row));
    return true;
  }
  const float* const logits = &rows.logits(t);
  const std::int64_t stride = rows.logits.stride[1];
  *row = LogitRow{shared, logits, stride, rows.vocab_size, scale_of(params)};
  const EntropySumExp sums =
      rows.found.sums != nullptr
          ? rows.merged_sums(t, shared)
          : row_sums<false, kRowThreads>(logits, stride, rows.vocab_size, row->scale, shared);
  if (sums.status() != LogitStatus::kOk) return false;
  row->z_max = sums.sum.z_max;
  *end = LogSumExpEnd(sums.sum);
  return true;
}

// What the log-probabilities of a row need besides its logits.
struct RowEnd {
  double c;
  std::uint64_t last_kept;
  float z_max;
  float min_difference;
  bool good;
};

RLK_KERNEL(kRowThreads)
row_end_kernel(RowEnd* ends, Rows rows, unsigned long long* fault) {
  const std::int64_t t = block_x();
  RLK_SHARED(ReduceBytes, shared, kRowThreads);
  LogitRow row;
  LogSumExpEnd end;
  const bool good = read_row(rows, t, shared, &row, &end);
  if (thread() != 0) return;
  ends[t].good = good;
  if (!good) return report(fault, t);
  ends[t].c = end.c;
  ends[t].last_kept = row.last_kept;
  ends[t].z_max = end.z_max;
  ends[t].min_difference = row.min_difference;
}

constexpr int kLogpThreads = 256;
constexpr int kLogpPacks = 4;  // of a thread, 4 logits each

// A block reads a part of one row. y may be the logits: a thread reads before it writes.
template <bool kWhole>
RLK_KERNEL(kLogpThreads)
log_softmax_kernel(Ref<float> y, Rows rows, const RowEnd* ends, unsigned blocks_per_row) {
  using Four = Pack<float, 4>;
  const unsigned t = static_cast<unsigned>(block_x()) / blocks_per_row;
  const unsigned block = static_cast<unsigned>(block_x()) - t * blocks_per_row;
  const int first = static_cast<int>(block) * (4 * kLogpPacks * kLogpThreads) + 4 * thread();
  const int n = static_cast<int>(rows.vocab_size);
  const float* const in = &rows.logits(t);
  float* const out = &y(t);
  Four packs[kLogpPacks];
  RLK_UNROLL
  for (int p = 0; p < kLogpPacks; ++p) {
    const int j = first + p * 4 * kLogpThreads;
    if (j >= n) continue;
    if constexpr (kWhole) {
      packs[p] = Four::read(in + j);
    } else {
      float x[4];
      load_pack(in, rows.logits.stride[1], j, n, false, x);
      packs[p] = Four::of(x);
    }
  }
  if (!ends[t].good) return;
  LogitRow row;
  row.z_max = ends[t].z_max;
  row.min_difference = ends[t].min_difference;
  const std::uint64_t last_kept = ends[t].last_kept;
  LogSumExpEnd end;
  end.z_max = row.z_max;
  end.c = ends[t].c;
  const float scale = scale_of(rows.params_of(t));
  RLK_UNROLL
  for (int p = 0; p < kLogpPacks; ++p) {
    const int j = first + p * 4 * kLogpThreads;
    if (j >= n) continue;
    float x[4];
    packs[p].get(x);
    RLK_UNROLL
    for (int i = 0; i < 4; ++i) {
      const float z = x[i] * scale;
      const bool kept = row.is_near(z) && order_key(z, j + i) >= last_kept;
      x[i] = kept ? end.logp(z) : -numerics::kInfinity;
    }
    if constexpr (kWhole) {
      Four::of(x).write(out + j);
    } else {
      store_pack(out, y.stride[1], j, n, false, x);
    }
  }
}

// The lane sum of dy over the tokens that take part: a thread adds whole lanes. The result is the
// same in each thread.
RLK_DEVICE float sum_of(const LogitRow& row, const float* dy, std::int64_t stride, int lanes,
                        ReduceBytes* shared) {
  float* const sums = reinterpret_cast<float*>(shared);
  for (int lane = thread(); lane < lanes; lane += kRowThreads) {
    float sum = 0.0f;
    for (std::int64_t j = lane; j < row.vocab_size; j += lanes) {
      if (row.z(j) != -numerics::kInfinity) sum = sum + dy[j * stride];
    }
    sums[lane] = sum;
  }
  barrier();
  for (int step = 1; step < lanes; step *= 2) {
    for (int lane = 2 * step * thread(); lane < lanes; lane += 2 * step * kRowThreads) {
      sums[lane] = sums[lane] + sums[lane + step];
    }
    barrier();
  }
  return sums[0] + 0.0f;
}

template <typename T>
RLK_KERNEL(kRowThreads)
log_softmax_backward_kernel(Ref<T> dlogits, std::int64_t vocab_padded, Rows rows,
                            Ref<const float> dy, int lanes, unsigned long long* fault) {
  const std::int64_t t = block_x();
  RLK_SHARED(ReduceBytes, shared, kRowThreads);
  LogitRow row;
  LogSumExpEnd end;
  bool good = read_row(rows, t, shared, &row, &end);
  float sum = 0.0f;
  if (good) {
    sum = sum_of(row, &dy(t), dy.stride[1], lanes, shared);
    good = numerics::is_finite(sum);
  }
  if (!good && thread() == 0) report(fault, t);
  for (std::int64_t j = thread(); j < vocab_padded; j += kRowThreads) {
    float dz = 0.0f;
    const float z = good && j < rows.vocab_size ? row.z(j) : -numerics::kInfinity;
    if (z != -numerics::kInfinity) dz = (dy(t, j) - end.p(z) * sum) * row.scale;
    store(dlogits(t, j), dz);
  }
}

}  // namespace

void log_softmax(Exec& exec, const LogSoftmaxArgs& args) {
  const std::int64_t num_rows = args.logits.shape(0);
  const std::int64_t n = args.logits.shape(1);
  device::Workspace::Frame frame(exec.gpu->workspace());
  Rows rows = make_rows(exec, frame, args.logits, args.params, args.num_params, 0);
  sum_parts(exec, frame, num_rows, parts_for(num_rows, n), false, &rows);
  RowEnd* const ends = frame.take<RowEnd>(num_rows);
  launch(exec, {num_rows}, kRowThreads, 0, row_end_kernel, ends, rows, exec.gpu->fault());
  const std::int64_t blocks_per_row = ceil_div(n, 4 * kLogpPacks * kLogpThreads);
  const bool whole = n % 4 == 0 && packs<4>(args.logits) && packs<4>(args.y);
  launch(exec, {num_rows * blocks_per_row}, kLogpThreads, 0,
         whole ? log_softmax_kernel<true> : log_softmax_kernel<false>, ref<float>(args.y), rows,
         ends, static_cast<unsigned>(blocks_per_row));
}

void log_softmax_backward(Exec& exec, const LogSoftmaxBackwardArgs& args) {
  device::Workspace::Frame frame(exec.gpu->workspace());
  with_storage(args.dlogits.dtype, [&]<typename T>() {
    launch(exec, {args.dlogits.shape(0)}, kRowThreads, 0, log_softmax_backward_kernel<T>,
           ref<T>(args.dlogits), args.dlogits.shape(1),
           make_rows(exec, frame, args.logits, args.params, args.num_params, 0),
           ref<float>(args.dy), exec.contract.norm_lanes, exec.gpu->fault());
  });
}

}  // namespace rlk::gpu
