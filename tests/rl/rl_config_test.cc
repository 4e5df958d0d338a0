#include "rlk/rl/rl_config.h"

#include <cstdlib>
#include <fstream>
#include <set>
#include <sstream>
#include <string>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "rlk/core/error.h"
#include "rlk/rl/rl_config_keys.h"

namespace rlk {
namespace {

using nlohmann::json;

json minimal() { return {{"model", {{"path", "model"}}}, {"data", {{"train", "train.jsonl"}}}}; }

RlConfig parse(const json& object) { return parse_rl_config(object.dump(), "rl.json", "/base"); }

// The minimal config with one value at a JSON pointer.
json with(const std::string& pointer, const json& value, json object = minimal()) {
  object[json::json_pointer(pointer)] = value;
  return object;
}

void expect_refused(const std::string& text, ErrorCode code,
                    const std::vector<std::string>& parts) {
  try {
    parse_rl_config(text, "rl.json", "/base");
    ADD_FAILURE() << "no error for " << text;
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), code) << e.what();
    const std::string message = e.what();
    EXPECT_NE(message.find("rl.json"), std::string::npos) << message;
    for (const std::string& part : parts) {
      EXPECT_NE(message.find(part), std::string::npos) << "'" << part << "' is not in: " << message;
    }
  }
}
void expect_refused(const json& object, ErrorCode code, const std::vector<std::string>& parts) {
  expect_refused(object.dump(), code, parts);
}

std::string read_text(const std::string& path) {
  std::ifstream in(path);
  std::ostringstream text;
  text << in.rdbuf();
  return text.str();
}

TEST(RlConfig, FillsWhatIsAbsentWithDefaults) {
  RlConfig expected;
  expected.model.path = "/base/model";
  expected.data.train = "/base/train.jsonl";
  expected.data.command_dir = "/base";
  EXPECT_EQ(parse(minimal()), expected);
}

TEST(RlConfig, ReadsEveryKindOfValue) {
  json object = minimal();
  object["seed"] = 9007199254740991;
  object["route"] = "production";
  object["contract"] = {{"kv_block", 32}, {"kv_split", 64}, {"profile", "sm90"}};
  object["modes"]["trainer"] = {{"gemm", "off"}, {"attention", "audit"}};
  object["data"]["command"] = {"python3", "grade.py"};
  object["rollout"] = {{"stop_token_ids", {1, 2}}, {"prefix_cache", false}, {"temperature", 1}};
  object["trainer"]["lr_schedule"] = "cosine";
  object["loss"] = {{"kl", "k3"}, {"kl_coef", 0.01}, {"averaging", "sample"}};
  const RlConfig config = parse(object);
  EXPECT_EQ(config.seed, (std::uint64_t{1} << 53) - 1);
  EXPECT_EQ(config.route, RlConfig::Route::kProduction);
  EXPECT_EQ(config.contract.kv_split, 64);
  EXPECT_EQ(config.contract.profile, Profile::kSm90);
  EXPECT_EQ(config.modes.trainer, (RlConfig::Modes{{"attention", "audit"}, {"gemm", "off"}}));
  EXPECT_EQ(config.data.command, (std::vector<std::string>{"python3", "grade.py"}));
  EXPECT_EQ(config.rollout.stop_token_ids, (std::vector<int>{1, 2}));
  EXPECT_FALSE(config.rollout.prefix_cache);
  EXPECT_EQ(config.rollout.temperature, 1.0);
  EXPECT_EQ(config.trainer.lr_schedule, RlConfig::LrSchedule::kCosine);
  EXPECT_EQ(config.loss.kl, RlConfig::Kl::kK3);
  EXPECT_EQ(config.loss.averaging, RlConfig::Averaging::kSample);
}

TEST(RlConfig, TakesPathsRelativeToTheFile) {
  json object = minimal();
  object["model"]["path"] = "../models/m/";
  object["data"]["heldout"] = "/abs/heldout.jsonl";
  object["sft"]["data"] = "./sft.jsonl";
  const RlConfig config = parse(object);
  EXPECT_EQ(config.model.path, "/models/m");
  EXPECT_EQ(config.data.heldout, "/abs/heldout.jsonl");
  EXPECT_EQ(config.sft.data, "/base/sft.jsonl");
  EXPECT_EQ(config.data.train, "/base/train.jsonl");
}

TEST(RlConfig, ComesBackFromItsCanonicalJson) {
  json object = minimal();
  object["rollout"] = {{"temperature", 0.1}, {"max_new_tokens", 12}};
  object["modes"]["rollout"] = {{"gemm", "auto"}};
  object["loss"]["kl"] = "k1";
  const RlConfig config = parse(object);
  const std::string text = to_json(config);
  EXPECT_EQ(parse_rl_config(text, "again", "/elsewhere"), config);
  EXPECT_EQ(to_json(parse_rl_config(text, "again", "/elsewhere")), text);
  EXPECT_EQ(text, json::parse(text).dump());  // sorted, no spaces
}

TEST(RlConfig, NamesEveryKeyOnceAndWritesAllOfThem) {
  std::set<std::string_view> paths;
  const json written = json::parse(to_json(parse(minimal()))).flatten();
  for (const ConfigKey& key : config_keys()) {
    EXPECT_TRUE(paths.insert(key.path).second) << key.path;
    EXPECT_FALSE(key.meaning.empty()) << key.path;
    EXPECT_NE(key.meaning.back(), ' ') << key.path;
  }
  EXPECT_GE(written.size(), paths.size());
}

TEST(RlConfig, KnowsEveryFieldOfTheContract) {
  std::set<std::string> known;
  for (const ConfigKey& key : config_keys()) {
    if (key.section() == "contract") known.emplace(key.path.substr(sizeof("contract")));
  }
  const json fields = json::parse(canonical_json(Contract()));
  for (const auto& field : fields.items()) {
    if (field.key() == "primitives" || field.key() == "roundings") continue;
    EXPECT_TRUE(known.contains(field.key())) << field.key();
  }
}

TEST(RlConfig, HasDefaultsThatKeepTheRules) {
  RlConfig config;
  config.model.path = "m";
  config.data.train = "t";
  EXPECT_NO_THROW(validate(config, "defaults"));
}

TEST(RlConfig, RefusesUnknownKeysAndNamesTheNearest) {
  const ErrorCode format = ErrorCode::kFormat;
  expect_refused(with("/rollout/temprature", 1.0), format, {"rollout.temprature", "temperature"});
  expect_refused(with("/rolout", json::object()), format, {"rolout", "rollout"});
  expect_refused(with("/data/fields/promt", "q"), format, {"data.fields.promt", "prompt"});
  expect_refused(with("/contract/kv_blok", 16), format, {"contract.kv_blok", "kv_block"});
  expect_refused(with("/zzzzzzzzzzzz", 1), format, {"zzzzzzzzzzzz"});
}

TEST(RlConfig, RefusesWrongTypes) {
  const ErrorCode format = ErrorCode::kFormat;
  expect_refused(with("/steps", "200"), format, {"steps", "\"200\""});
  expect_refused(with("/steps", 1.5), format, {"steps", "1.5"});
  expect_refused(with("/rollout", 3), format, {"rollout", "3"});
  expect_refused(with("/rollout/prefix_cache", 1), format, {"rollout.prefix_cache"});
  expect_refused(with("/rollout/stop_token_ids", 1), format, {"rollout.stop_token_ids"});
  expect_refused(with("/data/command", "python3"), format, {"data.command"});
  expect_refused(with("/model/path", 1), format, {"model.path"});
  expect_refused(std::string("[]"), format, {"object"});
  expect_refused(std::string("{\"steps\": 1,"), format, {});
  expect_refused(std::string("{\"steps\": 1, \"steps\": 2}"), format, {"steps"});
}

TEST(RlConfig, RefusesChoicesThatAreNone) {
  const auto refused = [](const std::string& pointer, const std::string& value,
                          const std::vector<std::string>& parts) {
    try {
      parse(with(pointer, value));
      ADD_FAILURE() << pointer;
    } catch (const Error& e) {
      for (const std::string& part : parts) {
        EXPECT_NE(std::string(e.what()).find(part), std::string::npos) << e.what();
      }
    }
  };
  refused("/route", "fast", {"route", "fast", "strict", "production"});
  refused("/loss/kl", "k4", {"loss.kl", "k4", "none", "k3"});
  refused("/modes/rollout/gemm", "on", {"modes.rollout.gemm", "on", "audit"});
  refused("/contract/profile", "sm80", {"contract.profile", "sm80", "portable"});
}

TEST(RlConfig, RefusesValuesOutsideTheirRange) {
  const ErrorCode invalid = ErrorCode::kInvalidArgument;
  expect_refused(with("/steps", -1), invalid, {"steps", "-1", ">= 0"});
  expect_refused(with("/rollout/top_p", 0), invalid, {"rollout.top_p", "0", "(0, 1]"});
  expect_refused(with("/rollout/top_p", 1.1), invalid, {"1.1"});
  expect_refused(with("/rollout/temperature", 0), invalid, {"rollout.temperature"});
  expect_refused(with("/rollout/min_p", 1), invalid, {"rollout.min_p", "[0, 1)"});
  expect_refused(with("/rollout/page_size", 24), invalid, {"rollout.page_size", "24", "power"});
  expect_refused(with("/rollout/samples_per_prompt", 1), invalid, {"samples_per_prompt"});
  expect_refused(with("/rollout/stop_token_ids", {3, -1}), invalid, {"stop_token_ids", "-1"});
  expect_refused(with("/rollout/max_new_tokens", 3000000000), invalid, {"max_new_tokens"});
  expect_refused(with("/trainer/adam_beta1", 1), invalid, {"trainer.adam_beta1"});
  expect_refused(with("/trainer/learning_rate", -1e-3), invalid, {"trainer.learning_rate"});
  expect_refused(with("/data/train", ""), invalid, {"data.train", "empty"});
  expect_refused(json{{"data", {{"train", "t"}}}}, invalid, {"model.path", "empty"});
  expect_refused(with("/contract/kv_split", 100), invalid, {"kv_split", "100"});
  expect_refused(with("/contract/leaves", 3), invalid, {"leaves", "3"});
  expect_refused(with("/seed", 9007199254740993), invalid, {"seed"});
}

TEST(RlConfig, RefusesValuesThatContradictEachOther) {
  const ErrorCode invalid = ErrorCode::kInvalidArgument;
  expect_refused(with("/loss/kl_coef", 0.1), invalid, {"loss.kl_coef", "loss.kl"});
  expect_refused(with("/eval/every", 10), invalid, {"eval.every", "data.heldout"});
  expect_refused(with("/rollout/num_pages", 2), invalid, {"rollout.num_pages", "max_new_tokens"});
  expect_refused(with("/rollout/max_num_batched_tokens", 63), invalid,
                 {"max_num_batched_tokens", "max_num_seqs"});
  expect_refused(with("/trainer/micro_batch_tokens", 64), invalid,
                 {"trainer.micro_batch_tokens", "max_new_tokens"});
  expect_refused(with("/trainer/minibatches", 3), invalid, {"trainer.minibatches", "256"});
  json filtered = with("/rollout/top_k", 5);
  filtered["trainer"]["minibatches"] = 2;
  expect_refused(filtered, invalid, {"top_k", "5", "minibatches"});
  filtered = with("/rollout/top_p", 0.9);
  filtered["loss"]["kl"] = "k3";
  expect_refused(filtered, invalid, {"top_p", "0.9", "loss.kl"});
  expect_refused(with("/trainer/warmup_steps", 101), invalid, {"trainer.warmup_steps", "100"});
  expect_refused(with("/contract/grad_slots", 512), invalid, {"contract.grad_slots", "256"});
  expect_refused(with("/sft/warmup_steps", 101), invalid, {"sft.warmup_steps"});
  expect_refused(with("/data/verifier", "exakt"), invalid, {"data.verifier", "exakt", "exact"});
  expect_refused(with("/data/verifier", "command"), invalid, {"data.command"});
  expect_refused(with("/data/prompt_template", "Q: "), invalid, {"data.prompt_template"});
  expect_refused(with("/data/message_template", "{role}"), invalid, {"data.message_template"});
}

TEST(RlConfig, AppliesOverridesOfACommandLine) {
  RlConfig config = parse(minimal());
  apply_override(config, "rollout.temperature=0.5", "/here");
  apply_override(config, "route=production", "/here");
  apply_override(config, "rollout.stop_token_ids=[4]", "/here");
  apply_override(config, "data.heldout=h.jsonl", "/here");
  apply_override(config, "data.answer_after=42", "/here");  // text stays text
  EXPECT_EQ(config.rollout.temperature, 0.5);
  EXPECT_EQ(config.route, RlConfig::Route::kProduction);
  EXPECT_EQ(config.rollout.stop_token_ids, (std::vector<int>{4}));
  EXPECT_EQ(config.data.heldout, "/here/h.jsonl");
  EXPECT_EQ(config.data.train, "/base/train.jsonl");
  EXPECT_EQ(config.data.answer_after, "42");
  for (const char* bad : {"steps", "stepz=1", "steps=many", "rollout=1", "=1"}) {
    EXPECT_THROW(apply_override(config, bad, "/here"), Error) << bad;
  }
}

TEST(RlConfig, ReportsAFileThatIsNotThere) {
  try {
    load_rl_config("/nowhere/rl.json");
    FAIL();
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ErrorCode::kIo);
    EXPECT_NE(std::string(e.what()).find("/nowhere/rl.json"), std::string::npos);
  }
}

TEST(RlConfig, LoadsTheDemo) {
  const std::string root = RLK_SOURCE_DIR;
  const RlConfig config = load_rl_config(root + "/examples/demo/rl.json");
  EXPECT_EQ(config.steps, 200);
  EXPECT_EQ(config.data.train, root + "/examples/demo/train.jsonl");
}

TEST(RlConfig, IsDocumentedByTheTableOfKeys) {
  const std::string path = std::string(RLK_SOURCE_DIR) + "/docs/rl_config.md";
  if (std::getenv("RLK_UPDATE_DOCS") != nullptr) std::ofstream(path) << config_markdown();
  EXPECT_TRUE(read_text(path) == config_markdown())
      << "docs/rl_config.md is out of date: run this test once with RLK_UPDATE_DOCS=1";
}

TEST(RlConfig, ExplainsEveryKeyWithinTheWidthOfATerminal) {
  const std::string help = config_help();
  for (const ConfigKey& key : config_keys()) {
    EXPECT_NE(help.find(std::string(key.path) + "  ("), std::string::npos) << key.path;
  }
  std::istringstream lines(help);
  for (std::string line; std::getline(lines, line);) EXPECT_LE(line.size(), 100u) << line;
}

}  // namespace
}  // namespace rlk
