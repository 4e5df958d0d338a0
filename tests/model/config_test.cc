#include "rlk/model/config.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "rlk/io/files.h"
#include "tests/io/error_matchers.h"
#include "tests/io/temporary_folder.h"

namespace rlk {
namespace {

using nlohmann::json;

// As Qwen/Qwen3-0.6B has it.
json qwen3() {
  return json::parse(R"({"architectures": ["Qwen3ForCausalLM"], "attention_bias": false,
    "attention_dropout": 0.0, "bos_token_id": 151643, "eos_token_id": 151645, "head_dim": 128,
    "hidden_act": "silu", "hidden_size": 1024, "initializer_range": 0.02,
    "intermediate_size": 3072, "max_position_embeddings": 40960, "max_window_layers": 28,
    "model_type": "qwen3", "num_attention_heads": 16, "num_hidden_layers": 28,
    "num_key_value_heads": 8, "rms_norm_eps": 1e-06, "rope_scaling": null,
    "rope_theta": 1000000, "sliding_window": null, "tie_word_embeddings": true,
    "torch_dtype": "bfloat16", "transformers_version": "4.51.0", "use_cache": true,
    "use_sliding_window": false, "vocab_size": 151936})");
}

json minimal(const char* model_type) {
  return {{"model_type", model_type}, {"vocab_size", 100},      {"hidden_size", 64},
          {"intermediate_size", 128}, {"num_hidden_layers", 2}, {"num_attention_heads", 32}};
}

ModelConfig parse(const json& config) { return parse_model_config(config.dump(), "config.json"); }

void expect_refused(ErrorCode code, const json& config, std::vector<std::string> named) {
  named.push_back("config.json");
  expect_error(code, named, [&] { parse(config); });
}

void expect_refused_change(ErrorCode code, const char* key, const json& value,
                           const std::vector<std::string>& named) {
  json config = qwen3();
  config[key] = value;
  expect_refused(code, config, named);
}

TEST(ModelConfig, ReadsAPublishedQwen3) {
  const ModelConfig config = parse(qwen3());
  EXPECT_EQ(config.model_type, "qwen3");
  EXPECT_EQ(config.vocab_size, 151936);
  EXPECT_EQ(config.hidden_size, 1024);
  EXPECT_EQ(config.intermediate_size, 3072);
  EXPECT_EQ(config.num_hidden_layers, 28);
  EXPECT_EQ(config.num_attention_heads, 16);
  EXPECT_EQ(config.num_key_value_heads, 8);
  EXPECT_EQ(config.head_dim, 128);
  EXPECT_EQ(config.max_position_embeddings, 40960);
  EXPECT_EQ(config.rms_norm_eps, 1e-6);
  EXPECT_EQ(config.rope_theta, 1e6);
  EXPECT_TRUE(config.tie_word_embeddings);
  EXPECT_TRUE(config.qk_norm);
  EXPECT_FALSE(config.attention_bias);
  EXPECT_FALSE(config.attention_output_bias);
  EXPECT_FALSE(config.mlp_bias);
  EXPECT_EQ(config.bos_token_id, 151643);
  EXPECT_EQ(config.eos_token_ids, std::vector<std::int64_t>{151645});
  EXPECT_EQ(config.dtype, "bfloat16");
}

TEST(ModelConfig, NewSpellingsReadAsTheOldOnes) {
  json config = qwen3();
  config.erase("rope_theta");
  config.erase("rope_scaling");
  config.erase("torch_dtype");
  config["rope_parameters"] = {{"rope_theta", 1000000.0}, {"rope_type", "default"}};
  config["dtype"] = "bfloat16";
  config["layer_types"] = json::array({"full_attention", "full_attention"});
  EXPECT_EQ(to_json(parse(config)), to_json(parse(qwen3())));
  config["rope_theta"] = 1000000;
  config["torch_dtype"] = "bfloat16";
  EXPECT_EQ(to_json(parse(config)), to_json(parse(qwen3())));
}

TEST(ModelConfig, RefusesContradictingSpellings) {
  expect_refused_change(ErrorCode::kFormat, "rope_parameters", {{"rope_theta", 10000.0}},
                        {"rope_parameters.rope_theta", "10000.0", "1000000"});
  expect_refused_change(ErrorCode::kFormat, "dtype", "float32", {"dtype", "float32", "bfloat16"});
}

TEST(ModelConfig, AbsentKeysHaveTheDefaultsOfTheirFamily) {
  const ModelConfig qwen3 = parse(minimal("qwen3"));
  EXPECT_EQ(qwen3.head_dim, 128);
  EXPECT_EQ(qwen3.num_key_value_heads, 32);
  EXPECT_EQ(qwen3.max_position_embeddings, 32768);
  EXPECT_EQ(qwen3.rope_theta, 10000.0);
  EXPECT_EQ(qwen3.rms_norm_eps, 1e-6);
  EXPECT_FALSE(qwen3.tie_word_embeddings);
  EXPECT_FALSE(qwen3.bos_token_id);
  EXPECT_TRUE(qwen3.eos_token_ids.empty());
  EXPECT_EQ(qwen3.dtype, "");

  const ModelConfig qwen2 = parse(minimal("qwen2"));
  EXPECT_EQ(qwen2.head_dim, 2);
  EXPECT_TRUE(qwen2.attention_bias);
  EXPECT_FALSE(qwen2.attention_output_bias);
  EXPECT_FALSE(qwen2.qk_norm);

  json config = minimal("llama");
  config["num_attention_heads"] = 4;
  const ModelConfig llama = parse(config);
  EXPECT_EQ(llama.head_dim, 16);
  EXPECT_EQ(llama.num_key_value_heads, 4);
  EXPECT_EQ(llama.max_position_embeddings, 2048);
  EXPECT_EQ(llama.bos_token_id, 1);
  EXPECT_EQ(llama.eos_token_ids, std::vector<std::int64_t>{2});
  EXPECT_FALSE(llama.attention_bias);
  EXPECT_FALSE(llama.qk_norm);
}

TEST(ModelConfig, NullMeansDerivedOrNone) {
  json config = minimal("qwen3");
  config["head_dim"] = nullptr;
  config["num_key_value_heads"] = nullptr;
  EXPECT_EQ(parse(config).head_dim, 2);
  EXPECT_EQ(parse(config).num_key_value_heads, 32);
  config = minimal("llama");
  config["bos_token_id"] = nullptr;
  config["eos_token_id"] = json::array({5, 6});
  EXPECT_FALSE(parse(config).bos_token_id);
  EXPECT_EQ(parse(config).eos_token_ids, (std::vector<std::int64_t>{5, 6}));
}

TEST(ModelConfig, BiasesFollowTheFamily) {
  json config = minimal("llama");
  config["attention_bias"] = true;
  config["mlp_bias"] = true;
  EXPECT_TRUE(parse(config).attention_bias);
  EXPECT_TRUE(parse(config).attention_output_bias);
  EXPECT_TRUE(parse(config).mlp_bias);
  config = minimal("qwen3");
  config["attention_bias"] = true;
  EXPECT_TRUE(parse(config).attention_output_bias);
  config["mlp_bias"] = true;
  expect_refused(ErrorCode::kUnsupported, config, {"mlp_bias", "true"});
  config = minimal("qwen2");
  config["attention_bias"] = false;
  expect_refused(ErrorCode::kUnsupported, config, {"attention_bias", "false"});
}

TEST(ModelConfig, RefusesWhatIsNotBuiltWithFieldAndValue) {
  const ErrorCode code = ErrorCode::kUnsupported;
  expect_refused_change(code, "model_type", "mixtral", {"model_type", "\"mixtral\"", "qwen2"});
  expect_refused_change(code, "architectures", json::array({"Qwen3ForSequenceClassification"}),
                        {"architectures", "Qwen3ForSequenceClassification", "Qwen3ForCausalLM"});
  expect_refused_change(code, "rope_scaling", {{"rope_type", "yarn"}, {"factor", 4.0}},
                        {"rope_scaling.rope_type", "\"yarn\""});
  expect_refused_change(code, "rope_scaling", {{"type", "linear"}},
                        {"rope_scaling.type", "\"linear\"", "default"});
  expect_refused_change(code, "rope_parameters", {{"rope_type", "llama3"}, {"rope_theta", 1e6}},
                        {"rope_parameters.rope_type", "\"llama3\""});
  expect_refused_change(code, "rope_parameters", {{"full_attention", {{"rope_theta", 1e6}}}},
                        {"rope_parameters.full_attention"});
  expect_refused_change(code, "use_sliding_window", true, {"use_sliding_window", "true"});
  expect_refused_change(code, "layer_types", json::array({"sliding_attention"}),
                        {"layer_types", "sliding_attention"});
  expect_refused_change(code, "num_experts", 128, {"num_experts", "128", "dense"});
  expect_refused_change(code, "quantization_config", {{"quant_method", "fp8"}},
                        {"quantization_config", "fp8"});
  expect_refused_change(code, "hidden_act", "gelu", {"hidden_act", "\"gelu\"", "\"silu\""});
  expect_refused_change(code, "attention_dropout", 0.1, {"attention_dropout", "0.1"});
  expect_refused_change(code, "partial_rotary_factor", 0.5, {"partial_rotary_factor", "0.5"});
  expect_refused_change(code, "torch_dtype", "float8_e4m3fn", {"torch_dtype", "float8_e4m3fn"});
}

TEST(ModelConfig, RefusesSizesThatDoNotFitTogether) {
  const ErrorCode code = ErrorCode::kInvalidArgument;
  expect_refused_change(code, "num_key_value_heads", 3, {"num_attention_heads", "16", "3"});
  expect_refused_change(code, "head_dim", 63, {"head_dim", "63", "odd"});
  expect_refused_change(code, "hidden_size", 0, {"hidden_size", "between 1 and", "0"});
  expect_refused_change(code, "eos_token_id", 151936, {"eos_token_id", "151936"});
  expect_refused_change(code, "rms_norm_eps", -1e-6, {"rms_norm_eps"});
  json config = minimal("qwen3");
  config["num_attention_heads"] = 48;
  expect_refused(code, config, {"num_attention_heads", "48", "32 (the family's default)"});
  config = minimal("llama");
  config["num_attention_heads"] = 6;
  expect_refused(code, config, {"hidden_size", "64", "6"});
}

TEST(ModelConfig, RefusesMissingAndWronglyTypedFields) {
  json config = minimal("qwen3");
  config.erase("hidden_size");
  expect_refused(ErrorCode::kFormat, config, {"hidden_size", "missing"});
  expect_refused_change(ErrorCode::kFormat, "num_hidden_layers", "28", {"num_hidden_layers"});
  expect_refused_change(ErrorCode::kFormat, "tie_word_embeddings", 1, {"tie_word_embeddings", "1"});
}

TEST(ModelConfig, ReadsBackWhatItWrites) {
  for (const char* model_type : {"qwen3", "qwen2", "llama"}) {
    json changed = minimal(model_type);
    changed["head_dim"] = 32;
    changed["attention_bias"] = true;
    changed["eos_token_id"] = json::array({3, 4});
    changed["dtype"] = "bfloat16";
    changed["rms_norm_eps"] = 1.0000000000000002e-5;
    const std::string text = to_json(parse(changed));
    const ModelConfig again = parse_model_config(text, "again");
    EXPECT_EQ(to_json(again), text);
    EXPECT_EQ(again.rms_norm_eps, 1.0000000000000002e-5);
    EXPECT_EQ(again.eos_token_ids, (std::vector<std::int64_t>{3, 4}));
  }
}

TEST(ModelConfig, LoadsFromAFolderAndNamesTheFile) {
  const TemporaryFolder folder;
  expect_error(ErrorCode::kIo, {folder.file("config.json")},
               [&] { load_model_config(folder.path()); });
  write_file(folder.file("config.json"), qwen3().dump());
  EXPECT_EQ(load_model_config(folder.path()).hidden_size, 1024);
}

TEST(GenerationConfig, ReadsFieldsThatAreThere) {
  const GenerationConfig config = parse_generation_config(
      R"({"bos_token_id": 1, "do_sample": true, "eos_token_id": [2, 3], "pad_token_id": -1,
          "temperature": 0.6, "top_k": 20, "top_p": 0.95, "transformers_version": "4.51.0"})",
      "g");
  EXPECT_EQ(config.bos_token_id, 1);
  EXPECT_EQ(config.eos_token_ids, (std::vector<std::int64_t>{2, 3}));
  EXPECT_FALSE(config.pad_token_id);
  EXPECT_EQ(config.do_sample, true);
  EXPECT_EQ(config.temperature, 0.6);
  EXPECT_EQ(config.top_k, 20);
  EXPECT_EQ(config.top_p, 0.95);
  EXPECT_FALSE(config.max_new_tokens);
  EXPECT_EQ(to_json(parse_generation_config(to_json(config), "again")), to_json(config));
}

TEST(GenerationConfig, MayBeAbsentButNotWrong) {
  const TemporaryFolder folder;
  EXPECT_EQ(to_json(load_generation_config(folder.path())), "{}\n");
  write_file(folder.file("generation_config.json"), R"({"top_p": 1.5})");
  expect_error(ErrorCode::kInvalidArgument, {folder.file("generation_config.json"), "top_p", "1.5"},
               [&] { load_generation_config(folder.path()); });
}

}  // namespace
}  // namespace rlk
