// The main job, start to end.
#include <cmath>
#include <string>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "rlk/io/files.h"
#include "rlk/rl/run_db.h"
#include "tests/cli/scene.h"

namespace rlk {
namespace {

class Rl : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    scene_ = new Scene;
    outcome_ = new Outcome(scene_->rl("run", {}, {"--json"}));
  }
  static void TearDownTestSuite() {
    delete outcome_;
    delete scene_;
  }
  static Scene* scene_;
  static Outcome* outcome_;
};
Scene* Rl::scene_ = nullptr;
Outcome* Rl::outcome_ = nullptr;

TEST_F(Rl, EndsWithZeroAndASummary) {
  ASSERT_EQ(outcome_->exit_code, 0) << outcome_->err;
  const nlohmann::json s = scene_->summary("run");
  EXPECT_EQ(s, outcome_->json());
  EXPECT_EQ(s.at("steps"), 8);
  EXPECT_EQ(s.at("route"), "strict");
  EXPECT_GT(s.at("compared"), 8 * 16);
  EXPECT_EQ(s.at("mismatch_count"), 0);
  EXPECT_EQ(s.at("max_abs_diff"), 0.0);
  EXPECT_EQ(s.at("mean_abs_diff"), 0.0);
  EXPECT_EQ(s.at("model_digest"), scene_->model_digest());
  EXPECT_NE(s.at("weights_digest"), s.at("model_digest"));
  EXPECT_EQ(s.at("contract_digest").get<std::string>().size(), 64u);
  for (const char* key :
       {"reward_first10", "reward_last10", "heldout_reward_before", "heldout_reward_after",
        "rollout_tokens_per_s", "train_tokens_per_s", "seconds_per_step", "mean_response_tokens"}) {
    EXPECT_TRUE(s.at(key).is_number()) << key;
  }
}

TEST_F(Rl, RunsTheProfileOfAnotherChipOnThisCpu) {
  const Outcome outcome = scene_->rl("sm90", {"contract.profile=sm90"});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  const nlohmann::json s = scene_->summary("sm90");
  EXPECT_GT(s.at("compared"), 8 * 16);
  EXPECT_EQ(s.at("mismatch_count"), 0);
  EXPECT_NE(scene_->last_trainer_state("sm90"), scene_->last_trainer_state("run"));
}

TEST_F(Rl, ShowsProgressOnStandardError) {
  EXPECT_NE(outcome_->err.find("step 8/8  reward"), std::string::npos) << outcome_->err;
  EXPECT_NE(outcome_->err.find("mismatches 0 of"), std::string::npos);
  EXPECT_NE(outcome_->err.find("tok/s"), std::string::npos);
}

TEST_F(Rl, LeavesADatabaseThatAnyoneCanQuery) {
  const std::int64_t tokens = scene_->query("run", "SELECT count(*) FROM tokens");
  EXPECT_EQ(scene_->summary("run").at("compared"), tokens);
  EXPECT_EQ(scene_->query("run", "PRAGMA user_version"), kRunDbVersion);
  EXPECT_EQ(scene_->query("run", "SELECT count(*) FROM steps"), 8);
  EXPECT_EQ(scene_->query("run", "SELECT count(*) FROM samples"), 8 * 16);
  EXPECT_EQ(scene_->query("run",
                          "SELECT count(*) FROM tokens WHERE rollout_logprob IS trainer_logprob "
                          "AND length(rollout_logprob) = 4 AND typeof(rollout_logprob) = 'blob'"),
            tokens);
  EXPECT_EQ(scene_->query("run", "SELECT count(*) FROM tokens WHERE weight_version <> step - 1"),
            0);
  EXPECT_GT(scene_->query("run", "SELECT count(*) FROM provenance"), 0);
  EXPECT_EQ(scene_->query("run", "SELECT count(*) FROM provenance WHERE mode <> 'strict'"), 0);
}

TEST_F(Rl, WritesAReport) {
  const std::string html = read_file(scene_->file("run/report.html"));
  EXPECT_NE(html.find("<svg"), std::string::npos);
  EXPECT_NE(html.find("strict"), std::string::npos);
}

TEST_F(Rl, ComparesItsTwoSidesAsEqual) {
  const Outcome compared = scene_->compare("run");
  EXPECT_EQ(compared.exit_code, 0) << compared.err;
  EXPECT_NE(compared.out.find("rollout = trainer"), std::string::npos) << compared.out;
}

TEST_F(Rl, NeverOverwritesARun) {
  expect_refused(scene_->rl("run"), 2, {"run.db", "a run is there already", "--resume"});
  EXPECT_EQ(scene_->query("run", "SELECT count(*) FROM steps"), 8);
}

TEST_F(Rl, NeverStartsAmongTheCheckpointsOfAnotherRun) {
  make_directories(scene_->file("orphans/checkpoints/step-000100"));
  expect_refused(scene_->rl("orphans"), 2, {"orphans/checkpoints", "another run"});
}

TEST_F(Rl, WritesCheckpointsThatTheOtherVerbsRead) {
  const Outcome generated =
      run_program({"generate", "--model", scene_->file("run/checkpoints/step-000008"), "--prompt",
                   "12=", "--json"});
  ASSERT_EQ(generated.exit_code, 0) << generated.err;
  EXPECT_FALSE(generated.json().at("tokens").empty());
  EXPECT_TRUE(file_exists(scene_->file("run/checkpoints/step-000006")));
  EXPECT_FALSE(file_exists(scene_->file("run/checkpoints/step-000003"))) << "keep is 2";
}

// What the aligned engines are for: fast kernels on both sides are near, but not equal.
TEST(RlTwin, RouteProductionHasMismatches) {
  const Scene scene;
  const Overrides overrides = {"steps=6", "rollout.prompts_per_step=16",
                               "rollout.max_num_batched_tokens=256",
                               "trainer.micro_batch_tokens=512"};
  ASSERT_EQ(scene.rl("strict", overrides).exit_code, 0);
  ASSERT_EQ(scene.rl("production", overrides, {"--route", "production"}).exit_code, 0);
  const nlohmann::json s = scene.summary("production");
  EXPECT_EQ(s.at("route"), "production");
  EXPECT_GT(s.at("mismatch_count"), 0);
  EXPECT_GT(s.at("max_abs_diff"), 0.0);
  EXPECT_EQ(scene.compare("production").exit_code, 1);
  EXPECT_NE(scene.compare("production", "strict").exit_code, 0);
}

}  // namespace
}  // namespace rlk
