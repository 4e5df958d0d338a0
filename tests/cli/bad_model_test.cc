// Model folders that are wrong: the message names file, field and value, and no run is begun.
#include <filesystem>
#include <functional>
#include <string>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "rlk/io/files.h"
#include "tests/cli/scene.h"
#include "tests/cli/tensor_edit.h"

namespace rlk {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

class BadModel : public testing::Test {
 protected:
  BadModel() { fs::copy(scene_.model(), scene_.file("bad"), fs::copy_options::recursive); }

  std::string weights() const { return scene_.file("bad/model.safetensors"); }

  void edit_config(const std::function<void(json&)>& edit) const {
    const std::string path = scene_.file("bad/config.json");
    json config = json::parse(read_file(path));
    edit(config);
    write_file(path, config.dump());
  }
  void edit_tensors(const std::function<void(EditableTensors&)>& edit) const {
    EditableTensors tensors = read_tensors(weights());
    edit(tensors);
    write_tensors(weights(), tensors);
  }
  void expect_rl_refused(int exit_code, const std::vector<std::string>& fragments) const {
    expect_refused(scene_.rl("run", {"model.path=" + scene_.file("bad")}), exit_code, fragments);
    EXPECT_FALSE(file_exists(scene_.file("run")));
  }

  Scene scene_;
};

TEST_F(BadModel, TruncatedSafetensors) {
  const std::string bytes = read_file(weights());
  for (const std::size_t kept :
       {std::size_t{0}, std::size_t{5}, std::size_t{100}, bytes.size() / 2, bytes.size() - 1}) {
    SCOPED_TRACE(kept);
    write_file(weights(), bytes.substr(0, kept));
    expect_rl_refused(2, {"bad/model.safetensors"});
  }
}

TEST_F(BadModel, SafetensorsWithATail) {
  write_file(weights(), read_file(weights()) + "tail");
  expect_rl_refused(2, {"bad/model.safetensors"});
}

TEST_F(BadModel, HeaderThatLiesAboutItsSize) {
  std::string bytes = read_file(weights());
  bytes[6] = 1;  // 2^48 more
  write_file(weights(), bytes);
  expect_rl_refused(2, {"bad/model.safetensors", "header size", "281474976"});
}

TEST_F(BadModel, HeaderThatLiesAboutATensor) {
  edit_tensors([](EditableTensors& t) { t["model.norm.weight"].shape = {33}; });
  expect_rl_refused(2, {"bad/model.safetensors", "model.norm.weight", "33"});
}

TEST_F(BadModel, MissingTensor) {
  edit_tensors([](EditableTensors& t) { t.erase("model.layers.0.self_attn.q_proj.weight"); });
  expect_rl_refused(2, {"bad", "model.layers.0.self_attn.q_proj.weight"});
}

TEST_F(BadModel, WrongShape) {
  edit_tensors([](EditableTensors& t) { t["model.norm.weight"].shape = {16, 2}; });
  expect_rl_refused(2, {"bad/model.safetensors", "model.norm.weight", "[16, 2]", "[32]"});
}

TEST_F(BadModel, TensorOfALayerThatTheConfigDoesNotHave) {
  edit_tensors([](EditableTensors& t) {
    t["model.layers.1.mlp.up_proj.weight"] = t["model.layers.0.mlp.up_proj.weight"];
  });
  expect_rl_refused(2, {"bad/model.safetensors", "model.layers.1.mlp.up_proj.weight"});
}

TEST_F(BadModel, NanWeight) {
  edit_tensors([](EditableTensors& t) { t["model.norm.weight"].bytes.replace(6, 2, "\xC0\x7F"); });
  expect_rl_refused(2, {"bad/model.safetensors", "model.norm.weight", "element 3", "not finite"});
}

TEST_F(BadModel, IndexThatNamesAMissingShard) {
  fs::remove(weights());
  write_file(scene_.file("bad/model.safetensors.index.json"),
             R"({"weight_map": {"model.norm.weight": "model-00001-of-00002.safetensors"}})");
  expect_rl_refused(2, {"model-00001-of-00002.safetensors"});
}

TEST_F(BadModel, UnknownArchitecture) {
  edit_config([](json& c) { c["model_type"] = "gemma3"; });
  expect_rl_refused(3, {"bad/config.json", "model_type", "gemma3", "qwen3"});
}

TEST_F(BadModel, RopeScaling) {
  edit_config([](json& c) { c["rope_scaling"] = {{"rope_type", "yarn"}, {"factor", 4.0}}; });
  expect_rl_refused(3, {"bad/config.json", "rope_scaling", "yarn"});
}

TEST_F(BadModel, RopeParametersThatContradict) {
  edit_config([](json& c) {
    c["rope_theta"] = 10000.0;
    c["rope_parameters"] = {{"rope_type", "default"}, {"rope_theta", 500000.0}};
  });
  expect_rl_refused(2, {"bad/config.json", "rope_theta"});
}

TEST_F(BadModel, ConfigValueOfAnotherType) {
  edit_config([](json& c) { c["hidden_size"] = "big"; });
  expect_rl_refused(2, {"bad/config.json", "hidden_size", "big"});
}

TEST_F(BadModel, ConfigThatDoesNotFitTheWeights) {
  edit_config([](json& c) { c["intermediate_size"] = 64; });
  expect_rl_refused(2, {"bad/model.safetensors", "[48, 32]", "[64, 32]"});
}

TEST_F(BadModel, MissingFiles) {
  for (const char* name : {"model.safetensors", "tokenizer.json", "config.json"}) {
    SCOPED_TRACE(name);
    fs::remove(scene_.file(std::string("bad/") + name));
    expect_rl_refused(2, {"bad", name});
  }
}

TEST_F(BadModel, TokenizerLargerThanTheVocabulary) {
  json model = json::parse(read_file(scene_.file("model.json")));
  model["vocab_size"] = 32;
  model["tokenizer"]["characters"] = "0123456789+-*=abcdef";
  scene_.write("large.json", model.dump());
  ASSERT_EQ(
      run_program({"init", "--config", scene_.file("large.json"), "--out", scene_.file("large")})
          .exit_code,
      0);
  fs::copy_file(scene_.file("large/tokenizer.json"), scene_.file("bad/tokenizer.json"),
                fs::copy_options::overwrite_existing);
  expect_rl_refused(2, {"tokenizer.json", "21", "vocab_size", "16"});
}

TEST_F(BadModel, StopTokenOutsideTheVocabulary) {
  edit_config([](json& c) { c["eos_token_id"] = 16; });
  expect_rl_refused(2, {"eos_token_id", "16"});
}

TEST_F(BadModel, TheOtherVerbsRefuseItToo) {
  edit_tensors([](EditableTensors& t) { t.erase("model.norm.weight"); });
  const std::string bad = scene_.file("bad");
  expect_refused(run_program({"generate", "--model", bad, "--prompt", "12="}), 2,
                 {"model.norm.weight"});
  expect_refused(run_program({"sft", "--config", scene_.file("rl.json"), "--out",
                              scene_.file("sft"), "--set", "model.path=" + bad}),
                 2, {"model.norm.weight"});
  EXPECT_FALSE(file_exists(scene_.file("sft")));
}

TEST_F(BadModel, InitRefusesABadConfig) {
  scene_.write("no_tokenizer.json", R"({"model_type": "qwen3"})");
  expect_refused(run_program({"init", "--config", scene_.file("no_tokenizer.json"), "--out",
                              scene_.file("new")}),
                 2, {"no_tokenizer.json"});
  json model = json::parse(read_file(scene_.file("model.json")));
  model["tokenizer"]["characters"] = "0123456789+-*=abcdef";
  scene_.write("large.json", model.dump());
  expect_refused(
      run_program({"init", "--config", scene_.file("large.json"), "--out", scene_.file("new")}), 2,
      {"large.json", "22", "vocab_size", "16"});
  EXPECT_FALSE(file_exists(scene_.file("new")));
}

}  // namespace
}  // namespace rlk
