// The GPU kernels give the reference's bytes.
#include "rlk/verify/conform.h"
#include "tests/gpu/gpu_test.h"

namespace rlk {
namespace {

using GpuConform = test::OnGpu;

TEST_F(GpuConform, EveryKernelIsAdmitted) {
  const Admission admission = conform({.contract = {}, .backends = {&gpu_kernels()}});
  test::expect_every_op_admitted(admission);
}

TEST_F(GpuConform, EveryKernelIsAdmittedUnderOtherContracts) {
  Contract contract;
  contract.leaves = 32;
  contract.kv_block = 512;  // scores that do not fit into shared memory
  contract.kv_split = 512;
  contract.norm_lanes = 64;
  contract.token_block = 16;
  const Admission admission =
      conform({.contract = contract,
               .ops = {Op::gemm, Op::attention, Op::attention_backward, Op::rms_norm,
                       Op::rms_norm_backward, Op::rms_norm_backward_weight, Op::merge_heads},
               .backends = {&gpu_kernels()}});
  for (const AdmissionEntry& entry : admission.entries()) {
    EXPECT_TRUE(entry.admitted) << to_string(entry.op) << ": " << entry.reason;
  }
}

TEST_F(GpuConform, EveryKernelOfProfileSm90IsAdmittedOnThatChip) {
  if (device::selected().architecture != "sm_90") GTEST_SKIP() << "the GPU is no sm_90";
  Contract contract;
  contract.profile = Profile::kSm90;
  const Admission admission =
      conform({.contract = contract, .backends = {&gpu_kernels(Profile::kSm90)}});
  test::expect_every_op_admitted(admission);
}

}  // namespace
}  // namespace rlk
