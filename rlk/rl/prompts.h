// A dataset together with its prompts as token ids.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "rlk/model/hf_model.h"
#include "rlk/rl/dataset.h"
#include "rlk/rl/rl_config.h"

namespace rlk {

struct Prompts {
  std::vector<Example> examples;
  std::vector<std::vector<std::int32_t>> token_ids;
  std::int64_t longest = 0;

  std::int64_t size() const { return static_cast<std::int64_t>(examples.size()); }
};

// The tokens of a text of `example`, special tokens added where it is the prompt.
// Errors  those of Tokenizer::encode, naming the example's file and line.
std::vector<std::int32_t> encode(const Example& example, const std::string& text, bool is_prompt,
                                 const HfModel& model);

// Empty for an empty path.
// Errors  those of load_dataset; kFormat for a prompt without tokens, kInvalidArgument for one that
//         leaves no room in the model's context; each names file and line.
Prompts load_prompts(const std::string& path, const RlConfig::Data& data, const HfModel& model);

}  // namespace rlk
