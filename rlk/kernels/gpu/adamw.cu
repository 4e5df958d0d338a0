#include "rlk/numerics/adamw.h"

#include "rlk/kernels/adamw.h"
#include "rlk/kernels/gpu/block_reduce.h"
#include "rlk/kernels/gpu/elements.h"
#include "rlk/kernels/gpu/table.h"
#include "rlk/numerics/grad_norm.h"

namespace rlk::gpu {
namespace {

using numerics::MaxExponent;
using numerics::NormSum;
using numerics::uint128;

constexpr int kNormThreads = 256;
constexpr std::int64_t kNormElements = 16;  // a thread's, at least
constexpr std::int64_t kMaxNormBlocks = 2048;

// The norm's state in device memory: integers, so the order of the blocks cannot be seen.
struct NormState {
  int exponent;
  int unused;
  unsigned long long low;  // Q
  unsigned long long high;
};

template <typename Visit>
RLK_DEVICE void for_each_element(const float* grad, std::int64_t n, std::int64_t num_blocks,
                                 const Visit& visit) {
  for (std::int64_t i = block_x() * kNormThreads + thread(); i < n;
       i += num_blocks * kNormThreads) {
    visit(grad[i]);
  }
}

RLK_KERNEL(kNormThreads)
max_exponent_kernel(NormState* state, const float* grad, std::int64_t n, std::int64_t num_blocks) {
  RLK_SHARED(ReduceBytes, shared, kNormThreads);
  MaxExponent exponent;
  for_each_element(grad, n, num_blocks, [&](float x) { exponent.add(x); });
  const int value = block_reduce<kNormThreads>(
      exponent.value, shared, [](const int& a, const int& b) { return a > b ? a : b; });
  if (thread() == 0) atomic_max(&state->exponent, value);
}

RLK_KERNEL(kNormThreads)
norm_sum_kernel(NormState* state, const float* grad, std::int64_t n, std::int64_t num_blocks) {
  RLK_SHARED(ReduceBytes, shared, kNormThreads);
  const MaxExponent exponent{state->exponent < 1 ? 1 : state->exponent};
  if (!exponent.finite()) return;
  NormSum sum(exponent);
  for_each_element(grad, n, num_blocks, [&](float x) { sum.add(x); });
  const uint128 q = block_reduce<kNormThreads>(
      sum.q, shared, [](const uint128& a, const uint128& b) { return a + b; });
  if (thread() != 0) return;
  // A carry is due exactly when the low half wraps, whichever block's addition does it.
  const auto low = static_cast<unsigned long long>(q);
  const unsigned long long carry = atomic_add(&state->low, low) + low < low ? 1 : 0;
  atomic_add(&state->high, static_cast<unsigned long long>(q >> 64) + carry);
}

RLK_KERNEL(1)
finish_norm_kernel(float* norm, const NormState* state, unsigned long long* fault) {
  const MaxExponent exponent{state->exponent < 1 ? 1 : state->exponent};
  float value = numerics::quiet_nan();
  if (exponent.finite()) {
    NormSum sum(exponent);
    sum.q = static_cast<uint128>(state->high) << 64 | state->low;
    value = sum.finish();
  }
  *norm = value;
  if (!numerics::is_finite(value)) report(fault, 0);
}

struct AdamwArrays {
  Ref<float> master, m, v;
  Ref<const float> dw;
};

template <typename T>
RLK_KERNEL(kElementThreads)
adamw_kernel(Ref<T> w, AdamwArrays a, numerics::AdamWConstants constants, float grad_scale,
             std::int64_t n) {
  const std::int64_t i = block_x() * kElementThreads + thread();
  if (i >= n) return;
  const float dw = a.dw(i);
  const float g = grad_scale == 1.0f ? dw : dw * grad_scale;
  numerics::adamw_step(constants, g, &a.master(i), &a.m(i), &a.v(i));
  store(w(i), a.master(i));
}

}  // namespace

void grad_norm(Exec& exec, const GradNormArgs& args) {
  device::Workspace::Frame frame(exec.gpu->workspace());
  NormState* const state = frame.take<NormState>(1);
  device::fill(state, 0, sizeof(NormState), exec.gpu->stream());
  for (const auto kernel : {max_exponent_kernel, norm_sum_kernel}) {
    for (std::int64_t i = 0; i < args.num_grads; ++i) {
      const std::int64_t n = args.grads[i].layout.size();
      std::int64_t blocks = ceil_div(n, kNormThreads * kNormElements);
      if (blocks > kMaxNormBlocks) blocks = kMaxNormBlocks;
      launch(exec, {blocks}, kNormThreads, 0, kernel, state, args.grads[i].at<float>(), n, blocks);
    }
  }
  launch(exec, {1}, 1, 0, finish_norm_kernel, args.norm, state, exec.gpu->fault());
}

void adamw(Exec& exec, const AdamwArgs& args) {
  const numerics::AdamWConstants constants{args.b1, args.f1,  args.h1, args.b2, args.f2,
                                           args.h2, args.eps, args.lr, args.wd};
  const std::int64_t n = args.w.shape(0);
  const AdamwArrays arrays{ref<float>(args.master), ref<float>(args.m), ref<float>(args.v),
                           ref<float>(args.dw)};
  with_storage(args.w.dtype, [&]<typename T>() {
    launch(exec, {ceil_div(n, kElementThreads)}, kElementThreads, 0, adamw_kernel<T>,
           ref<T>(args.w), arrays, constants, args.grad_scale, n);
  });
}

}  // namespace rlk::gpu
