#include "rlk/ops/linear_logp.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "rlk/ops/dispatch.h"
#include "rlk/ops/gemm.h"
#include "rlk/ops/logprob.h"

namespace rlk {
namespace {

std::int64_t tile_rows(std::int64_t vocab_size) {
  return std::max<std::int64_t>(1,
                                kLinearLogpTileBytes / 4 / std::max<std::int64_t>(1, vocab_size));
}

TensorView rows_or_absent(const TensorView& t, std::int64_t begin, std::int64_t end) {
  return t ? rows(t, begin, end) : t;
}
ConstTensorView rows_or_absent(const ConstTensorView& t, std::int64_t begin, std::int64_t end) {
  return t ? rows(t, begin, end) : t;
}

void logits_tile(Context& ctx, const LinearLogpArgs& a, std::int64_t begin, std::int64_t end,
                 const TensorView& logits) {
  GemmArgs product;
  product.c = logits;
  product.a = rows(a.hidden, begin, end);
  product.b = rows(a.head, 0, a.vocab_size);
  product.packed_b = a.packed_forward;
  product.segments = {a.hidden.shape(1), 0, 0};
  gemm(ctx, product);
}

// All that a later tile or a later product would refuse, before any write.
void check(const Context& ctx, const LinearLogpArgs& a) {
  const std::int64_t num_tokens = a.hidden.shape(0), vocab_padded = a.head.shape(0);
  check_tensor(ctx, Op::gemm, "hidden", a.hidden, DType::kBF16, {num_tokens, kAnySize});
  check_tensor(ctx, Op::gemm, "head", a.head, DType::kBF16, {vocab_padded, a.hidden.shape(1)});
  if (a.vocab_size < 0 || a.vocab_size > vocab_padded) {
    fail(ErrorCode::kShape, "{}: vocab_size is {}, the head has {} rows", ctx.where(Op::logprob),
         a.vocab_size, vocab_padded);
  }
  check_tensor(ctx, Op::logprob, "targets", a.targets, DType::kI32, {num_tokens});
  if (num_tokens > 0 && (!a.params || (a.num_params != 1 && a.num_params != num_tokens))) {
    fail(ErrorCode::kInvalidArgument, "{}: {} sampling params for {} rows; expected 1 or one each",
         ctx.where(Op::logprob), a.params ? a.num_params : 0, num_tokens);
  }
  for (std::int64_t i = 0; num_tokens > 0 && i < a.num_params; ++i) {
    validate(a.params[i], to_string(Op::logprob));
  }
  for (std::int64_t t = 0; t < num_tokens; ++t) {
    const std::int32_t id = *a.targets.at<std::int32_t>(t);
    if (id != kIgnoreIndex && (id < 0 || id >= a.vocab_size)) {
      fail(ErrorCode::kInvalidArgument,
           "{}: token {} has target {}, outside the vocabulary [0, {})", ctx.where(Op::logprob), t,
           id, a.vocab_size);
    }
  }
}

void check(const Context& ctx, const LinearLogpArgs& a, const LinearLogpBackwardArgs& b) {
  check(ctx, a);
  const std::int64_t num_tokens = a.hidden.shape(0), hidden_size = a.hidden.shape(1);
  constexpr Op op = Op::logprob_backward;
  check_tensor(ctx, op, "d_hidden", b.d_hidden, DType::kBF16, {num_tokens, hidden_size});
  check_tensor(ctx, op, "g", b.g, DType::kF32, {num_tokens});
  if (b.g_entropy) check_tensor(ctx, op, "g_entropy", b.g_entropy, DType::kF32, {num_tokens});
  check_tensor(ctx, op, "group_ends", b.group_ends, DType::kI64, {kAnySize});
  const PackedWeight* packed = a.packed_backward;
  if (packed && packed->owner && (packed->n != hidden_size || packed->k != a.head.shape(0))) {
    fail(ErrorCode::kShape, "{}: packed_backward is [{}, {}], expected [{}, {}]", ctx.where(op),
         packed->n, packed->k, hidden_size, a.head.shape(0));
  }
  for (std::int64_t i = 0, last = 0; i < b.group_ends.shape(0); ++i) {
    const std::int64_t end = *b.group_ends.at<std::int64_t>(i);
    if (end < last || end > num_tokens) {
      fail(ErrorCode::kInvalidArgument, "{}: group_ends[{}] = {}, expected {} to {}", ctx.where(op),
           i, end, last, num_tokens);
    }
    last = end;
  }
}

const SamplingParams* params_from(const LinearLogpArgs& a, std::int64_t begin) {
  return a.num_params == 1 ? a.params : a.params + begin;
}

}  // namespace

void linear_logp(Context& ctx, const LinearLogpArgs& a) {
  const std::int64_t num_tokens = a.hidden.shape(0);
  check(ctx, a);
  check_tensor(ctx, Op::logprob, "logp", a.logp, DType::kF32, {num_tokens});
  if (a.entropy) check_tensor(ctx, Op::logprob, "entropy", a.entropy, DType::kF32, {num_tokens});
  const std::int64_t tile = tile_rows(a.vocab_size);
  Workspace::Frame frame(ctx.workspace());
  float* buffer = frame.take<float>(std::min(tile, num_tokens) * a.vocab_size);
  for (std::int64_t begin = 0; begin < num_tokens; begin += tile) {
    const std::int64_t end = std::min(begin + tile, num_tokens);
    const TensorView logits = view(buffer, {end - begin, a.vocab_size});
    logits_tile(ctx, a, begin, end, logits);
    LogprobArgs args;
    args.logp = rows(a.logp, begin, end);
    args.entropy = rows_or_absent(a.entropy, begin, end);
    args.logits = logits;
    args.targets = rows(a.targets, begin, end);
    args.params = params_from(a, begin);
    args.num_params = a.num_params == 1 ? 1 : end - begin;
    logprob(ctx, args);
  }
}

void linear_logp_backward(Context& ctx, const LinearLogpArgs& a, const LinearLogpBackwardArgs& b) {
  check(ctx, a, b);
  const std::int64_t num_tokens = a.hidden.shape(0), vocab_padded = a.head.shape(0);
  const std::int64_t tile = tile_rows(a.vocab_size);
  Workspace::Frame frame(ctx.workspace());
  float* buffer = frame.take<float>(std::min(tile, num_tokens) * a.vocab_size);
  bf16* d_buffer = frame.take<bf16>(std::min(tile, num_tokens) * vocab_padded);
  ConstTensorView head_transposed = a.head;
  std::swap(head_transposed.layout.shape[0], head_transposed.layout.shape[1]);
  std::swap(head_transposed.layout.stride[0], head_transposed.layout.stride[1]);

  if (num_tokens == 0) {
    // Groups close even where none of their samples has a row.
    const TensorView none = view(d_buffer, {0, vocab_padded});
    gemm_backward_weight(ctx, {b.dw, b.chain, none, a.hidden, b.group_ends});
    return;
  }
  std::int64_t next_group = 0;
  std::vector<std::int64_t> group_ends;
  for (std::int64_t begin = 0; begin < num_tokens; begin += tile) {
    const std::int64_t end = std::min(begin + tile, num_tokens);
    const TensorView logits = view(buffer, {end - begin, a.vocab_size});
    const TensorView d_logits = view(d_buffer, {end - begin, vocab_padded});
    logits_tile(ctx, a, begin, end, logits);
    LogprobBackwardArgs args;
    args.dlogits = d_logits;
    args.logits = logits;
    args.targets = rows(a.targets, begin, end);
    args.g = rows(b.g, begin, end);
    args.g_entropy = rows_or_absent(b.g_entropy, begin, end);
    args.params = params_from(a, begin);
    args.num_params = a.num_params == 1 ? 1 : end - begin;
    logprob_backward(ctx, args);

    group_ends.clear();
    for (; next_group < b.group_ends.shape(0); ++next_group) {
      const std::int64_t group_end = *b.group_ends.at<std::int64_t>(next_group);
      if (group_end > end) break;
      group_ends.push_back(group_end - begin);
    }
    const ConstTensorView ends =
        view(std::as_const(group_ends).data(), {static_cast<std::int64_t>(group_ends.size())});
    gemm_backward_weight(ctx, {b.dw, b.chain, d_logits, rows(a.hidden, begin, end), ends});

    GemmArgs product;
    product.c = rows(b.d_hidden, begin, end);
    product.a = d_logits;
    product.b = head_transposed;
    product.packed_b = a.packed_backward;
    product.leaf_tree = true;
    product.segments = {vocab_padded, 0, 0};
    gemm(ctx, product);
  }
}

}  // namespace rlk
