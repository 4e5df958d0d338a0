// rlk doctor, and runs that it would refuse.
#include <cstdlib>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tests/cli/program.h"

namespace rlk {
namespace {

TEST(DoctorVerb, SaysThatAStrictRunMayStart) {
  setenv("NCCL_ALGO", "Tree", 1);
  const Outcome outcome = run_program({"doctor"});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_NE(outcome.out.find("production  NCCL_ALGO = Tree\n"), std::string::npos) << outcome.out;
  EXPECT_NE(outcome.out.find(", 0 of them refuse a strict run\n"), std::string::npos);

  const nlohmann::json findings = run_program({"doctor", "--json"}).json();
  unsetenv("NCCL_ALGO");
  bool found = false;
  for (const nlohmann::json& f : findings) {
    if (f.at("subject") != "NCCL_ALGO") continue;
    found = true;
    EXPECT_EQ(f.at("value"), "Tree");
    EXPECT_EQ(f.at("severity"), "production");
    EXPECT_TRUE(f.at("why").is_string() && f.at("advice").is_string());
  }
  EXPECT_TRUE(found);
}

TEST(DoctorVerb, EndsWithOneWhereAStrictRunIsRefused) {
  setenv("HSA_OVERRIDE_GFX_VERSION", "9.4.2", 1);
  const Outcome outcome = run_program({"doctor"});
  unsetenv("HSA_OVERRIDE_GFX_VERSION");
  EXPECT_EQ(outcome.exit_code, 1);
  EXPECT_TRUE(outcome.out.starts_with("refused_gpu HSA_OVERRIDE_GFX_VERSION = 9.4.2\n"))
      << outcome.out;
}

}  // namespace
}  // namespace rlk
