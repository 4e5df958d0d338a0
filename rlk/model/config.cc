#include "rlk/model/config.h"

#include <array>

#include <nlohmann/json.hpp>

#include "rlk/io/files.h"
#include "rlk/io/json.h"

namespace rlk {
namespace {

constexpr std::int64_t kMaxSize = std::int64_t{1} << 31;
constexpr std::int64_t kMaxHeadDim = 256;  // ops/attention.h

// What differs between the families, with Hugging Face's defaults for absent keys.
struct Family {
  const char* model_type;
  const char* architecture;
  std::int64_t num_key_value_heads;  // 0: as many as num_attention_heads
  std::int64_t head_dim;             // 0: hidden_size / num_attention_heads
  std::int64_t max_position_embeddings;
  std::int64_t bos_token_id;  // -1: none
  std::int64_t eos_token_id;  // -1: none
};
constexpr std::array<Family, 3> kFamilies{{
    {"qwen3", "Qwen3ForCausalLM", 32, 128, 32768, -1, -1},
    {"qwen2", "Qwen2ForCausalLM", 32, 0, 32768, -1, -1},
    {"llama", "LlamaForCausalLM", 0, 0, 2048, 1, 2},
}};

[[noreturn]] void unsupported(const FieldReader& reader, std::string_view key,
                              std::string_view supported) {
  reader.refuse(ErrorCode::kUnsupported, key,
                fmt::format("{} is not supported; {}", reader.dump(key), supported));
}

const Family& read_family(FieldReader& root) {
  const auto model_type = root.required<std::string>("model_type");
  for (const Family& family : kFamilies) {
    if (model_type != family.model_type) continue;
    std::vector<std::string> architectures;
    root.optional("architectures", architectures);
    if (!architectures.empty() && architectures != std::vector<std::string>{family.architecture}) {
      unsupported(
          root, "architectures",
          fmt::format("[\"{}\"] is, for model_type \"{}\"", family.architecture, model_type));
    }
    return family;
  }
  unsupported(root, "model_type", "qwen3, qwen2 and llama are");
}

// Accepts an absent key, null and the value that changes nothing.
void demand_off(FieldReader& root, std::string_view key, std::string_view supported) {
  if (!root.has(key)) return;
  const std::string value = root.dump(key);
  if (value != "false" && value != "0" && value != "0.0") unsupported(root, key, supported);
}

void refuse_what_changes_results(FieldReader& root) {
  if (root.has("hidden_act") && root.required<std::string>("hidden_act") != "silu") {
    unsupported(root, "hidden_act", "\"silu\" is");
  }
  demand_off(root, "use_sliding_window", "full attention (false) is");
  demand_off(root, "use_mrope", "plain RoPE (false) is");
  demand_off(root, "attention_dropout", "no dropout (0) is");
  for (const char* key : {"num_experts", "num_local_experts", "n_routed_experts",
                          "moe_intermediate_size", "num_experts_per_tok"}) {
    demand_off(root, key, "dense models without experts are");
  }
  if (root.has("quantization_config")) {
    unsupported(root, "quantization_config", "weights in BF16, F16 and F32 are");
  }
  if (root.has("partial_rotary_factor") && root.required<double>("partial_rotary_factor") != 1.0) {
    unsupported(root, "partial_rotary_factor", "1 (all of head_dim rotates) is");
  }
  std::vector<std::string> layer_types;
  root.optional("layer_types", layer_types);
  for (const std::string& type : layer_types) {
    if (type != "full_attention") unsupported(root, "layer_types", "\"full_attention\" is");
  }
}

// The old key rope_scaling and the new rope_parameters may both describe plain RoPE only.
void check_rope_kind(FieldReader& root, const char* key) {
  FieldReader rope = root.object(key);
  for (const char* name : {"rope_type", "type"}) {  // first: the name of the kind says most
    if (rope.has(name) && rope.required<std::string>(name) != "default") {
      unsupported(rope, name, "\"default\" is");
    }
  }
  for (const std::string& name : rope.keys()) {
    if (!rope.has(name) || name == "rope_theta" || name == "rope_type" || name == "type") continue;
    if (name == "partial_rotary_factor") {
      if (rope.required<double>(name) != 1.0) unsupported(rope, name, "1 is");
    } else {
      unsupported(rope, name, "RoPE without scaling (rope_type \"default\") is");
    }
  }
}

double read_rope_theta(FieldReader& root) {
  check_rope_kind(root, "rope_scaling");
  check_rope_kind(root, "rope_parameters");
  const Range<double> range{.min = 2.0, .max = 0x1p40};  // numerics/rope_table.h
  double theta = 10000.0;
  const bool has_old = root.optional("rope_theta", theta, range);
  for (const char* key : {"rope_parameters", "rope_scaling"}) {
    FieldReader rope = root.object(key);
    double other = theta;
    if (!rope.optional("rope_theta", other, range)) continue;
    if (has_old && other != theta) {
      rope.refuse(ErrorCode::kFormat, "rope_theta",
                  fmt::format("{} contradicts rope_theta {}", rope.dump("rope_theta"),
                              root.dump("rope_theta")));
    }
    theta = other;
  }
  return theta;
}

std::string read_dtype(FieldReader& root) {
  std::string old_name;
  std::string dtype;
  const bool has_old = root.optional("torch_dtype", old_name);
  const bool has_new = root.optional("dtype", dtype);
  if (has_old && has_new && old_name != dtype) {
    root.refuse(ErrorCode::kFormat, "dtype",
                fmt::format("\"{}\" contradicts torch_dtype \"{}\"", dtype, old_name));
  }
  const char* key = has_new ? "dtype" : "torch_dtype";
  if (!has_new) dtype = old_name;
  if ((has_old || has_new) && dtype != "bfloat16" && dtype != "float16" && dtype != "float32") {
    unsupported(root, key, "\"bfloat16\", \"float16\" and \"float32\" are");
  }
  return dtype;
}

void read_biases(FieldReader& root, ModelConfig& config) {
  if (config.model_type == "qwen2") {
    config.attention_bias = true;
    bool written = true;
    if (root.optional("attention_bias", written) && !written) {
      unsupported(root, "attention_bias", "qwen2 always has biases in q, k and v");
    }
    demand_off(root, "mlp_bias", "qwen2 has no biases in the MLP");
    return;
  }
  root.optional("attention_bias", config.attention_bias);
  config.attention_output_bias = config.attention_bias;
  if (config.model_type == "llama") {
    root.optional("mlp_bias", config.mlp_bias);
  } else {
    demand_off(root, "mlp_bias", "qwen3 has no biases in the MLP");
  }
}

// eos_token_id is a number or a list of numbers.
std::vector<std::int64_t> read_token_ids(FieldReader& root, const char* key,
                                         Range<std::int64_t> range) {
  if (!root.has(key)) return {};
  if (root.is_array(key)) {
    return root.required<std::vector<std::int64_t>>(key, {{range.min, range.max}});
  }
  return {root.required<std::int64_t>(key, range)};
}

void read_special_ids(FieldReader& root, const Family& family, ModelConfig& config) {
  const Range<std::int64_t> ids{.min = 0, .max = config.vocab_size - 1};
  const auto absent = [&](const char* key) { return !root.has(key) && !root.is_null(key); };
  if (absent("bos_token_id") && family.bos_token_id >= 0) config.bos_token_id = family.bos_token_id;
  if (absent("eos_token_id") && family.eos_token_id >= 0) {
    config.eos_token_ids = {family.eos_token_id};
  }
  root.optional("bos_token_id", config.bos_token_id, ids);
  if (root.has("eos_token_id")) config.eos_token_ids = read_token_ids(root, "eos_token_id", ids);
}

void read_head_dim(FieldReader& root, const Family& family, ModelConfig& config) {
  const bool derived = root.is_null("head_dim") || family.head_dim == 0;
  config.head_dim = derived ? config.hidden_size / config.num_attention_heads : family.head_dim;
  const bool written = root.optional("head_dim", config.head_dim, {.min = 1, .max = kMaxSize});
  if (derived && !written && config.hidden_size % config.num_attention_heads != 0) {
    root.refuse(
        ErrorCode::kInvalidArgument, "hidden_size",
        fmt::format("{} is not divisible by num_attention_heads {}, and head_dim is not set",
                    config.hidden_size, config.num_attention_heads));
  }
  if (config.head_dim % 2 != 0) {
    root.refuse(ErrorCode::kInvalidArgument, "head_dim",
                fmt::format("{} is odd; RoPE rotates pairs", config.head_dim));
  }
  if (config.head_dim > kMaxHeadDim) {
    root.refuse(ErrorCode::kUnsupported, "head_dim",
                fmt::format("{} is not supported; up to {} is", config.head_dim, kMaxHeadDim));
  }
}

void read_sizes(FieldReader& root, const Family& family, ModelConfig& config) {
  const Range<std::int64_t> size{.min = 1, .max = kMaxSize};
  config.vocab_size = root.required<std::int64_t>("vocab_size", size);
  config.hidden_size = root.required<std::int64_t>("hidden_size", size);
  config.intermediate_size = root.required<std::int64_t>("intermediate_size", size);
  config.num_hidden_layers = root.required<std::int64_t>("num_hidden_layers", size);
  config.num_attention_heads = root.required<std::int64_t>("num_attention_heads", size);
  const bool kv_as_heads = root.is_null("num_key_value_heads") || family.num_key_value_heads == 0;
  config.num_key_value_heads =
      kv_as_heads ? config.num_attention_heads : family.num_key_value_heads;
  root.optional("num_key_value_heads", config.num_key_value_heads, size);
  if (config.num_attention_heads % config.num_key_value_heads != 0) {
    root.refuse(ErrorCode::kInvalidArgument, "num_attention_heads",
                fmt::format("{} is not divisible by num_key_value_heads {}{}",
                            config.num_attention_heads, config.num_key_value_heads,
                            root.has("num_key_value_heads") ? "" : " (the family's default)"));
  }
  read_head_dim(root, family, config);
  config.max_position_embeddings = family.max_position_embeddings;
  root.optional("max_position_embeddings", config.max_position_embeddings, size);
}

}  // namespace

ModelConfig parse_model_config(std::string_view json_text, const std::string& source) {
  const JsonDocument document = JsonDocument::parse(json_text, source);
  FieldReader root = document.object();
  const Family& family = read_family(root);
  refuse_what_changes_results(root);

  ModelConfig config;
  config.model_type = family.model_type;
  config.qk_norm = config.model_type == "qwen3";
  read_sizes(root, family, config);
  root.optional("rms_norm_eps", config.rms_norm_eps, {.min = 0.0, .max = 1.0});
  config.rope_theta = read_rope_theta(root);
  root.optional("tie_word_embeddings", config.tie_word_embeddings);
  read_biases(root, config);
  read_special_ids(root, family, config);
  config.dtype = read_dtype(root);
  return config;
}

ModelConfig load_model_config(const std::string& folder) {
  const std::string path = join_path(folder, "config.json");
  return parse_model_config(read_file(path), path);
}

std::string to_json(const ModelConfig& config) {
  nlohmann::ordered_json json;
  for (const Family& family : kFamilies) {
    if (config.model_type == family.model_type) json["architectures"] = {family.architecture};
  }
  json["model_type"] = config.model_type;
  json["vocab_size"] = config.vocab_size;
  json["hidden_size"] = config.hidden_size;
  json["intermediate_size"] = config.intermediate_size;
  json["num_hidden_layers"] = config.num_hidden_layers;
  json["num_attention_heads"] = config.num_attention_heads;
  json["num_key_value_heads"] = config.num_key_value_heads;
  json["head_dim"] = config.head_dim;
  json["hidden_act"] = "silu";
  json["max_position_embeddings"] = config.max_position_embeddings;
  json["rms_norm_eps"] = config.rms_norm_eps;
  json["rope_theta"] = config.rope_theta;
  json["rope_scaling"] = nullptr;
  json["tie_word_embeddings"] = config.tie_word_embeddings;
  json["attention_bias"] = config.attention_bias;
  json["attention_dropout"] = 0.0;
  if (config.model_type == "llama") json["mlp_bias"] = config.mlp_bias;
  if (config.model_type != "llama") json["use_sliding_window"] = false;
  json["bos_token_id"] = nullptr;
  if (config.bos_token_id) json["bos_token_id"] = *config.bos_token_id;
  json["eos_token_id"] = nullptr;
  if (config.eos_token_ids.size() == 1) json["eos_token_id"] = config.eos_token_ids[0];
  if (config.eos_token_ids.size() > 1) json["eos_token_id"] = config.eos_token_ids;
  if (!config.dtype.empty()) json["torch_dtype"] = config.dtype;
  return json.dump(2) + "\n";
}

GenerationConfig parse_generation_config(std::string_view json_text, const std::string& source) {
  const JsonDocument document = JsonDocument::parse(json_text, source);
  FieldReader root = document.object();
  const Range<std::int64_t> ids{.min = 0, .max = kMaxSize};
  const Range<std::int64_t> counts{.min = 0, .max = kMaxSize};
  GenerationConfig config;
  root.optional("bos_token_id", config.bos_token_id, ids);
  root.optional("pad_token_id", config.pad_token_id, {.min = -1, .max = kMaxSize});
  config.eos_token_ids = read_token_ids(root, "eos_token_id", ids);
  root.optional("do_sample", config.do_sample);
  root.optional("temperature", config.temperature, {.min = 0.0});
  root.optional("top_k", config.top_k, {.min = -1, .max = kMaxSize});
  root.optional("top_p", config.top_p, {.min = 0.0, .max = 1.0});
  root.optional("min_p", config.min_p, {.min = 0.0, .max = 1.0});
  root.optional("repetition_penalty", config.repetition_penalty, {.min = 0.0});
  root.optional("max_new_tokens", config.max_new_tokens, counts);
  root.optional("max_length", config.max_length, counts);
  // Some folders say -1 for "off" and for "no padding token".
  if (config.top_k && *config.top_k < 0) config.top_k = 0;
  if (config.pad_token_id && *config.pad_token_id < 0) config.pad_token_id.reset();
  return config;
}

GenerationConfig load_generation_config(const std::string& folder) {
  const std::string path = join_path(folder, "generation_config.json");
  return file_exists(path) ? parse_generation_config(read_file(path), path) : GenerationConfig{};
}

std::string to_json(const GenerationConfig& config) {
  nlohmann::ordered_json json = nlohmann::ordered_json::object();
  const auto put = [&](const char* key, const auto& value) {
    if (value) json[key] = *value;
  };
  put("bos_token_id", config.bos_token_id);
  put("pad_token_id", config.pad_token_id);
  if (config.eos_token_ids.size() == 1) json["eos_token_id"] = config.eos_token_ids[0];
  if (config.eos_token_ids.size() > 1) json["eos_token_id"] = config.eos_token_ids;
  put("do_sample", config.do_sample);
  put("temperature", config.temperature);
  put("top_k", config.top_k);
  put("top_p", config.top_p);
  put("min_p", config.min_p);
  put("repetition_penalty", config.repetition_penalty);
  put("max_new_tokens", config.max_new_tokens);
  put("max_length", config.max_length);
  return json.dump(2) + "\n";
}

}  // namespace rlk
