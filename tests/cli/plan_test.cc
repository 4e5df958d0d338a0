// What only says how to compute (pages, budgets, threads) never changes a byte, over whole runs
// with training; what belongs to the contract does, or closes the gate.
#include <string>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tests/cli/scene.h"
#include "tests/cli/tensor_edit.h"

namespace rlk {
namespace {

struct Plan {
  const char* name;
  Overrides overrides;
  const char* evidence = nullptr;  // a metric that must not be 0: the plan really did that
};

void PrintTo(const Plan& plan, std::ostream* out) { *out << plan.name; }

class PlanInvariance : public testing::TestWithParam<Plan> {
 protected:
  static void SetUpTestSuite() {
    scene_ = new Scene;
    ASSERT_EQ(scene_->rl("base").exit_code, 0);
  }
  static void TearDownTestSuite() { delete scene_; }
  static Scene* scene_;
};
Scene* PlanInvariance::scene_ = nullptr;

TEST_P(PlanInvariance, GivesTheBytesOfTheUsualPlan) {
  const Plan& plan = GetParam();
  const Outcome outcome = scene_->rl(plan.name, plan.overrides);
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  expect_equal_runs(*scene_, "base", plan.name);
  if (plan.evidence) {
    EXPECT_GT(
        scene_->query(plan.name, std::string("SELECT sum(value) FROM metrics WHERE name = '") +
                                     plan.evidence + "'"),
        0);
  }
}

INSTANTIATE_TEST_SUITE_P(
    Cli, PlanInvariance,
    testing::Values(
        Plan{"PrefixCacheOn", {"rollout.prefix_cache=true"}, "prefix_cache_pages"},
        Plan{"PrefixCacheOff", {"rollout.prefix_cache=false"}},
        Plan{"PagesOf1", {"rollout.page_size=1"}}, Plan{"PagesOf8", {"rollout.page_size=8"}},
        Plan{"PagesOf16", {"rollout.page_size=16"}}, Plan{"PagesOf64", {"rollout.page_size=64"}},
        Plan{"OneSequenceAtATime", {"rollout.max_num_seqs=1"}},
        Plan{"PrefillInChunksOf3", {"rollout.max_num_seqs=3", "rollout.max_num_batched_tokens=3"}},
        Plan{"FewPages", {"rollout.num_pages=9"}, "preemptions"},
        Plan{"SmallMicroBatches", {"trainer.micro_batch_tokens=32"}},
        Plan{"OneMicroBatch", {"trainer.micro_batch_tokens=4096"}},
        Plan{"OneThread", {"rollout.threads=1", "trainer.threads=1"}},
        Plan{"UnequalThreads", {"rollout.threads=3", "trainer.threads=5"}},
        Plan{"AllAtOnce",
             {"rollout.page_size=2", "rollout.max_num_seqs=5", "rollout.max_num_batched_tokens=7",
              "rollout.num_pages=24", "rollout.threads=3", "trainer.micro_batch_tokens=48",
              "trainer.threads=1"}}),
    [](const testing::TestParamInfo<Plan>& info) { return info.param.name; });

class ContractTwin : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    scene_ = new Scene;
    ASSERT_EQ(scene_->rl("base").exit_code, 0);
  }
  static void TearDownTestSuite() { delete scene_; }
  static Scene* scene_;
};
Scene* ContractTwin::scene_ = nullptr;

TEST_F(ContractTwin, AnotherForwardContractIsNotComparable) {
  for (const char* field : {"contract.kv_block=16", "contract.leaves=1"}) {
    SCOPED_TRACE(field);
    const std::string run = std::string("run-") + field;
    ASSERT_EQ(scene_->rl(run, {field}).exit_code, 0);
    EXPECT_EQ(scene_->summary(run).at("mismatch_count"), 0) << "each contract agrees with itself";
    const Outcome compared = scene_->compare("base", run);
    EXPECT_EQ(compared.exit_code, 2);
    EXPECT_NE(compared.out.find("forward_digest"), std::string::npos) << compared.out;
  }
}

// The gradient's sum in another order shows first in the f32 masters; it takes longer to reach the
// bf16 weights.
TEST_F(ContractTwin, AnotherOrderOfTheGradientSumTrainsOtherMasters) {
  const EditableTensors base = read_tensors(scene_->last_trainer_state("base"));
  for (const char* field : {"contract.grad_slots=4", "contract.grad_group=16"}) {
    SCOPED_TRACE(field);
    const std::string run = std::string("run-") + field;
    ASSERT_EQ(scene_->rl(run, {field}).exit_code, 0);
    EXPECT_EQ(scene_->summary(run).at("mismatch_count"), 0);
    const EditableTensors other = read_tensors(scene_->last_trainer_state(run));
    const std::string name = "master.layers.0.gate_up_proj";
    EXPECT_NE(base.at(name).bytes, other.at(name).bytes);
  }
}

TEST_F(ContractTwin, AnotherLearningRateTrainsOtherWeights) {
  ASSERT_EQ(scene_->rl("rate", {"trainer.learning_rate=0.0031"}).exit_code, 0);
  EXPECT_NE(scene_->compare("base", "rate").exit_code, 0);
}

}  // namespace
}  // namespace rlk
