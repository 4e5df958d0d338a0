// Mode audit: differences are counted, results are those of mode off.
#include <gtest/gtest.h>

#include "rlk/ops/adamw.h"
#include "rlk/ops/audit.h"
#include "rlk/ops/gemm.h"
#include "rlk/ops/rms_norm.h"
#include "tests/kernels/test_data.h"

namespace rlk::test {
namespace {

// The counts of the only kind of call that the context saw.
CallStats stats(Context& ctx) {
  const auto calls = ctx.provenance().calls();
  EXPECT_EQ(calls.size(), 1u);
  EXPECT_STREQ(calls.at(0).first.backend, "production");
  EXPECT_EQ(calls.at(0).first.mode, ctx.mode(calls.at(0).first.op));
  return calls.at(0).second;
}

TEST(Audit, CountsTheDifferencesOfAnOutputThatIsItsInput) {
  const Tensor x = random_tensor(DType::kBF16, {40, 3, 300}, 1, Kind::kCancelling);
  const Tensor w = random_tensor(DType::kBF16, {300}, 2);
  Tensor results[2], q[2];
  for (const Mode mode : {Mode::kOff, Mode::kAudit}) {
    const int i = mode == Mode::kAudit;
    Context ctx({}, all_ops(mode), 2);
    results[i] = x;
    q[i] = Tensor(DType::kF32, {40, 3});
    rms_norm(ctx, {results[i], q[i], results[i], w, 1e-6f});
    const CallStats s = stats(ctx);
    EXPECT_EQ(s.count, 1);
    EXPECT_EQ(s.audit_compared, i ? 40 * 3 * 300 + 40 * 3 : 0);
    EXPECT_EQ(s.audit_mismatches > 0, mode == Mode::kAudit);
    EXPECT_LT(s.audit_mismatches, 40 * 3 * 300 / 10);
  }
  EXPECT_TRUE(same_bits(results[0], results[1]));
  EXPECT_TRUE(same_bits(q[0], q[1]));
}

TEST(Audit, StartsInOutTensorsFromTheSameBytes) {
  const Tensor dy = random_tensor(DType::kBF16, {50, 24}, 1, Kind::kCancelling);
  const Tensor x = random_tensor(DType::kBF16, {50, 40}, 2, Kind::kWide);
  Tensor ends(DType::kI64, {1});
  *ends.data<std::int64_t>() = 30;
  Tensor dw[2], chain[2];
  for (const Mode mode : {Mode::kOff, Mode::kAudit}) {
    const int i = mode == Mode::kAudit;
    Context ctx({}, all_ops(mode), 1);
    dw[i] = random_tensor(DType::kF32, {24, 40}, 3);
    chain[i] = random_tensor(DType::kF32, {24, 40}, 4);
    gemm_backward_weight(ctx, {dw[i], chain[i], dy, x, ends});
    const CallStats s = stats(ctx);
    EXPECT_EQ(s.audit_compared, i ? 2 * 24 * 40 : 0);
    EXPECT_EQ(s.audit_mismatches > 0, mode == Mode::kAudit);
  }
  EXPECT_TRUE(same_bits(dw[0], dw[1]));
  EXPECT_TRUE(same_bits(chain[0], chain[1]));
}

TEST(Audit, FindsNothingWhereTheKernelsAgree) {
  Context ctx({}, all_ops(Mode::kAudit), 1);
  Tensor w(DType::kBF16, {100});
  Tensor master = random_tensor(DType::kF32, {100}, 1);
  Tensor m = random_tensor(DType::kF32, {100}, 2);
  Tensor v(DType::kF32, {100});
  const Tensor dw = random_tensor(DType::kF32, {100}, 3);
  for (int step = 0; step < 3; ++step) {
    adamw(ctx, {w, master, m, v, dw, 1.0f, 1e-3f, 0.9f, 0.99f, 0.1f, 0.01f, 0.1f, 0.01f, 1e-8f, 0});
  }
  const CallStats s = stats(ctx);
  EXPECT_EQ(s.count, 3);
  EXPECT_EQ(s.audit_compared, 3 * 400);
  EXPECT_EQ(s.audit_mismatches, 0);
}

// The state of an open sum may be -0 on one side and +0 on the other; a result may not.
TEST(Audit, AZeroInAnOpenSumHasEitherSign) {
  for (const bool open : {true, false}) {
    Tensor theirs = f32_tensor({0.0f, 1.0f, -0.0f});
    const Tensor before = theirs;
    TensorView view = theirs;
    Audit audit(host_memory());
    audit.redirect(open ? "chain" : "dw", view);
    view.at<float>()[0] = -0.0f;
    std::int64_t compared = 0, mismatches = 0;
    audit.compare(compared, mismatches);
    EXPECT_EQ(compared, 3);
    EXPECT_EQ(mismatches, open ? 0 : 1);
    view.at<float>()[1] = 2.0f;
    audit.compare(compared, mismatches);
    EXPECT_EQ(mismatches, open ? 1 : 3);
    EXPECT_EQ(std::memcmp(theirs.view().data, before.view().data, before.size_bytes()), 0);
  }
}

TEST(Audit, LeavesErrorsAsTheyAre) {
  Context ctx({}, all_ops(Mode::kAudit), 1);
  Tensor norm(DType::kF32, {1});
  const Tensor grad = f32_tensor({1.0f, std::numeric_limits<float>::infinity()});
  const ConstTensorView grads[] = {grad};
  EXPECT_THROW(grad_norm(ctx, {norm.data<float>(), grads, 1}), Error);
  EXPECT_TRUE(ctx.provenance().calls().empty());
}

}  // namespace
}  // namespace rlk::test
