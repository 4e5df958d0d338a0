#include "rlk/kernels/logprob.h"

#include "rlk/kernels/gpu/linear_logp.h"
#include "rlk/kernels/gpu/row_parts.h"
#include "rlk/kernels/gpu/table.h"

namespace rlk::gpu {
namespace {

using numerics::LogSumExpEnd;

struct RowSums {
  EntropySumExp sums;
  LogSumExpEnd end;
};

// False where the row, or its target, is an error. Without `entropy` the sums for it may be
// missing.
template <bool kEntropy>
RLK_DEVICE bool read_row(const Rows& rows, std::int64_t t, std::int64_t target, ReduceBytes* shared,
                         LogitRow* row, RowSums* out) {
  if (target < 0 || target >= rows.vocab_size) return false;
  const SamplingParams& params = rows.params_of(t);
  if (filters(params)) {
    if (!rows.make(t, shared, row)) return false;
    EntropySumExp sums;
    row->for_each([&](std::int64_t, float z) { sums.add(z); });
    out->sums =
        block_reduce<kRowThreads>(sums, shared, [](EntropySumExp a, const EntropySumExp& b) {
          a.merge(b);
          return a;
        });
  } else {
    const float* const logits = &rows.logits(t);
    const std::int64_t stride = rows.logits.stride[1];
    *row = LogitRow{shared, logits, stride, rows.vocab_size, scale_of(params)};
    out->sums =
        rows.found.sums != nullptr
            ? rows.merged_sums(t, shared)
            : row_sums<kEntropy, kRowThreads>(logits, stride, rows.vocab_size, row->scale, shared);
    if (out->sums.status() != LogitStatus::kOk) return false;
    row->z_max = out->sums.sum.z_max;
  }
  if (row->z(target) == -numerics::kInfinity) return false;
  out->end = LogSumExpEnd(out->sums.sum);
  return true;
}

template <bool kEntropy>
RLK_KERNEL(kRowThreads)
logprob_kernel(Ref<float> logp, Ref<float> entropy, Rows rows, Ref<const std::int32_t> targets,
               Ref<std::int32_t> state, unsigned long long* fault) {
  const std::int64_t t = block_x();
  const std::int32_t target = targets(t);
  const auto keep = [&](const numerics::LogSumExp& sum) {
    if (state) write_state(state, t, sum);
  };
  if (target == kIgnoreIndex) {
    if (thread() != 0) return;
    logp(t) = 0.0f;
    if constexpr (kEntropy) entropy(t) = 0.0f;
    return keep({});
  }
  RLK_SHARED(ReduceBytes, shared, kRowThreads);
  LogitRow row;
  RowSums sums;
  const bool good = read_row<kEntropy>(rows, t, target, shared, &row, &sums);
  if (thread() != 0) return;
  keep(good ? sums.sums.sum : numerics::LogSumExp{});
  if (!good) return report(fault, rows.first_row + t);
  logp(t) = sums.end.logp(row.z(target));
  if constexpr (kEntropy) entropy(t) = static_cast<float>(sums.end.entropy(sums.sums));
}

template <typename T, bool kEntropy>
RLK_KERNEL(kRowThreads)
logprob_backward_kernel(Ref<T> dlogits, std::int64_t vocab_padded, Rows rows,
                        Ref<const std::int32_t> targets, Ref<const float> g_in,
                        Ref<const float> g_entropy_in, Ref<const std::int32_t> state,
                        unsigned long long* fault) {
  const std::int64_t t = block_x();
  const std::int32_t target = targets(t);
  const float g = g_in(t);
  const float g_entropy = kEntropy ? g_entropy_in(t) : 0.0f;
  RLK_SHARED(ReduceBytes, shared, kRowThreads);
  LogitRow row;
  RowSums sums;
  const bool needed = target != kIgnoreIndex && !(g == 0.0f && g_entropy == 0.0f);
  bool good = false;
  if (needed && state && g_entropy == 0.0f && !filters(rows.params_of(t))) {
    const numerics::LogSumExp sum = read_state(state, t);
    row = LogitRow{shared, &rows.logits(t), rows.logits.stride[1], rows.vocab_size,
                   scale_of(rows.params_of(t))};
    row.z_max = sum.z_max;
    good = sum.any;
    if (good) sums.end = LogSumExpEnd(sum);
  } else if (needed) {
    good = read_row<kEntropy>(rows, t, target, shared, &row, &sums);
  }
  if (needed && !good && thread() == 0) report(fault, rows.first_row + t);
  const float entropy =
      good && g_entropy != 0.0f ? static_cast<float>(sums.end.entropy(sums.sums)) : 0.0f;
  for (std::int64_t j = thread(); j < vocab_padded; j += kRowThreads) {
    float dz = 0.0f;
    const float z = good && j < rows.vocab_size ? row.z(j) : -numerics::kInfinity;
    if (z != -numerics::kInfinity) {
      const float p = sums.end.p(z);
      dz = ((j == target ? 1.0f : 0.0f) - p) * g;
      if (g_entropy != 0.0f) dz = dz - (p * (sums.end.logp(z) + entropy)) * g_entropy;
      dz = dz * row.scale;
    }
    store(dlogits(t, j), dz);
  }
}

}  // namespace

void logprob_in_parts(Exec& exec, const LogprobArgs& args, std::int64_t first_row,
                      const Parts& parts) {
  const std::int64_t num_rows = args.logits.shape(0);
  device::Workspace::Frame frame(exec.gpu->workspace());
  Rows rows = make_rows(exec, frame, args.logits, args.params, args.num_params, first_row);
  filter_parts(exec, frame, num_rows, parts, args.params, &rows);
  sum_parts(exec, frame, num_rows, parts, static_cast<bool>(args.entropy), &rows);
  launch(exec, {num_rows}, kRowThreads, 0,
         args.entropy ? logprob_kernel<true> : logprob_kernel<false>, ref<float>(args.logp),
         ref<float>(args.entropy), rows, ref<std::int32_t>(args.targets),
         ref<std::int32_t>(args.state), exec.gpu->fault());
}

void logprob_of_rows(Exec& exec, const LogprobArgs& args, std::int64_t first_row) {
  logprob_in_parts(exec, args, first_row, parts_for(args.logits.shape(0), args.logits.shape(1)));
}

void logprob_backward_of_rows(Exec& exec, const LogprobBackwardArgs& args, std::int64_t first_row) {
  device::Workspace::Frame frame(exec.gpu->workspace());
  with_storage(args.dlogits.dtype, [&]<typename T>() {
    launch(exec, {args.dlogits.shape(0)}, kRowThreads, 0,
           args.g_entropy ? logprob_backward_kernel<T, true> : logprob_backward_kernel<T, false>,
           ref<T>(args.dlogits), args.dlogits.shape(1),
           make_rows(exec, frame, args.logits, args.params, args.num_params, first_row),
           ref<std::int32_t>(args.targets), ref<float>(args.g), ref<float>(args.g_entropy),
           ref<std::int32_t>(args.state), exec.gpu->fault());
  });
}

void logprob(Exec& exec, const LogprobArgs& args) { logprob_of_rows(exec, args, 0); }

void logprob_backward(Exec& exec, const LogprobBackwardArgs& args) {
  logprob_backward_of_rows(exec, args, 0);
}

}  // namespace rlk::gpu
