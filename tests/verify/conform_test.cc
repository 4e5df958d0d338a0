// Conformance: what it admits, what it refuses, and that it says why.
#include "rlk/verify/conform.h"

#include <gtest/gtest.h>

namespace rlk {
namespace {

TEST(Conform, AdmitsTheReferenceAndAllInstructionSets) {
  ConformOptions options;
  for (const KernelTable* table : all_backends()) {
    if (table != &production_kernels()) options.backends.push_back(table);
  }
  for (const AdmissionEntry& entry : conform(options).entries()) {
    EXPECT_TRUE(entry.admitted) << to_string(entry.op) << " " << entry.backend << ": "
                                << entry.reason;
    EXPECT_GT(entry.vectors, 20) << to_string(entry.op);
  }
}

}  // namespace
}  // namespace rlk
