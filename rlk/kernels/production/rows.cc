// Norms, log-probabilities and the gradient norm: f32 sums in a few vectors, one pass per sum.
#include <algorithm>
#include <cmath>
#include <limits>

#include "rlk/kernels/cpu/rows_isa.h"
#include "rlk/kernels/linear_logp_rows.h"
#include "rlk/kernels/production/rows_isa.h"
#include "rlk/kernels/production/table.h"
#include "rlk/kernels/reference/table.h"
#include "rlk/kernels/reference/token_filter.h"
#include "rlk/numerics/bf16.h"

namespace rlk::production {
namespace {

const RowsIsa& rows_isa() {
  return available(Isa::kAvx512) ? kRowsAvx512 : available(Isa::kAvx2) ? kRowsAvx2 : kRowsScalar;
}

const cpu::RowsIsa& cpu_rows_isa() {
  return cpu::rows_isa(available(Isa::kAvx512) ? Isa::kAvx512
                       : available(Isa::kAvx2) ? Isa::kAvx2
                                               : Isa::kScalar);
}

std::int64_t grain(double ns_per_item) {
  return std::max<std::int64_t>(1, static_cast<std::int64_t>(16000.0 / ns_per_item));
}

template <typename... Views>
bool dense(int dim, const Views&... views) {
  return ((!views || views.shape(dim) == 1 || views.stride(dim) == 1) && ...);
}

// Calls body(token, rows) for runs of rows: the heads of a token, or tokens that have one head.
template <typename Body>
void for_each_run(Exec& exec, const ConstTensorView& x, double ns_per_element, const Body& body) {
  const std::int64_t heads = x.shape(1);
  const double ns =
      static_cast<double>(heads) * (15.0 + ns_per_element * static_cast<double>(x.shape(2)));
  exec.pool.parallel_for(x.shape(0), grain(ns), [&](std::int64_t begin, std::int64_t end, int) {
    if (heads == 1) return body(begin, end - begin);
    for (std::int64_t t = begin; t < end; ++t) body(t, heads);
  });
}

std::int64_t row_stride(const ConstTensorView& x) { return x.stride(x.shape(1) == 1 ? 0 : 1); }

}  // namespace

void rms_norm(Exec& exec, const RmsNormArgs& args) {
  if (args.x.dtype == DType::kF32) return cpu_kernels().rms_norm(exec, args);
  if (!dense(2, args.x, args.y, args.residual, args.residual_out) || !dense(0, args.w)) {
    return reference::rms_norm(exec, args);
  }
  const std::int64_t n = args.x.shape(2);
  const ConstTensorView x = args.residual ? args.residual_out : args.x;
  for_each_run(exec, args.x, 0.25, [&](std::int64_t t, std::int64_t rows) {
    for (std::int64_t r = 0; args.residual && r < rows; ++r) {
      cpu_rows_isa().bf16.residual_add(
          args.residual_out.at<std::uint16_t>(t) + r * row_stride(args.residual_out),
          args.residual.at<std::uint16_t>(t) + r * row_stride(args.residual),
          args.x.at<std::uint16_t>(t) + r * row_stride(args.x), n);
    }
    const std::int64_t bad = rows_isa().rms_norm(
        args.y.at<std::uint16_t>(t), row_stride(args.y), args.q ? args.q.at<float>(t) : nullptr,
        row_stride(args.q), x.at<std::uint16_t>(t), row_stride(x), args.w.at<std::uint16_t>(), rows,
        n, args.eps);
    if (bad >= 0) exec.fault.report(t * args.x.shape(1) + bad);
  });
}

void rms_norm_backward(Exec& exec, const RmsNormBackwardArgs& args) {
  if (args.x.dtype == DType::kF32) return cpu_kernels().rms_norm_backward(exec, args);
  if (!dense(2, args.x, args.dy, args.dx) || !dense(0, args.w)) {
    return reference::rms_norm_backward(exec, args);
  }
  for_each_run(exec, args.x, 0.4, [&](std::int64_t t, std::int64_t rows) {
    rows_isa().rms_norm_backward(
        args.dx.at<std::uint16_t>(t), row_stride(args.dx), args.dy.at<std::uint16_t>(t),
        row_stride(args.dy), args.x.at<std::uint16_t>(t), row_stride(args.x),
        args.w.at<std::uint16_t>(), args.q.at<float>(t), row_stride(args.q), rows, args.x.shape(2));
  });
}

// Every thread sums a run of tokens, whatever sample they belong to.
void rms_norm_backward_weight(Exec& exec, const RmsNormBackwardWeightArgs& args) {
  if (args.x.dtype == DType::kF32) return cpu_kernels().rms_norm_backward_weight(exec, args);
  if (!dense(2, args.x, args.dy) || !dense(1, args.dw)) {
    return reference::rms_norm_backward_weight(exec, args);
  }
  const std::int64_t num_samples = args.cu_seqlens.shape(0) - 1;
  if (num_samples <= 0) return;
  const std::int64_t first = *args.cu_seqlens.at<std::int32_t>(0);
  const std::int64_t tokens = *args.cu_seqlens.at<std::int32_t>(num_samples) - first;
  const std::int64_t heads = args.x.shape(1);
  const std::int64_t n = args.x.shape(2);
  const cpu::RowsIsa& isa = cpu_rows_isa();
  const auto add = [&](float* dw, std::int64_t stride, std::int64_t begin, std::int64_t end,
                       bool fresh) {
    for (std::int64_t h = 0; h < heads; ++h) {
      isa.bf16.rms_norm_weight(dw + h * stride,
                               {.dx = nullptr,
                                .dx_stride = 0,
                                .dy = args.dy.at<std::uint16_t>(begin, h),
                                .dy_stride = args.dy.stride(0),
                                .x = args.x.at<std::uint16_t>(begin, h),
                                .x_stride = args.x.stride(0),
                                .w = nullptr,
                                .q = args.q.at<float>(begin, h),
                                .q_stride = args.q.stride(0),
                                .rows = end - begin,
                                .n = n,
                                .lanes = 0},
                               fresh);
    }
  };
  const double ns = 0.3 * static_cast<double>(heads * n);
  const std::int64_t parts =
      std::clamp<std::int64_t>(tokens / grain(ns), 1, exec.pool.num_threads());
  if (parts == 1) return add(args.dw.at<float>(), args.dw.stride(0), first, first + tokens, false);
  Workspace::Frame frame(exec.workspace);
  float* sums = frame.take<float>(parts * heads * n);
  exec.pool.parallel_for(parts, 1, [&](std::int64_t begin, std::int64_t end, int) {
    for (std::int64_t p = begin; p < end; ++p) {
      add(sums + p * heads * n, n, first + p * tokens / parts, first + (p + 1) * tokens / parts,
          true);
    }
  });
  for (std::int64_t p = 0; p < parts; ++p) {
    for (std::int64_t h = 0; h < heads; ++h) {
      isa.f32.add_to_f32(args.dw.at<float>(h), sums + (p * heads + h) * n, n);
    }
  }
}

void merge_heads(Exec& exec, const MergeHeadsArgs& args) {
  if (!dense(0, args.dw) || !dense(1, args.partial)) return reference::merge_heads(exec, args);
  float* dw = args.dw.at<float>();
  const std::int64_t n = args.partial.shape(1);
  std::fill_n(dw, n, 0.0f);
  for (std::int64_t h = 0; h < args.partial.shape(0); ++h) {
    const float* from = args.partial.at<float>(h);
    for (std::int64_t k = 0; k < n; ++k) dw[k] += from[k];
  }
}

namespace {

const SamplingParams& params_of(const SamplingParams* params, std::int64_t num_params,
                                std::int64_t t) {
  return params[num_params == 1 ? 0 : t];
}

// Row t of the logits as the distribution it stands for. Returns false where it is an error.
// Filters sort the row: rare, and not worth a kernel.
bool find_row(const ConstTensorView& logits, std::int64_t t, const SamplingParams& params,
              Workspace& workspace, float* filtered, SoftmaxRow* row) {
  row->x = logits.at<float>(t);
  row->n = logits.shape(1);
  row->scale = reference::inverse_temperature(params);
  row->filtered = filtered != nullptr && params.temperature != 0.0f &&
                  (params.min_p > 0.0f || params.top_k > 0 || params.top_p < 1.0f);
  if (!std::isfinite(row->scale)) return false;
  if (!row->filtered) return true;
  if (!reference::prepare_row(workspace, {row->x, 1}, row->n, params, filtered)) return false;
  row->x = filtered;
  row->scale = 1.0f;
  return true;
}

bool target_takes_part(const SoftmaxRow& row, std::int64_t target) {
  return target >= 0 && target < row.n && row.x[target] * row.scale >= -0x1p30f;
}

// body(t, row, ok) for every row.
template <typename Body>
void for_each_row(Exec& exec, const ConstTensorView& logits, const SamplingParams* params,
                  std::int64_t num_params, double ns_per_column, const Body& body) {
  const std::int64_t rows = logits.shape(0);
  const std::int64_t n = logits.shape(1);
  bool filters = false;
  for (std::int64_t i = 0; i < std::min(num_params, rows); ++i) {
    filters = filters || params[i].min_p > 0.0f || params[i].top_k > 0 || params[i].top_p < 1.0f;
  }
  Workspace::Frame frame(exec.workspace);
  float* filtered = filters ? frame.take<float>(n * exec.pool.num_threads()) : nullptr;
  exec.pool.parallel_for(
      rows, grain(60.0 + ns_per_column * static_cast<double>(n)),
      [&](std::int64_t begin, std::int64_t end, int thread) {
        thread_local Workspace workspace;  // the caller's one is not for other threads
        for (std::int64_t t = begin; t < end; ++t) {
          body(t, params_of(params, num_params, t), [&](SoftmaxRow* row) {
            return n > 0 && find_row(logits, t, params_of(params, num_params, t), workspace,
                                     filters ? filtered + thread * n : nullptr, row);
          });
        }
      });
}

}  // namespace

void logprob(Exec& exec, const LogprobArgs& args) {
  if (!dense(1, args.logits)) return reference::logprob(exec, args);
  const bool entropy = static_cast<bool>(args.entropy);
  for (std::int64_t t = 0; args.state && t < args.state.shape(0); ++t) {
    std::fill_n(args.state.at<std::int32_t>(t), kLogprobStateWords, 0);
  }
  for_each_row(exec, args.logits, args.params, args.num_params, 0.5,
               [&](std::int64_t t, const SamplingParams&, const auto& read) {
                 const std::int32_t target = *args.targets.at<std::int32_t>(t);
                 if (target == kIgnoreIndex) {
                   *args.logp.at<float>(t) = 0.0f;
                   if (entropy) *args.entropy.at<float>(t) = 0.0f;
                   return;
                 }
                 SoftmaxRow row;
                 if (!read(&row) || !target_takes_part(row, target)) return exec.fault.report(t);
                 const SoftmaxSums sums = rows_isa().softmax_sums(row, entropy);
                 if (sums.bad) return exec.fault.report(t);
                 const float log_sum = std::log(sums.sum);
                 *args.logp.at<float>(t) = (row.x[target] * row.scale - sums.max) - log_sum;
                 if (entropy) *args.entropy.at<float>(t) = log_sum - sums.weighted / sums.sum;
               });
}

void log_softmax(Exec& exec, const LogSoftmaxArgs& args) {
  if (!dense(1, args.logits, args.y)) return reference::log_softmax(exec, args);
  for_each_row(exec, args.logits, args.params, args.num_params, 0.7,
               [&](std::int64_t t, const SamplingParams&, const auto& read) {
                 SoftmaxRow row;
                 if (!read(&row)) return exec.fault.report(t);
                 const SoftmaxSums sums = rows_isa().softmax_sums(row, false);
                 if (sums.bad) return exec.fault.report(t);
                 const float log_sum = std::log(sums.sum);
                 float* y = args.y.at<float>(t);
                 for (std::int64_t j = 0; j < row.n; ++j) {
                   const float z = row.x[j] * row.scale;
                   y[j] = z < -0x1p30f ? -std::numeric_limits<float>::infinity()
                                       : (z - sums.max) - log_sum;
                 }
               });
}

void linear_logp(Exec& exec, const LinearLogpArgs& args) {
  linear_logp_by_rows(production_kernels(), exec, args);
}

void linear_logp_backward(Exec& exec, const LinearLogpBackwardArgs& args) {
  linear_logp_backward_by_rows(production_kernels(), exec, args);
}

void logprob_backward(Exec& exec, const LogprobBackwardArgs& args) {
  if (args.dlogits.dtype == DType::kF32) return cpu_kernels().logprob_backward(exec, args);
  if (!dense(1, args.logits, args.dlogits)) return reference::logprob_backward(exec, args);
  for_each_row(exec, args.logits, args.params, args.num_params, 1.0,
               [&](std::int64_t t, const SamplingParams& params, const auto& read) {
                 std::uint16_t* dz = args.dlogits.at<std::uint16_t>(t);
                 const std::int64_t n = args.logits.shape(1);
                 const std::int32_t target = *args.targets.at<std::int32_t>(t);
                 const float g = *args.g.at<float>(t);
                 const float g_entropy = args.g_entropy ? *args.g_entropy.at<float>(t) : 0.0f;
                 std::fill(dz + n, dz + args.dlogits.shape(1), std::uint16_t{0});
                 const auto zero_row = [&] { std::fill_n(dz, n, std::uint16_t{0}); };
                 if (target == kIgnoreIndex || (g == 0.0f && g_entropy == 0.0f)) return zero_row();
                 SoftmaxRow row;
                 SoftmaxSums sums{};
                 bool ok = read(&row) && target_takes_part(row, target);
                 if (ok) sums = rows_isa().softmax_sums(row, g_entropy != 0.0f);
                 if (!ok || sums.bad) {
                   zero_row();
                   return exec.fault.report(t);
                 }
                 const float log_sum = std::log(sums.sum);
                 const float scale = reference::inverse_temperature(params);
                 const float entropy = log_sum - sums.weighted / sums.sum;
                 rows_isa().softmax_gradient(
                     dz, row, {sums.max, 1.0f / sums.sum, log_sum, entropy, g, g_entropy, scale});
                 // The target's element again, with its own 1.
                 const float z = row.x[target] * row.scale - sums.max;
                 const float p = std::exp(z) / sums.sum;
                 float d = (1.0f - p) * g;
                 if (g_entropy != 0.0f) d -= p * ((z - log_sum) + entropy) * g_entropy;
                 dz[target] = numerics::to_bf16(d * scale).bits;
               });
}

void grad_norm(Exec& exec, const GradNormArgs& args) {
  const int threads = exec.pool.num_threads();
  constexpr std::int64_t kLine = 8;  // doubles of a cache line: one sum per thread
  Workspace::Frame frame(exec.workspace);
  double* sums = frame.take<double>(threads * kLine);
  std::fill_n(sums, threads * kLine, 0.0);
  for (std::int64_t i = 0; i < args.num_grads; ++i) {
    const float* grad = args.grads[i].at<float>();
    exec.pool.parallel_for(args.grads[i].layout.size(), std::int64_t{1} << 15,
                           [&](std::int64_t begin, std::int64_t end, int thread) {
                             sums[thread * kLine] +=
                                 rows_isa().sum_of_squares(grad + begin, end - begin);
                           });
  }
  double total = 0;
  for (int i = 0; i < threads; ++i) total += sums[i * kLine];
  *args.norm = static_cast<float>(std::sqrt(total));
  if (!std::isfinite(*args.norm)) exec.fault.report(0);
}

}  // namespace rlk::production
