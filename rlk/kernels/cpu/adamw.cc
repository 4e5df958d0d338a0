#include "rlk/kernels/adamw.h"

#include "rlk/kernels/cpu/rows.h"
#include "rlk/kernels/cpu/rows_isa.h"
#include "rlk/kernels/cpu/table.h"
#include "rlk/kernels/reference/table.h"
#include "rlk/numerics/grad_norm.h"

namespace rlk::cpu {
namespace {

// Elements per piece: a few tens of microseconds, and far below what a WideSum may add.
constexpr std::int64_t kNormGrain = std::int64_t{1} << 16;

template <typename Body>
void for_each_piece(Exec& exec, const GradNormArgs& args, const Body& body) {
  for (std::int64_t i = 0; i < args.num_grads; ++i) {
    const float* grad = args.grads[i].at<float>();
    exec.pool.parallel_for(args.grads[i].layout.size(), kNormGrain,
                           [&](std::int64_t begin, std::int64_t end, int thread) {
                             for (std::int64_t k = begin; k < end; k += kNormGrain) {
                               body(grad + k, std::min(kNormGrain, end - k), thread);
                             }
                           });
  }
}

// One per thread, in cache lines of its own.
struct alignas(64) ThreadNorm {
  int exponent = 1;
  numerics::uint128 q = 0;
};

}  // namespace

template <Isa I>
void grad_norm(Exec& exec, const GradNormArgs& args) {
  const RowsIsa& isa = rows_isa(I);
  const int num_threads = exec.pool.num_threads();
  Workspace::Frame frame(exec.workspace);
  ThreadNorm* norms = frame.take<ThreadNorm>(num_threads);
  std::fill(norms, norms + num_threads, ThreadNorm{});

  for_each_piece(exec, args, [&](const float* x, std::int64_t n, int thread) {
    norms[thread].exponent = std::max(norms[thread].exponent, isa.max_exponent(x, n));
  });
  numerics::MaxExponent exponent;
  for (int i = 0; i < num_threads; ++i) exponent.merge({norms[i].exponent});
  if (!exponent.finite()) {
    exec.fault.report(0);
    *args.norm = numerics::quiet_nan();
    return;
  }

  for_each_piece(exec, args, [&](const float* x, std::int64_t n, int thread) {
    const WideSum sum = isa.square_sum(x, n, exponent.value);
    norms[thread].q += sum.low + (numerics::uint128{sum.high} << 32);
  });
  numerics::NormSum total(exponent);
  for (int i = 0; i < num_threads; ++i) total.q += norms[i].q;
  *args.norm = total.finish();
  if (!numerics::is_finite(*args.norm)) exec.fault.report(0);
}

template <Isa I>
void adamw(Exec& exec, const AdamwArgs& args) {
  if (!dense(0, args.w, args.master, args.m, args.v, args.dw)) {
    return reference::adamw(exec, args);
  }
  const RowsIsa& isa = rows_isa(I);
  const AdamwRows rows = {
      .w = args.w.at<std::uint16_t>(),
      .master = args.master.at<float>(),
      .m = args.m.at<float>(),
      .v = args.v.at<float>(),
      .dw = args.dw.at<float>(),
      .grad_scale = args.grad_scale,
      .lr = args.lr,
      .b1 = args.b1,
      .b2 = args.b2,
      .f1 = args.f1,
      .f2 = args.f2,
      .h1 = args.h1,
      .h2 = args.h2,
      .eps = args.eps,
      .wd = args.wd,
  };
  exec.pool.parallel_for(
      args.w.shape(0), grain(2.0) / 16 * 16,
      [&](std::int64_t begin, std::int64_t end, int) { isa.adamw(rows, begin, end); });
}

RLK_INSTANTIATE(grad_norm, GradNormArgs);
RLK_INSTANTIATE(adamw, AdamwArgs);

}  // namespace rlk::cpu
