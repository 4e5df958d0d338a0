// Folders that cannot be written and disks that are full: a message, and nothing is lost.
#include <sys/stat.h>

#include <string>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "rlk/io/files.h"
#include "tests/cli/scene.h"

namespace rlk {
namespace {

TEST(Disk, RunFolderThatCannotBeMade) {
  const Scene scene;
  scene.write("file", "");
  expect_refused(scene.rl("file/run"), 2, {"file/run", "Not a directory"});
  expect_refused(scene.rl("file"), 2, {"file", "Not a directory"});
  expect_refused(run_program({"init", "--config", scene.file("model.json"), "--out",
                              scene.file("file/model")}),
                 2, {"file/model"});
}

// Found before the training, not after it.
TEST(Disk, SftFolderThatCannotBeMade) {
  const Scene scene;
  scene.write("file", "");
  const Outcome outcome =
      run_program({"sft", "--config", scene.file("rl.json"), "--out", scene.file("file/model")});
  expect_refused(outcome, 2, {"file/model"});
  EXPECT_EQ(outcome.err.find("step"), std::string::npos) << outcome.err;
}

TEST(Disk, ReportThatCannotBeWritten) {
  const Scene scene;
  ASSERT_EQ(scene.rl("run").exit_code, 0);
  scene.write("file", "");
  expect_refused(run_program({"report", "--out", scene.file("file/r.html"), scene.file("run")}), 2,
                 {"file/r.html"});
}

// A rename over a device or a pipe would put a file in its place.
TEST(Disk, NeverReplacesAPipe) {
  const Scene scene;
  ASSERT_EQ(scene.rl("run").exit_code, 0);
  const std::string pipe = scene.file("pipe");
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  expect_refused(run_program({"report", "--out", pipe, scene.file("run")}), 2,
                 {"pipe", "not a regular file"});
  struct stat status {};
  ASSERT_EQ(stat(pipe.c_str(), &status), 0);
  EXPECT_TRUE(S_ISFIFO(status.st_mode));
}

TEST(Disk, FullStandardOutputIsNoSuccess) {
  if (!file_exists("/dev/full")) GTEST_SKIP() << "no /dev/full";
  const Outcome outcome = run_program({"env"}, {.stdout_path = "/dev/full"});
  EXPECT_EQ(outcome.exit_code, 2);
  EXPECT_NE(outcome.err.find("standard output"), std::string::npos) << outcome.err;
}

// A limit on the size of a file stands for a full disk: both make write() fail.
TEST(Disk, FullAtTheStart) {
  const Scene scene;
  const Outcome outcome = run_program(scene.rl_arguments("run"), {.max_file_kib = 30});
  expect_refused(outcome, 2, {"run/run.db"});
  ASSERT_EQ(scene.rl("run").exit_code, 0) << "with room again the folder can be used";
}

TEST(DiskInvariance, FullInTheMiddleLosesNothing) {
  const Scene scene;
  const Overrides overrides = {"steps=30", "checkpoint.every=5"};
  ASSERT_EQ(scene.rl("undisturbed", overrides).exit_code, 0);
  for (const std::int64_t kib : {120, 200, 300}) {
    SCOPED_TRACE(kib);
    const std::string run = "run-" + std::to_string(kib);
    const Outcome full = run_program(scene.rl_arguments(run, overrides), {.max_file_kib = kib});
    expect_refused(full, 2, {run});
    // Whole steps only, and each has its bytes.
    const std::int64_t steps = scene.query(run, "SELECT count(*) FROM steps");
    EXPECT_GT(steps, 0);
    EXPECT_LT(steps, 30);
    EXPECT_EQ(scene.query(run, "SELECT count(*) FROM samples"), 16 * steps);
    EXPECT_EQ(scene.compare(run).exit_code, 0);

    const Outcome resumed = scene.resume(run, overrides);
    ASSERT_EQ(resumed.exit_code, 0) << resumed.err;
    expect_equal_runs(scene, "undisturbed", run);
  }
}

// The checkpoint is larger than what may be written; run.db is not.
TEST(DiskInvariance, FullInACheckpointLosesNothing) {
  const Scene scene;
  auto wide = nlohmann::json::parse(read_file(scene.file("model.json")));
  wide["hidden_size"] = 128;
  scene.write("wide.json", wide.dump());
  ASSERT_EQ(run_program({"init", "--config", scene.file("wide.json"), "--out", scene.file("wide")})
                .exit_code,
            0);
  const Overrides overrides = {"checkpoint.every=1", "model.path=" + scene.file("wide")};
  ASSERT_EQ(scene.rl("undisturbed", overrides).exit_code, 0);
  const Outcome full = run_program(scene.rl_arguments("run", overrides), {.max_file_kib = 300});
  expect_refused(full, 2, {"checkpoints/step-000001.partial", "File too large"});
  EXPECT_EQ(scene.query("run", "SELECT count(*) FROM steps"), 1);
  ASSERT_EQ(scene.resume("run", overrides).exit_code, 0);
  expect_equal_runs(scene, "undisturbed", "run");
}

}  // namespace
}  // namespace rlk
