#include "rlk/ops/dispatch.h"

#include <string>

namespace rlk {

void check_strided(const Context& ctx, Op op, const char* name, const ConstTensorView& t,
                   DType dtype, std::initializer_list<std::int64_t> shape) {
  const Layout& layout = t.layout;
  bool fits = layout.rank == static_cast<int>(shape.size());
  int d = 0;
  for (std::int64_t size : shape) {
    if (fits && size != kAnySize && layout.shape[d] != size) fits = false;
    ++d;
  }
  if (!fits) {
    std::string expected;
    for (std::int64_t size : shape) {
      expected += expected.empty() ? "[" : ", ";
      expected += size == kAnySize ? "*" : std::to_string(size);
    }
    fail(ErrorCode::kShape, "{}: {} has shape {}, expected {}]", ctx.where(op), name,
         layout.to_string(), expected);
  }
  if (layout.size() == 0) return;
  if (!t) fail(ErrorCode::kInvalidArgument, "{}: {} is absent", ctx.where(op), name);
  if (t.dtype != dtype) {
    fail(ErrorCode::kDtype, "{}: {} is {}, expected {}", ctx.where(op), name, to_string(t.dtype),
         to_string(dtype));
  }
}

void check_tensor(const Context& ctx, Op op, const char* name, const ConstTensorView& t,
                  DType dtype, std::initializer_list<std::int64_t> shape) {
  check_strided(ctx, op, name, t, dtype, shape);
  const Layout& layout = t.layout;
  if (layout.size() == 0) return;
  const int last = layout.rank - 1;
  if (last >= 0 && layout.shape[last] > 1 && layout.stride[last] != 1) {
    fail(ErrorCode::kShape, "{}: {} has stride {} in its last dimension, expected 1", ctx.where(op),
         name, layout.stride[last]);
  }
}

DType check_storage(const Context& ctx, Op op, const char* name, const ConstTensorView& t) {
  if (t.dtype != DType::kBF16 && t.dtype != DType::kF32) {
    fail(ErrorCode::kDtype, "{}: {} is {}, expected BF16 or F32", ctx.where(op), name,
         to_string(t.dtype));
  }
  return t.dtype;
}

DType check_mac_storage(const Context& ctx, Op op, const char* name, const ConstTensorView& t) {
  const DType storage = check_storage(ctx, op, name, t);
  if (storage == DType::kF32 && ctx.contract().profile != Profile::kPortable) {
    fail(ErrorCode::kDtype, "{}: {} is F32, expected BF16 in profile {}", ctx.where(op), name,
         to_string(ctx.contract().profile));
  }
  return storage;
}

void check_cu_seqlens(const Context& ctx, Op op, const ConstTensorView& cu_seqlens,
                      std::int64_t num_tokens) {
  const std::int64_t n = cu_seqlens.shape(0);
  std::int64_t last = 0;
  for (std::int64_t i = 0; i < n; ++i) {
    const std::int64_t offset = *cu_seqlens.at<std::int32_t>(i);
    if (offset < last || offset > num_tokens || (i == 0 && offset != 0)) {
      fail(ErrorCode::kInvalidArgument, "{}: cu_seqlens[{}] = {}: offsets must rise from 0 to {}",
           ctx.where(op), i, offset, num_tokens);
    }
    last = offset;
  }
  if (n == 0 || last != num_tokens) {
    fail(ErrorCode::kInvalidArgument, "{}: cu_seqlens ends at {}, expected {}", ctx.where(op), last,
         num_tokens);
  }
}

void check_samples(const Context& ctx, Op op, const ConstTensorView& cu_seqlens,
                   std::int64_t num_tokens) {
  if (cu_seqlens) {
    check_tensor(ctx, op, "cu_seqlens", cu_seqlens, DType::kI32, {kAnySize});
    check_cu_seqlens(ctx, op, cu_seqlens, num_tokens);
  } else if (ctx.contract().profile != Profile::kPortable) {
    fail(ErrorCode::kInvalidArgument, "{}: cu_seqlens is absent, expected in profile {}",
         ctx.where(op), to_string(ctx.contract().profile));
  }
}

void fail_missing(const Context& ctx, Op op) {
  std::string have;
  const auto add = [&](const KernelTable& table) {
    bool present = false;
#define RLK_OP(name, Args) \
  if (op == Op::name) present = table.name != nullptr;
    RLK_OPS(RLK_OP)
#undef RLK_OP
    if (present) have += std::string(have.empty() ? "" : ", ") + table.backend;
  };
  add(reference_kernels());
  add(cpu_kernels());
  add(production_kernels());
  fail(ErrorCode::kUnsupported, "{}: backend {} has no kernel; these have: {}", ctx.where(op),
       ctx.table(op).backend, have);
}

}  // namespace rlk
