// A run that was disturbed and resumed has the bytes of an undisturbed one.
#include <signal.h>

#include <chrono>
#include <filesystem>
#include <random>
#include <string>
#include <thread>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "rlk/io/files.h"
#include "tests/cli/scene.h"

namespace rlk {
namespace {

using Clock = std::chrono::steady_clock;

// Scores asked for before the first step and in each, see Scene::grader_that_once.
constexpr int kBeforeSteps = 4;
constexpr int kPerStep = 16;
constexpr const char* kKill = "kill -KILL $PPID";
constexpr const char* kInterrupt = "kill -INT $PPID";
constexpr int kNever = 1'000'000;

// Score number 3 of step `step`.
int score_in_step(int step) { return kBeforeSteps + kPerStep * (step - 1) + 3; }

std::int64_t last_step(const Scene& scene, const std::string& run) {
  return scene.query(run, "SELECT coalesce(max(step), 0) FROM steps");
}

// Runs with a grader that does `deed` at score `at`, resumes, compares with an undisturbed run.
void expect_resumes(const Scene& scene, int at, const std::string& deed) {
  SCOPED_TRACE("disturbed at score " + std::to_string(at) + ": " + deed);
  const Overrides overrides = scene.grader_that_once(at, deed);
  const std::string run = "run-" + std::to_string(at);
  const Outcome disturbed = scene.rl(run, overrides);
  EXPECT_NE(disturbed.exit_code, 0);
  const Outcome resumed = scene.resume(run, overrides);
  ASSERT_EQ(resumed.exit_code, 0) << resumed.err;
  expect_equal_runs(scene, "undisturbed", run);
}

void run_undisturbed(const Scene& scene) {
  const Outcome outcome = scene.rl("undisturbed", scene.grader_that_once(kNever, ":"));
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
}

TEST(Resume, IsRefusedWhileTheRunIsAlive) {
  const Scene scene;
  Program program(scene.rl_arguments("run", {"steps=1000000"}));
  ASSERT_TRUE(program.wait_for("step "));
  expect_refused(scene.resume("run", {"steps=1000000"}), 2, {"run.lock", "another process"});
  program.send(SIGINT);
  EXPECT_EQ(program.wait().exit_code, 130);
}

TEST(ResumeInvariance, AfterSigkillBeforeAndBehindCheckpoints) {
  const Scene scene;
  run_undisturbed(scene);
  expect_resumes(scene, 1, kKill);                 // in the evaluation before the first step
  expect_resumes(scene, score_in_step(2), kKill);  // before the first checkpoint
  expect_resumes(scene, score_in_step(4), kKill);  // right behind it
  expect_resumes(scene, score_in_step(8), kKill);  // in the last step
  // In the evaluation that follows the last step, before its checkpoint.
  expect_resumes(scene, kBeforeSteps + 8 * kPerStep + 2, kKill);
}

TEST(ResumeInvariance, AfterSigkillAtRandomMoments) {
  const Scene scene;
  // A checkpoint in every step: about half of the kills hit one that is being written.
  const Overrides overrides = {"steps=24", "checkpoint.every=1", "checkpoint.keep=1"};
  const auto start = Clock::now();
  ASSERT_EQ(scene.rl("undisturbed", overrides).exit_code, 0);
  const std::chrono::duration<double> whole = Clock::now() - start;

  std::mt19937 random(7);
  std::uniform_real_distribution<double> fraction(0.02, 0.7);
  int kills = 0;
  for (const std::string run : {"a", "b"}) {
    for (int k = 0; k < 4; ++k) {
      const bool started = file_exists(scene.file(run + "/run.db"));
      Program program(
          scene.rl_arguments(run, overrides, started ? Arguments{"--resume"} : Arguments{}));
      std::this_thread::sleep_for(whole * fraction(random));
      program.send(SIGKILL);
      const Outcome outcome = program.wait();
      ASSERT_TRUE(outcome.signal == SIGKILL || outcome.exit_code == 0) << outcome.err;
      kills += outcome.signal == SIGKILL;
    }
    const bool started = file_exists(scene.file(run + "/run.db"));
    const Outcome resumed = scene.rl(run, overrides, started ? Arguments{"--resume"} : Arguments{});
    ASSERT_EQ(resumed.exit_code, 0) << resumed.err;
    expect_equal_runs(scene, "undisturbed", run);
  }
  EXPECT_GT(kills, 0);
}

TEST(ResumeInvariance, WithTheRemainsOfAHalfWrittenCheckpoint) {
  const Scene scene;
  run_undisturbed(scene);
  const Overrides overrides = scene.grader_that_once(score_in_step(5), kKill);
  scene.rl("run", overrides);
  ASSERT_EQ(last_step(scene, "run"), 4);
  make_directories(scene.file("run/checkpoints/step-000006.partial"));
  scene.write("run/checkpoints/step-000006.partial/trainer.safetensors.tmp", "half a checkpoint");
  make_directories(scene.file("run/checkpoints/step-000001"));  // an old one, half deleted
  const Outcome resumed = scene.resume("run", overrides);
  ASSERT_EQ(resumed.exit_code, 0) << resumed.err;
  expect_equal_runs(scene, "undisturbed", "run");
  EXPECT_FALSE(file_exists(scene.file("run/checkpoints/step-000006.partial")));
}

TEST(ResumeInvariance, WithTheRemainsOfAStart) {
  const Scene scene;
  run_undisturbed(scene);
  // Killed while run.db is being made: it has another name until it is whole.
  make_directories(scene.file("early"));
  scene.write("early/run.db.new", "half a database");
  const Overrides no_deed = scene.grader_that_once(kNever, ":");
  expect_refused(scene.resume("early", no_deed), 2, {"early/run.db", "no run to resume"});
  ASSERT_EQ(scene.rl("early", no_deed).exit_code, 0);
  expect_equal_runs(scene, "undisturbed", "early");
  // Killed before run.db says what run it is.
  const Overrides overrides = scene.grader_that_once(0, kKill);
  scene.rl("late", overrides);
  scene.execute("late", "DELETE FROM config WHERE key IN ('config', 'model_digest')");
  const Outcome resumed = scene.resume("late", overrides);
  ASSERT_EQ(resumed.exit_code, 0) << resumed.err;
  expect_equal_runs(scene, "undisturbed", "late");
}

TEST(ResumeInvariance, WithNewerCheckpointsThanRunDb) {
  const Scene scene;
  run_undisturbed(scene);
  const Overrides overrides = scene.grader_that_once(score_in_step(5), kKill);
  scene.rl("run", overrides);
  std::filesystem::copy(scene.file("undisturbed/checkpoints/step-000008"),
                        scene.file("run/checkpoints/step-000009"));
  ASSERT_EQ(scene.resume("run", overrides).exit_code, 0);
  expect_equal_runs(scene, "undisturbed", "run");
  EXPECT_FALSE(file_exists(scene.file("run/checkpoints/step-000009")));
}

TEST(ResumeInvariance, AfterCtrlC) {
  const Scene scene;
  run_undisturbed(scene);
  const Overrides overrides = scene.grader_that_once(score_in_step(5), kInterrupt);
  const Outcome interrupted = scene.rl("run", overrides);
  EXPECT_EQ(interrupted.exit_code, 130) << interrupted.err;
  EXPECT_NE(interrupted.err.find("--resume"), std::string::npos);
  // The step was finished, with a checkpoint, a summary and a report.
  EXPECT_EQ(last_step(scene, "run"), 5);
  EXPECT_EQ(scene.query("run",
                        "SELECT count(*) FROM pragma_integrity_check "
                        "WHERE integrity_check = 'ok'"),
            1);
  EXPECT_EQ(scene.compare("run").exit_code, 0);
  EXPECT_EQ(scene.summary("run").at("steps"), 5);
  EXPECT_TRUE(scene.summary("run").at("heldout_reward_after").is_null());
  EXPECT_TRUE(file_exists(scene.file("run/report.html")));
  EXPECT_TRUE(file_exists(scene.file("run/checkpoints/step-000005")));

  ASSERT_EQ(scene.resume("run", overrides).exit_code, 0);
  EXPECT_EQ(scene.summary("run").at("steps"), 8);
  expect_equal_runs(scene, "undisturbed", "run");
}

TEST(ResumeInvariance, AfterCtrlCTwice) {
  const Scene scene;
  run_undisturbed(scene);
  const Overrides overrides =
      scene.grader_that_once(score_in_step(5), "kill -INT $PPID; sleep 0.2; kill -INT $PPID");
  const Outcome interrupted = scene.rl("run", overrides);
  EXPECT_EQ(interrupted.signal, SIGINT) << "the second one ends the program at once";
  EXPECT_EQ(last_step(scene, "run"), 4);
  ASSERT_EQ(scene.resume("run", overrides).exit_code, 0);
  expect_equal_runs(scene, "undisturbed", "run");
}

TEST(ResumeInvariance, OfAFinishedRunChangesNothing) {
  const Scene scene;
  ASSERT_EQ(scene.rl("a").exit_code, 0);
  ASSERT_EQ(scene.rl("b").exit_code, 0);
  const Outcome resumed = scene.resume("b");
  ASSERT_EQ(resumed.exit_code, 0) << resumed.err;
  expect_equal_runs(scene, "a", "b");
}

TEST(ResumeTwin, OneAlteredBlobDiffers) {
  const Scene scene;
  ASSERT_EQ(scene.rl("a").exit_code, 0);
  ASSERT_EQ(scene.rl("b").exit_code, 0);
  ASSERT_EQ(scene.compare("a", "b").exit_code, 0);
  scene.execute("b",
                "UPDATE tokens SET rollout_logprob = X'000080BF' "
                "WHERE (step, sample, position) IN "
                "(SELECT step, sample, position FROM tokens LIMIT 1 OFFSET 50)");
  const Outcome runs = scene.compare("a", "b");
  EXPECT_EQ(runs.exit_code, 1) << runs.err;
  EXPECT_NE(runs.out.find(" 1 of "), std::string::npos) << runs.out;
  const Outcome sides = scene.compare("b");
  EXPECT_EQ(sides.exit_code, 1);
  EXPECT_NE(sides.out.find("-1"), std::string::npos) << sides.out;
}

TEST(ResumeTwin, AnAlteredRewardDiffers) {
  const Scene scene;
  ASSERT_EQ(scene.rl("a").exit_code, 0);
  ASSERT_EQ(scene.rl("b").exit_code, 0);
  scene.execute("b", "UPDATE samples SET reward = 0.75 WHERE step = 3 AND sample = 2");
  EXPECT_EQ(scene.compare("a", "b").exit_code, 1);
}

TEST(ResumeTwin, AnotherSeedIsNotComparable) {
  const Scene scene;
  ASSERT_EQ(scene.rl("a").exit_code, 0);
  ASSERT_EQ(scene.rl("b", {"seed=2"}).exit_code, 0);
  const Outcome compared = scene.compare("a", "b");
  EXPECT_EQ(compared.exit_code, 2);
  EXPECT_NE(compared.out.find("not comparable"), std::string::npos) << compared.out;
}

TEST(ResumeTwin, AnUnfinishedRunIsNotComparable) {
  const Scene scene;
  run_undisturbed(scene);
  scene.rl("run", scene.grader_that_once(score_in_step(5), kKill));
  const Outcome compared = scene.compare("undisturbed", "run");
  EXPECT_EQ(compared.exit_code, 2);
  EXPECT_NE(compared.out.find("steps"), std::string::npos) << compared.out;
}

TEST(Compare, RefusesACopyOfARun) {
  const Scene scene;
  ASSERT_EQ(scene.rl("a").exit_code, 0);
  std::filesystem::copy(scene.file("a"), scene.file("b"), std::filesystem::copy_options::recursive);
  expect_refused(scene.compare("a", "b"), 2, {"is a copy of"});
  expect_refused(scene.compare("a", "a"), 2, {"are one file"});
}

TEST(Resume, RefusesAnotherConfigNamingTheKey) {
  const Scene scene;
  ASSERT_EQ(scene.rl("run").exit_code, 0);
  expect_refused(scene.resume("run", {"seed=2"}), 2, {"run.db", "seed was 1, is now 2"});
  expect_refused(scene.resume("run", {"trainer.learning_rate=0.25"}), 2,
                 {"trainer.learning_rate", "is now 0.25"});
}

TEST(Resume, RefusesOtherWeights) {
  const Scene scene;
  ASSERT_EQ(scene.rl("run").exit_code, 0);
  ASSERT_EQ(run_program({"init", "--config", scene.file("model.json"), "--seed", "4", "--out",
                         scene.model()})
                .exit_code,
            0);
  expect_refused(scene.resume("run"), 2, {"run.db", "other weights", scene.model_digest()});
}

TEST(Resume, RefusesAFolderWithoutARun) {
  const Scene scene;
  expect_refused(scene.resume("nothing"), 2, {"nothing/run.db", "no run to resume"});
  EXPECT_FALSE(file_exists(scene.file("nothing")));
}

TEST(Resume, RefusesASpoiledCheckpoint) {
  const Scene scene;
  const Overrides overrides = scene.grader_that_once(score_in_step(5), kKill);
  scene.rl("run", overrides);
  const std::string state = "run/checkpoints/step-000003/trainer.safetensors";
  const std::string bytes = read_file(scene.file(state));
  scene.write(state, bytes.substr(0, bytes.size() / 2));
  expect_refused(scene.resume("run", overrides), 2, {"step-000003/trainer.safetensors"});
  EXPECT_EQ(last_step(scene, "run"), 4) << "a refused resume deletes nothing";
}

}  // namespace
}  // namespace rlk
