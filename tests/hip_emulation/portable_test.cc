// The kernels of profile portable, on waves of 32 and 64, in permuted orders: the bytes of the
// reference.
#include "rlk/kernels/gpu/gpu.h"
#include "tests/hip_emulation/conform_all.h"

namespace rlk::test {
namespace {

class HipPortableInvariance : public testing::TestWithParam<Op> {};

TEST_P(HipPortableInvariance, WavesOf32) {
  const emulation::Scope scope({.wave = 32, .seed = 11});
  expect_admitted(gpu_kernels(), Profile::kPortable, GetParam());
}

TEST_P(HipPortableInvariance, WavesOf64) {
  const emulation::Scope scope({.wave = 64, .seed = 12});
  expect_admitted(gpu_kernels(), Profile::kPortable, GetParam());
}

INSTANTIATE_TEST_SUITE_P(AllOps, HipPortableInvariance, testing::ValuesIn(all_but_packing()),
                         op_name);

}  // namespace
}  // namespace rlk::test
