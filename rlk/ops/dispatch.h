// How an operator call reaches a kernel, and the checks that stand before it. For ops/*.cc only.
#pragma once

#include <chrono>
#include <initializer_list>

#include "rlk/core/error.h"
#include "rlk/kernels/inputs.h"
#include "rlk/kernels/outputs.h"
#include "rlk/ops/audit.h"
#include "rlk/ops/context.h"

namespace rlk {

inline constexpr std::int64_t kAnySize = -1;

// The view has this type and shape; its strides are free.
void check_strided(const Context& ctx, Op op, const char* name, const ConstTensorView& t,
                   DType dtype, std::initializer_list<std::int64_t> shape);
// And its innermost dimension has no gaps.
void check_tensor(const Context& ctx, Op op, const char* name, const ConstTensorView& t,
                  DType dtype, std::initializer_list<std::int64_t> shape);

// The storage type of a call, BF16 or F32, which `t` stands for.
DType check_storage(const Context& ctx, Op op, const char* name, const ConstTensorView& t);
// And of one with products, whose primitive takes F32 in profile portable only.
DType check_mac_storage(const Context& ctx, Op op, const char* name, const ConstTensorView& t);

// Offsets that rise from 0 to num_tokens.
void check_cu_seqlens(const Context& ctx, Op op, const ConstTensorView& cu_seqlens,
                      std::int64_t num_tokens);

// Of a weight gradient: absent only in profile portable, where mac takes one product at a time.
void check_samples(const Context& ctx, Op op, const ConstTensorView& cu_seqlens,
                   std::int64_t num_tokens);

[[noreturn]] void fail_missing(const Context& ctx, Op op);

// Gives the call to `field` of `table`; a kernel on a device gets index arrays as it can read them.
template <typename Args>
void run_kernel(Context& ctx, const KernelTable& table,
                void (*KernelTable::*field)(Exec&, const Args&), const Args& args) {
  if (!table.on_device) {
    (table.*field)(ctx.exec(), args);
    return;
  }
  Args there = args;
  for_each_input(there, [&](const InputName& name, ConstTensorView& t) {
    if (name.is_index) t = ctx.mirror(t);
  });
  (table.*field)(ctx.exec(), there);
}

// Runs `field` of the table that the context's mode selects, notes what ran, and turns a fault into
// an error: `fault` says what the row in question holds ("sum of squares is not finite").
// `shape` is the view that stands for the call in the provenance.
template <typename Args>
void dispatch(Context& ctx, Op op, void (*KernelTable::*field)(Exec&, const Args&),
              const Args& args, const ConstTensorView& shape, const char* fault) {
  const KernelTable& table = ctx.table(op);
  if (!(table.*field)) fail_missing(ctx, op);
  Exec& exec = ctx.exec();
  CallStats call{.count = 1};
  Audit audit(ctx.memory());
  if (!table.on_device) ctx.synchronize();  // its kernel reads what the device may still write
  const bool audited = ctx.mode(op) == Mode::kAudit && ctx.contract_table().*field;
  if (audited) {
    // The contract kernel goes first, and is done before the production kernel starts, which may
    // write over its own inputs.
    Args redirected = args;
    for_each_output(redirected,
                    [&](const char* name, TensorView& out) { audit.redirect(name, out); });
    ctx.expect_fault(op, nullptr);
    run_kernel(ctx, ctx.contract_table(), field, redirected);
    ctx.synchronize();
  }
  exec.fault.clear();
  ctx.expect_fault(op, fault);
  const auto start = std::chrono::steady_clock::now();
  run_kernel(ctx, table, field, args);
  const auto time = std::chrono::steady_clock::now() - start;
  call.time_ns = std::chrono::nanoseconds(time).count();
  audit.compare(call.audit_compared, call.audit_mismatches);
  if (exec.fault.row() >= 0) ctx.fail_faulty(op, fault);
  ctx.provenance().record(op, table.backend, ctx.mode(op), shape, call);
}

}  // namespace rlk
