// The kernels of profiles cdna3 and cdna2 with their matrix instructions by the CPU models, in
// permuted orders: the bytes of the reference. All that the tables have of their own is tried; the
// rest of them is the kernels of profile portable.
#include "rlk/kernels/gpu/cdna/table.h"
#include "rlk/kernels/gpu/gpu.h"
#include "tests/hip_emulation/conform_all.h"

namespace rlk::test {
namespace {

std::vector<Op> cdna_ops() {
  std::vector<Op> ops;
#define RLK_OP(name, Args) \
  if (Op::name != Op::pack_weight) ops.push_back(Op::name);
  RLK_GPU_PRODUCT_OPS(RLK_OP)
#undef RLK_OP
  return ops;
}

class HipCdnaInvariance : public testing::TestWithParam<Op> {};

TEST_P(HipCdnaInvariance, Cdna3) {
  const emulation::Scope scope({.wave = 64, .seed = 21, .profile = Profile::kCdna3});
  expect_admitted(gpu_kernels(Profile::kCdna3), Profile::kCdna3, GetParam());
}

TEST_P(HipCdnaInvariance, Cdna2) {
  const emulation::Scope scope({.wave = 64, .seed = 22, .profile = Profile::kCdna2});
  expect_admitted(gpu_kernels(Profile::kCdna2), Profile::kCdna2, GetParam());
}

// The other chip's instruction under the same kernels.
class HipCdnaTwin : public testing::TestWithParam<Op> {};
TEST_P(HipCdnaTwin, TheOtherChipIsRefused) {
  const emulation::Scope scope({.wave = 64, .profile = Profile::kCdna2});
  EXPECT_FALSE(conform_one(gpu_kernels(Profile::kCdna3), Profile::kCdna3, GetParam()).admitted);
}

INSTANTIATE_TEST_SUITE_P(AllOps, HipCdnaInvariance, testing::ValuesIn(cdna_ops()), op_name);
INSTANTIATE_TEST_SUITE_P(AllOps, HipCdnaTwin, testing::ValuesIn(cdna_ops()), op_name);

}  // namespace
}  // namespace rlk::test
