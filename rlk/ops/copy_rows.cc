#include "rlk/ops/copy_rows.h"

#include "rlk/ops/dispatch.h"

namespace rlk {
namespace {

void check_rows(const Context& ctx, const char* name, const ConstTensorView& rows,
                std::int64_t count, std::int64_t least, std::int64_t num_rows) {
  constexpr Op op = Op::copy_rows;
  if (!rows) {
    if (count > num_rows) {
      fail(ErrorCode::kShape, "{}: {} copies without {}, there are {} rows", ctx.where(op), count,
           name, num_rows);
    }
    return;
  }
  check_tensor(ctx, op, name, rows, DType::kI64, {count});
  for (std::int64_t i = 0; i < count; ++i) {
    const std::int64_t row = *rows.at<std::int64_t>(i);
    if (row < least || row >= num_rows) {
      fail(ErrorCode::kInvalidArgument, "{}: {}[{}] = {}, expected {} to {}", ctx.where(op), name,
           i, row, least, num_rows - 1);
    }
  }
}

}  // namespace

void copy_rows(Context& ctx, const CopyRowsArgs& a) {
  constexpr Op op = Op::copy_rows;
  const DType storage = check_storage(ctx, op, "x", a.x);
  check_strided(ctx, op, "x", a.x, storage, {kAnySize, kAnySize});
  const std::int64_t count = num_copies(a);
  check_rows(ctx, "from", a.from, count, -1, a.x.shape(0));
  if (a.y) {
    check_strided(ctx, op, "y", a.y, storage, {kAnySize, a.x.shape(1)});
    check_rows(ctx, "to", a.to, count, 0, a.y.shape(0));
  }
  dispatch(ctx, op, &KernelTable::copy_rows, a, a.y ? ConstTensorView(a.y) : a.x,
           "a value is not below 2^56");
}

}  // namespace rlk
