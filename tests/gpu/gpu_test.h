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

// Conformance has tried the table's kernel of every operator, and each gave the reference's bytes.
// (Packed weights are tried with gemm.)
inline void expect_every_op_admitted(const Admission& admission) {
  EXPECT_EQ(std::ssize(admission.entries()), kNumOps - 1);
  for (const AdmissionEntry& entry : admission.entries()) {
    EXPECT_TRUE(entry.admitted) << to_string(entry.op) << ": " << entry.reason;
  }
}

}  // namespace rlk::test
