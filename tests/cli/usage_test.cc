// Arguments, help, and JSON for other programs.
#include <string>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tests/cli/scene.h"

namespace rlk {
namespace {

constexpr const char* kVerbs[] = {"rl",      "sft",    "init",     "generate", "score",
                                  "compare", "report", "contract", "probe",    "bench", "env"};

TEST(Usage, NoArgumentsIsRefused) { expect_refused(run_program({}), 2, {"--help"}); }

TEST(Usage, UnknownVerbIsRefusedByName) { expect_refused(run_program({"rll"}), 2, {"'rll'"}); }

TEST(Usage, UnknownOptionIsRefusedByName) {
  expect_refused(run_program({"rl", "--confg", "x"}), 2, {"--confg"});
}

TEST(Usage, HelpNamesEveryVerbAndEveryExitCode) {
  const Outcome help = run_program({"--help"});
  EXPECT_EQ(help.exit_code, 0);
  EXPECT_EQ(help.err, "");
  for (const char* verb : kVerbs) {
    EXPECT_NE(help.out.find(std::string("  ") + verb), std::string::npos) << verb;
    const Outcome of_verb = run_program({verb, "--help"});
    EXPECT_EQ(of_verb.exit_code, 0) << verb;
    EXPECT_GT(of_verb.out.size(), 100u) << verb;
  }
  for (const char* code : {"0 ", "1 ", "2 ", "3 ", "130 "}) {
    EXPECT_NE(help.out.find(code), std::string::npos) << code;
  }
}

TEST(Usage, EveryConfigKeyIsExplained) {
  const Outcome help = run_program({"rl", "--help-config"});
  EXPECT_EQ(help.exit_code, 0);
  for (const char* key : {"rollout.page_size", "contract.kv_block", "data.command", "sft.steps"}) {
    EXPECT_NE(help.out.find(key), std::string::npos) << key;
  }
}

TEST(Usage, EveryVerbPrintsJsonAndNothingElse) {
  const Scene scene;
  const std::string config = scene.file("rl.json");
  const std::string run = scene.file("run"), other = scene.file("other");
  const auto expect_json = [](const Arguments& arguments, const std::string& key) {
    SCOPED_TRACE(arguments[0]);
    const Outcome outcome = run_program(arguments);
    ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
    nlohmann::json json;
    ASSERT_NO_THROW(json = outcome.json()) << outcome.out;
    EXPECT_TRUE(json.contains(key)) << outcome.out;
  };
  expect_json({"init", "--config", scene.file("model.json"), "--out", scene.file("m"), "--json"},
              "model_digest");
  expect_json(scene.rl_arguments("run", {}, {"--json"}), "mismatch_count");
  expect_json(scene.rl_arguments("other", {}, {"--json"}), "mismatch_count");
  expect_json({"compare", run, "--json"}, "status");
  expect_json({"compare", run, other, "--json"}, "rollout");
  expect_json({"report", "--out", scene.file("r.html"), run, other, "--json"}, "report");
  expect_json({"generate", "--model", scene.model(), "--prompt", "1=", "--json"}, "tokens");
  expect_json({"contract", "show", "--json"}, "kv_block");
  expect_json({"contract", "digest", "--json"}, "forward");
  expect_json({"env", "--json"}, "cpu");
  expect_json(
      {"sft", "--config", config, "--out", scene.file("s"), "--set", "sft.steps=3", "--json"},
      "loss_last");
}

TEST(Usage, JsonOfADifferenceIsJsonToo) {
  const Scene scene;
  ASSERT_EQ(scene.rl("run").exit_code, 0);
  scene.execute("run", "UPDATE tokens SET trainer_logprob = X'000080BF' WHERE step = 2");
  const Outcome outcome = run_program({"compare", scene.file("run"), "--json"});
  EXPECT_EQ(outcome.exit_code, 1);
  EXPECT_EQ(outcome.json().at("status"), "differs");
}

TEST(Usage, ContractDiffNamesTheField) {
  const Scene scene;
  const Outcome shown = run_program({"contract", "show"});
  nlohmann::json contract = shown.json();
  scene.write("a.json", contract.dump());
  contract["kv_block"] = 64;
  scene.write("b.json", contract.dump());
  EXPECT_EQ(run_program({"contract", "diff", scene.file("a.json"), scene.file("a.json")}).exit_code,
            0);
  const Outcome diff =
      run_program({"contract", "diff", scene.file("a.json"), scene.file("b.json"), "--json"});
  EXPECT_EQ(diff.exit_code, 1);
  EXPECT_EQ(diff.json().at("forward_equal"), false);
  EXPECT_NE(diff.out.find("kv_block"), std::string::npos);
  scene.write("c.json", R"({"kv_blok": 64})");
  expect_refused(run_program({"contract", "show", scene.file("c.json")}), 2, {"c.json", "kv_blok"});
}

TEST(Usage, CompareRefusesWhatIsNoRun) {
  const Scene scene;
  expect_refused(run_program({"compare", scene.file("nothing")}), 2, {"nothing"});
  expect_refused(run_program({"compare", scene.model()}), 2, {"model", "run.db"});
  scene.write("garbage.db", "this is no database, whatever its name says");
  expect_refused(run_program({"compare", scene.file("garbage.db")}), 2,
                 {"garbage.db", "not a database"});
  expect_refused(run_program({"compare", scene.file("rl.json")}), 2, {"rl.json", "second one"});
  expect_refused(run_program({"report", "--out", scene.file("r.html"), scene.file("nothing")}), 2,
                 {"nothing"});
}

}  // namespace
}  // namespace rlk
