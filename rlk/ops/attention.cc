#include "rlk/ops/attention.h"

#include "rlk/ops/dispatch.h"

namespace rlk {
namespace {

std::int64_t at(const ConstTensorView& t, std::int64_t i) { return *t.at<std::int32_t>(i); }

// Every key that a query of this call sees lies in the cache.
void check_kv(const Context& ctx, const AttentionArgs& a) {
  constexpr Op op = Op::attention;
  const KvView& kv = a.kv;
  const std::int64_t num_seqs = a.kv_lens.shape(0), kv_rows = kv.k.shape(0);
  if (kv.block_table) {
    check_tensor(ctx, op, "block_table", kv.block_table, DType::kI32, {num_seqs, kAnySize});
    if (kv.page_size < 1 || (kv.page_size & (kv.page_size - 1)) != 0) {
      fail(ErrorCode::kInvalidArgument, "{}: page_size {} is not a power of two", ctx.where(op),
           kv.page_size);
    }
  } else {
    check_tensor(ctx, op, "kv_start", kv.kv_start, DType::kI32, {num_seqs});
  }
  for (std::int64_t s = 0; s < num_seqs; ++s) {
    const std::int64_t kv_len = at(a.kv_lens, s);
    const std::int64_t q_len = at(a.cu_seqlens_q, s + 1) - at(a.cu_seqlens_q, s);
    if (q_len > kv_len) {
      fail(ErrorCode::kInvalidArgument, "{}: sequence {} has {} queries but {} keys", ctx.where(op),
           s, q_len, kv_len);
    }
    if (q_len == 0) continue;
    if (!kv.block_table) {
      const std::int64_t start = at(kv.kv_start, s);
      if (start < 0 || start + kv_len > kv_rows) {
        fail(ErrorCode::kInvalidArgument,
             "{}: sequence {} has keys in rows [{}, {}), the cache has {}", ctx.where(op), s, start,
             start + kv_len, kv_rows);
      }
      continue;
    }
    const std::int64_t pages = (kv_len + kv.page_size - 1) / kv.page_size;
    if (pages > kv.block_table.shape(1)) {
      fail(ErrorCode::kInvalidArgument, "{}: sequence {} needs {} pages, its table has {}",
           ctx.where(op), s, pages, kv.block_table.shape(1));
    }
    for (std::int64_t p = 0; p < pages; ++p) {
      const std::int64_t page = *kv.block_table.at<std::int32_t>(s, p);
      if (page < 0 || (page + 1) * kv.page_size > kv_rows) {
        fail(ErrorCode::kInvalidArgument, "{}: sequence {}: page {} is outside the cache of {}",
             ctx.where(op), s, page, kv_rows / kv.page_size);
      }
    }
  }
}

void check_heads(const Context& ctx, Op op, std::int64_t heads, std::int64_t kv_heads,
                 std::int64_t d) {
  if (d < 2 || d > kMaxHeadSize || d % 2 != 0) {
    fail(ErrorCode::kUnsupported, "{}: head size {}; even sizes up to {} are supported",
         ctx.where(op), d, kMaxHeadSize);
  }
  if (kv_heads == 0 || heads % kv_heads != 0) {
    fail(ErrorCode::kShape, "{}: {} query heads do not divide into {} KV heads", ctx.where(op),
         heads, kv_heads);
  }
}

}  // namespace

void attention(Context& ctx, const AttentionArgs& a) {
  constexpr Op op = Op::attention;
  const std::int64_t tokens = a.q.shape(0), heads = a.q.shape(1), d = a.q.shape(2);
  const std::int64_t kv_rows = a.kv.k.shape(0), kv_heads = a.kv.k.shape(1);
  const DType storage = check_mac_storage(ctx, op, "q", a.q);
  check_tensor(ctx, op, "q", a.q, storage, {tokens, heads, d});
  check_tensor(ctx, op, "y", a.y, storage, {tokens, heads, d});
  if (a.lse) check_tensor(ctx, op, "lse", a.lse, DType::kF32, {tokens, heads});
  check_tensor(ctx, op, "k", a.kv.k, storage, {kv_rows, kv_heads, d});
  check_tensor(ctx, op, "v", a.kv.v, storage, {kv_rows, kv_heads, d});
  check_heads(ctx, op, heads, kv_heads, d);
  check_tensor(ctx, op, "kv_lens", a.kv_lens, DType::kI32, {kAnySize});
  check_tensor(ctx, op, "cu_seqlens_q", a.cu_seqlens_q, DType::kI32, {a.kv_lens.shape(0) + 1});
  check_cu_seqlens(ctx, op, a.cu_seqlens_q, tokens);
  check_kv(ctx, a);
  dispatch(ctx, op, &KernelTable::attention, a, a.q,
           "a scaled score is not below 2^22 (row = token * heads + head)");
}

void attention_backward(Context& ctx, const AttentionBackwardArgs& a) {
  constexpr Op op = Op::attention_backward;
  const std::int64_t tokens = a.q.shape(0), heads = a.q.shape(1), d = a.q.shape(2);
  const std::int64_t kv_heads = a.k.shape(1);
  check_heads(ctx, op, heads, kv_heads, d);
  const DType storage = check_mac_storage(ctx, op, "q", a.q);
  check_tensor(ctx, op, "q", a.q, storage, {tokens, heads, d});
  check_tensor(ctx, op, "y", a.y, storage, {tokens, heads, d});
  check_tensor(ctx, op, "dy", a.dy, storage, {tokens, heads, d});
  check_tensor(ctx, op, "dq", a.dq, storage, {tokens, heads, d});
  check_tensor(ctx, op, "k", a.k, storage, {tokens, kv_heads, d});
  check_tensor(ctx, op, "v", a.v, storage, {tokens, kv_heads, d});
  check_tensor(ctx, op, "dk", a.dk, storage, {tokens, kv_heads, d});
  check_tensor(ctx, op, "dv", a.dv, storage, {tokens, kv_heads, d});
  check_tensor(ctx, op, "lse", a.lse, DType::kF32, {tokens, heads});
  check_tensor(ctx, op, "cu_seqlens", a.cu_seqlens, DType::kI32, {kAnySize});
  check_cu_seqlens(ctx, op, a.cu_seqlens, tokens);
  dispatch(ctx, op, &KernelTable::attention_backward, a, a.q, "");
}

}  // namespace rlk
