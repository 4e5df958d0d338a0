// What the tests of the GPU backend share.
#pragma once

#include <gtest/gtest.h>

#include "rlk/device/device.h"
#include "rlk/kernels/kernel_table.h"
#include "rlk/ops/admission.h"
#include "tests/kernels/attention_data.h"

namespace rlk::test {

// Skips where there is no device, and says so.
class OnGpu : public testing::Test {
 protected:
  void SetUp() override {
    if (device::list().empty()) GTEST_SKIP() << "no GPU on this machine, or none in this build";
  }
};

// The GPU kernels, for tensors in host memory.
inline const KernelTable& gpu() { return on_host_memory(gpu_kernels()); }

// Every operator of the table, without a trial.
inline Admission admit_all(const KernelTable& table) {
  Admission admission({});
  for (int i = 0; i < kNumOps; ++i) {
    admission.add({static_cast<Op>(i), table.backend, true, 1, ""});
  }
  return admission;
}

}  // namespace rlk::test
