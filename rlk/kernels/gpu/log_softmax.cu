#include "rlk/kernels/gpu/logit_row.h"
#include "rlk/kernels/gpu/row_sums.h"
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
  const LogSumExp sum =
      row_sums<false, kRowThreads>(logits, stride, rows.vocab_size, row->scale, shared).sum;
  if (sum.status() != LogitStatus::kOk) return false;
  row->z_max = sum.z_max;
  *end = LogSumExpEnd(sum);
  return true;
}

// y may be the logits: a thread reads an element before it writes it, after the sums are there.
RLK_KERNEL(kRowThreads)
log_softmax_kernel(Ref<float> y, Rows rows, unsigned long long* fault) {
  const std::int64_t t = block_x();
  RLK_SHARED(ReduceBytes, shared, kRowThreads);
  LogitRow row;
  LogSumExpEnd end;
  if (!read_row(rows, t, shared, &row, &end)) {
    if (thread() == 0) report(fault, t);
    return;
  }
  // Several at a time, so that reading one does not wait for writing another.
  constexpr int kInFlight = 8;
  for (std::int64_t j = thread(); j < rows.vocab_size; j += kInFlight * kRowThreads) {
    float z[kInFlight];
    RLK_UNROLL
    for (int i = 0; i < kInFlight; ++i) {
      const std::int64_t at = j + i * kRowThreads;
      z[i] = at < rows.vocab_size ? row.z(at) : 0.0f;
    }
    RLK_UNROLL
    for (int i = 0; i < kInFlight; ++i) {
      const std::int64_t at = j + i * kRowThreads;
      if (at < rows.vocab_size) y(t, at) = end.logp(z[i]);
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
  device::Workspace::Frame frame(exec.gpu->workspace());
  launch(exec, {args.logits.shape(0)}, kRowThreads, 0, log_softmax_kernel, ref<float>(args.y),
         make_rows(exec, frame, args.logits, args.params, args.num_params, 0), exec.gpu->fault());
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
