#include "rlk/ops/linear_logp.h"

#include "rlk/ops/dispatch.h"
#include "rlk/ops/logprob.h"

namespace rlk {
namespace {

constexpr const char* kFault =
    "NaN, infinity or a logit beyond 2^30, a target that takes no part, or nothing takes part";

void check_packed(const Context& ctx, Op op, const char* name, const PackedWeight* packed,
                  std::int64_t n, std::int64_t k) {
  if (packed && packed->owner && (packed->n != n || packed->k != k)) {
    fail(ErrorCode::kShape, "{}: {} is [{}, {}], expected [{}, {}]", ctx.where(op), name, packed->n,
         packed->k, n, k);
  }
}

// What forward and backward read.
void check_inputs(const Context& ctx, Op op, const LinearLogpArgs& a) {
  const std::int64_t num_tokens = a.hidden.shape(0), hidden_size = a.hidden.shape(1);
  const std::int64_t vocab_padded = a.head.shape(0);
  const DType storage = check_mac_storage(ctx, op, "hidden", a.hidden);
  check_tensor(ctx, op, "hidden", a.hidden, storage, {num_tokens, hidden_size});
  check_tensor(ctx, op, "head", a.head, storage, {vocab_padded, hidden_size});
  if (a.vocab_size < 0 || a.vocab_size > vocab_padded) {
    fail(ErrorCode::kShape, "{}: vocab_size is {}, the head has {} rows", ctx.where(op),
         a.vocab_size, vocab_padded);
  }
  check_packed(ctx, op, "packed_forward", a.packed_forward, a.vocab_size, hidden_size);
  check_tensor(ctx, op, "targets", a.targets, DType::kI32, {num_tokens});
  if (num_tokens > 0 && (!a.params || (a.num_params != 1 && a.num_params != num_tokens))) {
    fail(ErrorCode::kInvalidArgument, "{}: {} sampling params for {} rows; expected 1 or one each",
         ctx.where(op), a.params ? a.num_params : 0, num_tokens);
  }
  for (std::int64_t i = 0; num_tokens > 0 && i < a.num_params; ++i) {
    validate(a.params[i], to_string(op));
  }
  for (std::int64_t t = 0; t < num_tokens; ++t) {
    const std::int32_t id = *a.targets.at<std::int32_t>(t);
    if (id != kIgnoreIndex && (id < 0 || id >= a.vocab_size)) {
      fail(ErrorCode::kInvalidArgument,
           "{}: token {} has target {}, outside the vocabulary [0, {})", ctx.where(op), t, id,
           a.vocab_size);
    }
  }
  if (a.state) {
    check_tensor(ctx, op, "state", a.state, DType::kI32, {num_tokens, kLogprobStateWords});
  }
}

}  // namespace

void linear_logp(Context& ctx, const LinearLogpArgs& a) {
  constexpr Op op = Op::linear_logp;
  const std::int64_t num_tokens = a.hidden.shape(0);
  check_inputs(ctx, op, a);
  check_tensor(ctx, op, "logp", a.logp, DType::kF32, {num_tokens});
  if (a.entropy) check_tensor(ctx, op, "entropy", a.entropy, DType::kF32, {num_tokens});
  dispatch(ctx, op, &KernelTable::linear_logp, a, a.hidden, kFault);
}

void linear_logp_backward(Context& ctx, const LinearLogpBackwardArgs& b) {
  constexpr Op op = Op::linear_logp_backward;
  const LinearLogpArgs& a = b.forward;
  const std::int64_t num_tokens = a.hidden.shape(0), hidden_size = a.hidden.shape(1);
  const std::int64_t vocab_padded = a.head.shape(0);
  check_inputs(ctx, op, a);
  check_packed(ctx, op, "packed_backward", a.packed_backward, hidden_size, vocab_padded);
  check_tensor(ctx, op, "d_hidden", b.d_hidden, a.hidden.dtype, {num_tokens, hidden_size});
  check_tensor(ctx, op, "dw", b.dw, DType::kF32, {vocab_padded, hidden_size});
  check_tensor(ctx, op, "chain", b.chain, DType::kF32, {vocab_padded, hidden_size});
  check_tensor(ctx, op, "g", b.g, DType::kF32, {num_tokens});
  if (b.g_entropy) check_tensor(ctx, op, "g_entropy", b.g_entropy, DType::kF32, {num_tokens});
  check_tensor(ctx, op, "group_ends", b.group_ends, DType::kI64, {kAnySize});
  for (std::int64_t i = 0, last = 0; i < b.group_ends.shape(0); ++i) {
    const std::int64_t end = *b.group_ends.at<std::int64_t>(i);
    if (end < last || end > num_tokens) {
      fail(ErrorCode::kInvalidArgument, "{}: group_ends[{}] = {}, expected {} to {}", ctx.where(op),
           i, end, last, num_tokens);
    }
    last = end;
  }
  check_samples(ctx, op, b.cu_seqlens, num_tokens);
  dispatch(ctx, op, &KernelTable::linear_logp_backward, b, a.hidden, kFault);
}

}  // namespace rlk
