// Conformance of a table on the emulator, operator by operator.
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "rlk/verify/conform.h"

namespace rlk::test {

inline AdmissionEntry conform_one(const KernelTable& table, Profile profile, Op op) {
  Contract contract;
  contract.profile = profile;
  return conform({.contract = contract, .ops = {op}, .backends = {&table}}).entries().at(0);
}

// There is a kernel, and it gives the bytes of the reference.
inline void expect_admitted(const KernelTable& table, Profile profile, Op op) {
  const AdmissionEntry entry = conform_one(table, profile, op);
  EXPECT_TRUE(entry.admitted) << entry.reason;
  EXPECT_GT(entry.vectors, 0);
}

// Packed weights are tried with gemm.
inline std::vector<Op> all_but_packing() {
  std::vector<Op> ops;
  for (int i = 0; i < kNumOps; ++i) {
    if (static_cast<Op>(i) != Op::pack_weight) ops.push_back(static_cast<Op>(i));
  }
  return ops;
}

inline std::string op_name(const testing::TestParamInfo<Op>& info) { return to_string(info.param); }

}  // namespace rlk::test
