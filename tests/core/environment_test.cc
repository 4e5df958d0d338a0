#include "rlk/core/environment.h"

#include <cstdlib>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

namespace rlk {
namespace {

using nlohmann::json;

TEST(Environment, SaysWhatTheHeaderPromises) {
  const json out = json::parse(environment_json(3));
  EXPECT_EQ(out.at("num_threads"), 3);
  for (const char* key : {"version", "git", "compiler", "build_type", "flags", "sanitize"}) {
    EXPECT_TRUE(out.at("build").at(key).is_string()) << key;
  }
  EXPECT_NE(out.at("build").at("flags").get<std::string>().find("-ffp-contract=off"),
            std::string::npos);
  EXPECT_GT(out.at("cpu").at("logical_cpus"), 0);
  EXPECT_GT(out.at("cpu").at("allowed_cpus"), 0);
  EXPECT_TRUE(out.at("cpu").contains("model"));
  EXPECT_FALSE(out.at("os").at("kernel").get<std::string>().empty());
  EXPECT_TRUE(out.at("os").at("libc").get<std::string>().starts_with("glibc "));
  EXPECT_TRUE(out.at("libraries").is_object());
}

TEST(Environment, ReportsVariablesThatChangeBitsAndNoOthers) {
  setenv("OPENBLAS_CORETYPE", "Haswell", 1);
  setenv("OMP_NUM_THREADS", "2", 1);
  setenv("RLKERNEL_TEST_OTHER", "x", 1);
  const json variables = json::parse(environment_json(1)).at("variables");
  EXPECT_EQ(variables.at("OPENBLAS_CORETYPE"), "Haswell");
  EXPECT_EQ(variables.at("OMP_NUM_THREADS"), "2");
  EXPECT_FALSE(variables.contains("RLKERNEL_TEST_OTHER"));
  EXPECT_FALSE(variables.contains("PATH"));
  unsetenv("OPENBLAS_CORETYPE");
  EXPECT_FALSE(json::parse(environment_json(1)).at("variables").contains("OPENBLAS_CORETYPE"));
}

}  // namespace
}  // namespace rlk
