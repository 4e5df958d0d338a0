// A Hugging Face folder as a whole: config.json, generation_config.json, tokenizer.json, weights.
#pragma once

#include <string>
#include <vector>

#include "rlk/contract/contract.h"
#include "rlk/model/config.h"
#include "rlk/model/parameters.h"
#include "rlk/model/tokenizer.h"

namespace rlk {

struct HfModel {
  std::string folder;
  ModelConfig config;
  GenerationConfig generation;
  Tokenizer tokenizer;
  Parameters parameters;  // BF16

  // Where generation stops: generation_config.json, else config.json.
  std::vector<std::int32_t> stop_token_ids() const;
};

// Errors  those of the parts; kFormat when the tokenizer has ids outside the model's vocabulary.
HfModel load_hf_model(const std::string& folder, const Contract& contract);

// Writes config and weights, and copies generation_config.json and tokenizer.json from
// `source_folder`. The weights come last, so a folder with weights is whole.
void save_hf_model(const std::string& folder, const ModelConfig& config, Parameters& parameters,
                   const std::string& source_folder);

}  // namespace rlk
