#include "rlk/ops/logprob.h"

#include <cmath>

#include "rlk/ops/dispatch.h"

namespace rlk {
namespace {

void check_params(const Context& ctx, Op op, const SamplingParams* params, std::int64_t num_params,
                  std::int64_t rows) {
  if (rows > 0 && (!params || (num_params != 1 && num_params != rows))) {
    fail(ErrorCode::kInvalidArgument, "{}: {} sampling params for {} rows; expected 1 or one each",
         ctx.where(op), params ? num_params : 0, rows);
  }
  for (std::int64_t i = 0; params && i < num_params; ++i) validate(params[i], to_string(op));
}

void check_targets(const Context& ctx, Op op, const ConstTensorView& targets,
                   std::int64_t vocab_size) {
  for (std::int64_t t = 0; t < targets.shape(0); ++t) {
    const std::int32_t id = *targets.at<std::int32_t>(t);
    if (id != kIgnoreIndex && (id < 0 || id >= vocab_size)) {
      fail(ErrorCode::kInvalidArgument,
           "{}: token {} has target {}, outside the vocabulary [0, {})", ctx.where(op), t, id,
           vocab_size);
    }
  }
}

void check_state(const Context& ctx, Op op, const ConstTensorView& state, std::int64_t rows) {
  if (state) check_tensor(ctx, op, "state", state, DType::kI32, {rows, kLogprobStateWords});
}

void check_dlogits(const Context& ctx, Op op, const ConstTensorView& dlogits, std::int64_t rows,
                   std::int64_t vocab_size) {
  check_tensor(ctx, op, "dlogits", dlogits, check_storage(ctx, op, "dlogits", dlogits),
               {rows, kAnySize});
  if (dlogits.shape(1) < vocab_size) {
    fail(ErrorCode::kShape, "{}: dlogits has {} columns, the vocabulary {}", ctx.where(op),
         dlogits.shape(1), vocab_size);
  }
}

constexpr const char* kFault =
    "NaN, infinity or a logit beyond 2^30, a target that takes no part, or nothing takes part";

}  // namespace

void validate(const SamplingParams& p, const char* where) {
  if (!(p.temperature >= 0) || std::isinf(p.temperature)) {
    fail(ErrorCode::kInvalidArgument, "{}: temperature {} must be finite and at least 0", where,
         p.temperature);
  }
  if (p.temperature > 0 && std::isinf(1.0f / p.temperature)) {
    fail(ErrorCode::kInvalidArgument, "{}: temperature {} is too small; 0 means greedy", where,
         p.temperature);
  }
  if (p.top_k < 0) {
    fail(ErrorCode::kInvalidArgument, "{}: top_k {} must be at least 0 (0: all)", where, p.top_k);
  }
  if (!(p.top_p > 0 && p.top_p <= 1)) {
    fail(ErrorCode::kInvalidArgument, "{}: top_p {} must be in (0, 1]", where, p.top_p);
  }
  if (!(p.min_p >= 0 && p.min_p <= 1)) {
    fail(ErrorCode::kInvalidArgument, "{}: min_p {} must be in [0, 1]", where, p.min_p);
  }
}

void logprob(Context& ctx, const LogprobArgs& a) {
  constexpr Op op = Op::logprob;
  const std::int64_t rows = a.logits.shape(0), vocab_size = a.logits.shape(1);
  check_tensor(ctx, op, "logits", a.logits, DType::kF32, {rows, vocab_size});
  check_tensor(ctx, op, "targets", a.targets, DType::kI32, {rows});
  check_tensor(ctx, op, "logp", a.logp, DType::kF32, {rows});
  if (a.entropy) check_tensor(ctx, op, "entropy", a.entropy, DType::kF32, {rows});
  check_params(ctx, op, a.params, a.num_params, rows);
  check_targets(ctx, op, a.targets, vocab_size);
  check_state(ctx, op, a.state, rows);
  dispatch(ctx, op, &KernelTable::logprob, a, a.logits, kFault);
}

void logprob_backward(Context& ctx, const LogprobBackwardArgs& a) {
  constexpr Op op = Op::logprob_backward;
  const std::int64_t rows = a.logits.shape(0), vocab_size = a.logits.shape(1);
  check_tensor(ctx, op, "logits", a.logits, DType::kF32, {rows, vocab_size});
  check_tensor(ctx, op, "targets", a.targets, DType::kI32, {rows});
  check_dlogits(ctx, op, a.dlogits, rows, vocab_size);
  check_tensor(ctx, op, "g", a.g, DType::kF32, {rows});
  if (a.g_entropy) check_tensor(ctx, op, "g_entropy", a.g_entropy, DType::kF32, {rows});
  check_params(ctx, op, a.params, a.num_params, rows);
  check_targets(ctx, op, a.targets, vocab_size);
  check_state(ctx, op, a.state, rows);
  dispatch(ctx, op, &KernelTable::logprob_backward, a, a.logits, kFault);
}

void log_softmax(Context& ctx, const LogSoftmaxArgs& a) {
  constexpr Op op = Op::log_softmax;
  const std::int64_t rows = a.logits.shape(0), vocab_size = a.logits.shape(1);
  check_tensor(ctx, op, "logits", a.logits, DType::kF32, {rows, vocab_size});
  check_tensor(ctx, op, "y", a.y, DType::kF32, {rows, vocab_size});
  check_params(ctx, op, a.params, a.num_params, rows);
  dispatch(ctx, op, &KernelTable::log_softmax, a, a.logits,
           "NaN, infinity or a logit beyond 2^30, or nothing takes part");
}

void log_softmax_backward(Context& ctx, const LogSoftmaxBackwardArgs& a) {
  constexpr Op op = Op::log_softmax_backward;
  const std::int64_t rows = a.logits.shape(0), vocab_size = a.logits.shape(1);
  check_tensor(ctx, op, "logits", a.logits, DType::kF32, {rows, vocab_size});
  check_tensor(ctx, op, "dy", a.dy, DType::kF32, {rows, vocab_size});
  check_dlogits(ctx, op, a.dlogits, rows, vocab_size);
  check_params(ctx, op, a.params, a.num_params, rows);
  dispatch(ctx, op, &KernelTable::log_softmax_backward, a, a.logits,
           "NaN, infinity or a logit beyond 2^30, nothing takes part, or a sum of dy that is not "
           "finite");
}

void sample(Context& ctx, const SampleArgs& a) {
  constexpr Op op = Op::sample;
  const std::int64_t rows = a.logits.shape(0);
  check_tensor(ctx, op, "logits", a.logits, DType::kF32, {rows, kAnySize});
  check_tensor(ctx, op, "token_ids", a.token_ids, DType::kI32, {rows});
  check_params(ctx, op, a.params, rows, rows);
  if (rows > 0 && !a.keys) {
    fail(ErrorCode::kInvalidArgument, "{}: keys are absent", ctx.where(op));
  }
  dispatch(ctx, op, &KernelTable::sample, a, a.logits, kFault);
}

}  // namespace rlk
