// The CPU backend under the profiles of other chips: the bits of the reference, which takes mac
// from the scalar models.
#include <gtest/gtest.h>

#include "rlk/verify/conform.h"
#include "tests/verify/golden_digests.h"

namespace rlk {
namespace {

// Made of products.
const std::vector<Op> kProducts = {Op::gemm,        Op::gemm_backward_weight,
                                   Op::attention,   Op::attention_backward,
                                   Op::linear_logp, Op::linear_logp_backward};

ConformOptions options_of(Profile profile, const std::vector<Op>& ops) {
  ConformOptions options;
  options.contract.profile = profile;
  options.contract.kv_block = 32;
  options.contract.kv_split = 96;
  options.ops = ops;
  options.backends = {&cpu_kernels()};
  return options;
}

void expect_admitted(const ConformOptions& options) {
  const Admission admission = conform(options);
  EXPECT_EQ(admission.entries().size(), options.ops.size() * options.backends.size());
  for (const AdmissionEntry& entry : admission.entries()) {
    EXPECT_TRUE(entry.admitted) << to_string(options.contract.profile) << " " << to_string(entry.op)
                                << " " << entry.backend << ": " << entry.reason;
    EXPECT_GT(entry.vectors, 10) << to_string(entry.op);
  }
}

TEST(Profiles, CpuHasTheBitsOfSm90) { expect_admitted(options_of(Profile::kSm90, kProducts)); }
TEST(Profiles, CpuHasTheBitsOfCdna3) { expect_admitted(options_of(Profile::kCdna3, kProducts)); }
TEST(Profiles, CpuHasTheBitsOfCdna2) { expect_admitted(options_of(Profile::kCdna2, kProducts)); }

// What they share is small: the panels of gemm and the tiles of attention.
TEST(Profiles, EveryInstructionSetHasTheBits) {
  ConformOptions options = options_of(Profile::kCdna2, {Op::gemm_backward_weight, Op::attention});
  options.backends.clear();
  for (const Isa isa : kAllIsas) {
    if (available(isa)) options.backends.push_back(&cpu_kernels(isa));
  }
  expect_admitted(options);
}

// All operators; profile portable is in conform_test.
TEST(ProfilesInvariance, TheCpuHasTheGoldenDigestOfEach) {
  for (const Profile profile : kAllProfiles) {
    if (profile == Profile::kPortable) continue;
    ConformOptions options;
    options.contract.profile = profile;
    EXPECT_EQ(conform_digest(options, cpu_kernels()), test::golden_digest(profile))
        << to_string(profile);
  }
}

TEST(ProfilesTwin, EachHasItsOwnBits) {
  std::vector<std::string> digests;
  for (const Profile profile : kAllProfiles) {
    const ConformOptions options = options_of(profile, {Op::gemm_backward_weight});
    digests.push_back(conform_digest(options, cpu_kernels()));
    for (std::size_t i = 0; i + 1 < digests.size(); ++i) EXPECT_NE(digests[i], digests.back());
  }
}

}  // namespace
}  // namespace rlk
