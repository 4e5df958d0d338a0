// The supervised warm-up.
#include <signal.h>

#include <string>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "rlk/io/files.h"
#include "tests/cli/scene.h"

namespace rlk {
namespace {

Arguments sft_arguments(const Scene& scene, const std::string& out, const Overrides& overrides) {
  Arguments a = {"sft", "--config", scene.file("rl.json"), "--out", scene.file(out), "--json"};
  for (const std::string& o : overrides) a.insert(a.end(), {"--set", o});
  return a;
}

TEST(Sft, LowersTheLossAndWritesAFolderThatRlLoads) {
  const Scene scene;
  const Outcome sft = run_program(sft_arguments(scene, "warm", {}));
  ASSERT_EQ(sft.exit_code, 0) << sft.err;
  const nlohmann::json result = sft.json();
  EXPECT_EQ(result.at("steps"), 40);
  EXPECT_LT(result.at("loss_last").get<double>(), 0.8 * result.at("loss_first").get<double>());

  const Outcome rl = scene.rl("run", {"model.path=" + scene.file("warm")}, {"--json"});
  ASSERT_EQ(rl.exit_code, 0) << rl.err;
  EXPECT_EQ(rl.json().at("mismatch_count"), 0);
  EXPECT_EQ(scene.query("run", "SELECT count(*) FROM metrics WHERE name = 'sft_loss'"), 40);
}

TEST(SftInvariance, GivesTheSameWeightsForEveryPlan) {
  const Scene scene;
  ASSERT_EQ(run_program(sft_arguments(scene, "a", {})).exit_code, 0);
  Arguments other =
      sft_arguments(scene, "b", {"trainer.micro_batch_tokens=40", "trainer.threads=1"});
  other.insert(other.end(), {"--backend", "cpu.scalar"});
  ASSERT_EQ(run_program(other).exit_code, 0);
  EXPECT_EQ(read_file(scene.file("a/model.safetensors")),
            read_file(scene.file("b/model.safetensors")));
}

TEST(SftTwin, AnotherSeedGivesOtherWeights) {
  const Scene scene;
  ASSERT_EQ(run_program(sft_arguments(scene, "a", {})).exit_code, 0);
  ASSERT_EQ(run_program(sft_arguments(scene, "b", {"seed=2"})).exit_code, 0);
  EXPECT_NE(read_file(scene.file("a/model.safetensors")),
            read_file(scene.file("b/model.safetensors")));
}

TEST(Sft, StopsOnCtrlCWithWhatItHas) {
  const Scene scene;
  Program program(sft_arguments(scene, "warm", {"sft.steps=1000000"}));
  ASSERT_TRUE(program.wait_for("step 10/"));
  program.send(SIGINT);
  const Outcome outcome = program.wait();
  EXPECT_EQ(outcome.exit_code, 130) << outcome.err;
  EXPECT_GE(outcome.json().at("steps"), 10);
  EXPECT_EQ(run_program({"generate", "--model", scene.file("warm"), "--prompt", "1="}).exit_code,
            0);
}

TEST(Sft, RefusesBadAnswers) {
  const Scene scene;
  scene.write("bad.jsonl", R"({"prompt": "12=", "answer": "1x"})");
  const Overrides overrides = {"sft.data=" + scene.file("bad.jsonl")};
  expect_refused(run_program(sft_arguments(scene, "warm", overrides)), 2,
                 {"bad.jsonl:1", "1x", "0x78"});
  scene.write("bad.jsonl", R"({"prompt": "12=", "answer": ")" + std::string(61, '1') + "\"}");
  expect_refused(run_program(sft_arguments(scene, "warm", overrides)), 2,
                 {"bad.jsonl:1", "65 tokens", "max_position_embeddings is 64"});
  EXPECT_FALSE(file_exists(scene.file("warm")));
}

}  // namespace
}  // namespace rlk
