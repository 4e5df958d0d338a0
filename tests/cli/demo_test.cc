// The demo keeps its promises: the model learns, strict has no difference, production has some.
#include <string>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tests/cli/program.h"
#include "tests/io/temporary_folder.h"

namespace rlk {
namespace {

const std::string kDemo = RLK_SOURCE_DIR "/examples/demo/";

nlohmann::json run_route(const TemporaryFolder& folder, const std::string& route) {
  const Outcome rl = run_program({"rl", "--config", kDemo + "rl.json", "--set",
                                  "model.path=" + folder.file("model"), "--route", route, "--out",
                                  folder.file(route), "--json"});
  EXPECT_EQ(rl.exit_code, 0) << rl.err;
  return rl.json();
}

void expect_learned(const nlohmann::json& summary) {
  EXPECT_EQ(summary.at("steps"), 200);
  EXPECT_GT(summary.at("compared"), 20000);
  EXPECT_LT(summary.at("reward_first10"), 0.3);
  EXPECT_GT(summary.at("reward_last10"), 0.8);
  EXPECT_LT(summary.at("heldout_reward_before"), 0.3);
  EXPECT_GT(summary.at("heldout_reward_after"), 0.8);
  EXPECT_GE(summary.at("mean_response_tokens"), 4.0);
}

TEST(Demo, LearnsWithEqualBytesOnTheStrictRouteAndDriftsOnTheProductionRoute) {
  const TemporaryFolder folder;
  const Outcome init = run_program(
      {"init", "--config", kDemo + "model.json", "--seed", "1", "--out", folder.file("model")});
  ASSERT_EQ(init.exit_code, 0) << init.err;

  const nlohmann::json strict = run_route(folder, "strict");
  expect_learned(strict);
  EXPECT_EQ(strict.at("mismatch_count"), 0);
  EXPECT_EQ(strict.at("max_abs_diff"), 0.0);

  const nlohmann::json production = run_route(folder, "production");
  expect_learned(production);
  EXPECT_GT(production.at("mismatch_count"), 0);
  EXPECT_GT(production.at("max_abs_diff"), 0.0);
}

}  // namespace
}  // namespace rlk
