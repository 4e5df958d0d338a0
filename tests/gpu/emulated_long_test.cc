// All vectors of all operators on the emulator, with threads and blocks in another order.
#include "rlk/kernels/gpu/gpu.h"
#include "rlk/verify/conform.h"
#include "tests/gpu/gpu_test.h"

namespace rlk {
namespace {

TEST(EmulatedGpuInvariance, AllBlocksAndThreadsMayRunInAnyOrder) {
  const emulation::Scope scope({.wave = 64, .seed = 2});
  const Admission admission = conform({.contract = {}, .backends = {&gpu_kernels()}});
  test::expect_every_op_admitted(admission);
}

TEST(EmulatedGpuInvariance, KernelsOfProfileSm90ForAnyShapeGiveTheBitsOfItsModel) {
  Contract contract;
  contract.profile = Profile::kSm90;
  const Admission admission =
      conform({.contract = contract,
               .ops = {Op::gemm, Op::gemm_backward_weight, Op::attention, Op::attention_backward,
                       Op::linear_logp, Op::linear_logp_backward},
               .backends = {&gpu_kernels(Profile::kSm90)}});
  for (const AdmissionEntry& entry : admission.entries()) {
    EXPECT_TRUE(entry.admitted) << to_string(entry.op) << ": " << entry.reason;
  }
}

}  // namespace
}  // namespace rlk
