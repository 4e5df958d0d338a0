// Prompts, configurations and graders that are wrong.
#include <chrono>
#include <string>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "rlk/io/files.h"
#include "tests/cli/scene.h"

namespace rlk {
namespace {

class BadData : public testing::Test {
 protected:
  void expect_data_refused(const std::string& lines, const std::vector<std::string>& fragments) {
    SCOPED_TRACE(lines);
    scene_.write("bad.jsonl", lines);
    for (const char* key : {"data.train", "data.heldout"}) {
      expect_refused(scene_.rl("run", {std::string(key) + "=" + scene_.file("bad.jsonl")}), 2,
                     fragments);
      EXPECT_FALSE(file_exists(scene_.file("run")));
    }
  }
  void expect_key_refused(const std::string& assignment,
                          const std::vector<std::string>& fragments) {
    SCOPED_TRACE(assignment);
    expect_refused(scene_.rl("run", {assignment}), 2, fragments);
    EXPECT_FALSE(file_exists(scene_.file("run")));
  }

  Scene scene_;
};

std::string line(const std::string& prompt) {
  return R"({"prompt": ")" + prompt + R"(", "answer": "1"})" + "\n";
}

TEST_F(BadData, PromptWithATokenOutsideTheVocabulary) {
  expect_data_refused(line("12=") + line("1x2="), {"bad.jsonl:2", "1x2=", "0x78"});
}

TEST_F(BadData, PromptLongerThanTheContext) {
  expect_data_refused(line(std::string(64, '7')),
                      {"bad.jsonl:1", "64 tokens", "max_position_embeddings is 64"});
  expect_data_refused(line(std::string(1000, '7')), {"bad.jsonl:1", "1000 tokens"});
}

TEST_F(BadData, EmptyPrompt) { expect_data_refused(line(""), {"bad.jsonl:1", "empty prompt"}); }

TEST_F(BadData, EmptyDataset) {
  expect_data_refused("", {"bad.jsonl", "no prompts"});
  expect_data_refused("\n \n", {"bad.jsonl", "no prompts"});
}

TEST_F(BadData, LineThatIsNotJson) {
  expect_data_refused(line("12=") + "{\"prompt\": \n", {"bad.jsonl:2", "not JSON"});
}

TEST_F(BadData, LineWithoutAnAnswer) {
  expect_data_refused(R"({"prompt": "12="})", {"bad.jsonl:1", "answer", "missing"});
}

TEST_F(BadData, UnknownVerifier) {
  expect_data_refused(R"({"prompt": "12=", "answer": "1", "verifier": "exacct"})",
                      {"bad.jsonl:1", "exacct", "exact"});
  expect_key_refused("data.verifier=exacct", {"data.verifier", "exacct", "exact"});
}

TEST_F(BadData, MissingDataset) {
  expect_key_refused("data.train=" + scene_.file("nothing.jsonl"), {"nothing.jsonl"});
}

TEST_F(BadData, PromptThatFillsTheContextButForOneToken) {
  scene_.write("long.jsonl", line(std::string(63, '7')));
  ASSERT_EQ(scene_
                .rl("run", {"data.train=" + scene_.file("long.jsonl"), "steps=2",
                            "trainer.micro_batch_tokens=64"})
                .exit_code,
            0);
  EXPECT_EQ(scene_.summary("run").at("mean_response_tokens"), 1.0);
  EXPECT_EQ(scene_.summary("run").at("mismatch_count"), 0);
}

TEST_F(BadData, UnknownKeyNamesTheNearest) {
  expect_key_refused("rollout.page_sizes=4", {"rollout.page_sizes", "'rollout.page_size'"});
  scene_.write("rl2.json", R"({"model": {"path": "model"}, "rollout": {"page_sizes": 4}})");
  expect_refused(
      run_program({"rl", "--config", scene_.file("rl2.json"), "--out", scene_.file("run")}), 2,
      {"rl2.json", "page_sizes", "page_size"});
}

TEST_F(BadData, KeyOfAnotherType) {
  expect_key_refused("rollout.page_size=\"four\"", {"rollout.page_size", "integer", "four"});
  expect_key_refused("steps=1.5", {"steps", "1.5"});
  expect_key_refused("rollout.prefix_cache=1", {"rollout.prefix_cache"});
  expect_key_refused("steps", {"steps", "key=value"});
}

TEST_F(BadData, KeyOutOfRange) {
  expect_key_refused("rollout.page_size=3", {"rl.json", "rollout.page_size is 3", "power of two"});
  expect_key_refused("rollout.temperature=-1", {"rollout.temperature is -1"});
  expect_key_refused("rollout.top_p=0", {"rollout.top_p is 0"});
  expect_key_refused("contract.kv_block=4", {"contract.kv_block is 4"});
  expect_key_refused("contract.grad_slots=3", {"contract.grad_slots is 3"});
  expect_key_refused("trainer.minibatches=3", {"trainer.minibatches is 3", "16 samples"});
  expect_key_refused("rollout.num_pages=4", {"rollout.num_pages is 4"});
}

TEST_F(BadData, UnknownRoute) {
  expect_refused(scene_.rl("run", {}, {"--route", "fast"}), 2, {"fast", "strict", "production"});
  EXPECT_FALSE(file_exists(scene_.file("run")));
}

TEST_F(BadData, MissingConfig) {
  expect_refused(
      run_program({"rl", "--config", scene_.file("nothing.json"), "--out", scene_.file("run")}), 2,
      {"nothing.json"});
  expect_refused(run_program({"rl"}), 2, {"--config", "--out"});
}

Overrides grader(const std::string& command) {
  return {"data.verifier=command", "data.command=" + command, "data.command_timeout_s=0.3"};
}

TEST_F(BadData, GraderThatCrashes) {
  expect_refused(scene_.rl("run", grader(R"(["/bin/sh", "-c", "read x; kill -SEGV $$"])")), 2,
                 {"heldout.jsonl:1", "/bin/sh", "signal 11"});
  expect_refused(scene_.rl("run2", grader(R"(["/bin/sh", "-c", "exit 3"])")), 2,
                 {"heldout.jsonl:1", "exited with status 3"});
}

TEST_F(BadData, GraderThatHangs) {
  const auto start = std::chrono::steady_clock::now();
  expect_refused(scene_.rl("run", grader(R"(["/bin/sleep", "1000"])")), 2,
                 {"heldout.jsonl:1", "/bin/sleep", "no answer within 0.3 s"});
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(20));
}

TEST_F(BadData, GraderThatTalksNonsense) {
  expect_refused(scene_.rl("run", grader(R"(["/bin/sh", "-c", "read x; echo hello"])")), 2,
                 {"heldout.jsonl:1", "hello"});
  expect_refused(
      scene_.rl("run2", grader(R"(["/bin/sh", "-c", "read x; echo '{\"id\":0,\"score\":7}'"])")), 2,
      {"heldout.jsonl:1", "outside [0, 1]"});
}

TEST_F(BadData, GraderThatIsNotThere) {
  expect_refused(scene_.rl("run", grader(R"(["/nonexistent/grader"])")), 3,
                 {"/nonexistent/grader"});
}

// The steps before the crash stay, and the run goes on from there once the grader works.
TEST_F(BadData, GraderThatCrashesLaterLosesNothing) {
  const Overrides overrides = scene_.grader_that_once(4 + 16 * 4 + 3, "exit 9");
  expect_refused(scene_.rl("run", overrides), 2, {"train.jsonl:", "exited with status 9"});
  EXPECT_EQ(scene_.query("run", "SELECT count(*) FROM steps"), 4);
  ASSERT_EQ(scene_.resume("run", overrides).exit_code, 0);
  ASSERT_EQ(scene_.rl("undisturbed", scene_.grader_that_once(1'000'000, ":")).exit_code, 0);
  expect_equal_runs(scene_, "undisturbed", "run");
}

}  // namespace
}  // namespace rlk
