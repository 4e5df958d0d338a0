// What a Hugging Face folder says about a model: config.json and generation_config.json.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace rlk {

// A dense decoder. Field names are those of Hugging Face, except where noted.
struct ModelConfig {
  std::string model_type = "qwen3";  // qwen3, qwen2 or llama
  std::int64_t vocab_size = 0;
  std::int64_t hidden_size = 0;
  std::int64_t intermediate_size = 0;
  std::int64_t num_hidden_layers = 0;
  std::int64_t num_attention_heads = 0;
  std::int64_t num_key_value_heads = 0;
  std::int64_t head_dim = 0;
  std::int64_t max_position_embeddings = 0;
  double rms_norm_eps = 1e-6;
  double rope_theta = 10000.0;
  bool tie_word_embeddings = false;

  // Where the projections have biases. attention_bias: q, k, v; attention_output_bias: o. qwen2 has
  // the first and never the second; in qwen3 and llama the key attention_bias decides both.
  bool attention_bias = false;
  bool attention_output_bias = false;
  bool mlp_bias = false;  // llama only
  bool qk_norm = false;   // qwen3 only: RMSNorm of each head of q and k before RoPE

  std::optional<std::int64_t> bos_token_id;
  std::vector<std::int64_t> eos_token_ids;  // HF: eos_token_id, a number or a list
  std::string dtype;                        // "bfloat16", "float16", "float32"; empty when absent
};

// Reads config.json. Keys that the three families do not have are ignored, as Hugging Face does;
// those that would change the result are refused. Absent keys have the family's HF defaults, but
// the five sizes from vocab_size to num_attention_heads must be there. `rope_theta` and
// `rope_parameters.rope_theta`, `torch_dtype` and `dtype` are two spellings: both may be there if
// they agree. A head_dim of null is hidden_size / num_attention_heads.
// Errors: kIo; kFormat (missing, wrong type, contradiction); kInvalidArgument (range, sizes that do
// not divide); kUnsupported (other architecture or activation, rope scaling, sliding windows,
// mixture of experts, quantisation, dropout), each with file, field, value and what is supported.
ModelConfig load_model_config(const std::string& folder);
ModelConfig parse_model_config(std::string_view json_text, const std::string& source);

// A config.json that this loader and transformers, old and new, read as the same model. It keeps
// the old spellings rope_theta and torch_dtype, which both understand.
std::string to_json(const ModelConfig& config);

// generation_config.json; fields that are absent stay empty. Keys beyond these are ignored.
struct GenerationConfig {
  std::optional<std::int64_t> bos_token_id;
  std::optional<std::int64_t> pad_token_id;
  std::vector<std::int64_t> eos_token_ids;
  std::optional<bool> do_sample;
  std::optional<double> temperature;
  std::optional<std::int64_t> top_k;  // 0: off
  std::optional<double> top_p;
  std::optional<double> min_p;
  std::optional<double> repetition_penalty;
  std::optional<std::int64_t> max_new_tokens;
  std::optional<std::int64_t> max_length;
};

// All fields empty when the folder has no generation_config.json. Errors: kIo, kFormat,
// kInvalidArgument.
GenerationConfig load_generation_config(const std::string& folder);
GenerationConfig parse_generation_config(std::string_view json_text, const std::string& source);
std::string to_json(const GenerationConfig& config);

}  // namespace rlk
