#include "rlk/ops/embedding.h"

#include "rlk/ops/dispatch.h"

namespace rlk {
namespace {

void check_ids(const Context& ctx, Op op, const ConstTensorView& ids, std::int64_t vocab_size) {
  for (std::int64_t t = 0; t < ids.shape(0); ++t) {
    const std::int32_t id = *ids.at<std::int32_t>(t);
    if (id < 0 || id >= vocab_size) {
      fail(ErrorCode::kInvalidArgument, "{}: token {} has id {}, outside the vocabulary [0, {})",
           ctx.where(op), t, id, vocab_size);
    }
  }
}

}  // namespace

void embedding(Context& ctx, const EmbeddingArgs& a) {
  constexpr Op op = Op::embedding;
  const std::int64_t num_tokens = a.ids.shape(0);
  check_strided(ctx, op, "ids", a.ids, DType::kI32, {num_tokens});
  const DType storage = check_storage(ctx, op, "table", a.table);
  check_strided(ctx, op, "table", a.table, storage, {kAnySize, kAnySize});
  check_strided(ctx, op, "y", a.y, storage, {num_tokens, a.table.shape(1)});
  check_ids(ctx, op, a.ids, a.table.shape(0));
  dispatch(ctx, op, &KernelTable::embedding, a, a.y, "");
}

void embedding_backward(Context& ctx, const EmbeddingBackwardArgs& a) {
  constexpr Op op = Op::embedding_backward;
  const std::int64_t num_tokens = a.ids.shape(0);
  check_strided(ctx, op, "ids", a.ids, DType::kI32, {num_tokens});
  check_strided(ctx, op, "dtable", a.dtable, DType::kF32, {kAnySize, kAnySize});
  check_strided(ctx, op, "dy", a.dy, check_storage(ctx, op, "dy", a.dy),
                {num_tokens, a.dtable.shape(1)});
  check_ids(ctx, op, a.ids, a.dtable.shape(0));
  dispatch(ctx, op, &KernelTable::embedding_backward, a, a.dy, "");
}

}  // namespace rlk
