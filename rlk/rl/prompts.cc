#include "rlk/rl/prompts.h"

#include <algorithm>

#include "rlk/core/error.h"

namespace rlk {
namespace {

DatasetFields dataset_fields(const RlConfig::Data& d) {
  DatasetFields f;
  f.prompt = d.fields.prompt;
  f.answer = d.fields.answer;
  f.verifier = d.fields.verifier;
  f.answer_after = d.answer_after;
  f.default_verifier = d.verifier;
  f.message_template = d.message_template;
  f.prompt_template = d.prompt_template;
  f.limit = d.limit;
  return f;
}

}  // namespace

std::vector<std::int32_t> encode(const Example& example, const std::string& text, bool is_prompt,
                                 const HfModel& model) {
  try {
    return model.tokenizer.encode(text, is_prompt);
  } catch (const Error& e) {
    throw Error(e.code(), fmt::format("{}: {}", example.source, e.what()));
  }
}

Prompts load_prompts(const std::string& path, const RlConfig::Data& data, const HfModel& model) {
  Prompts out;
  if (path.empty()) return out;
  out.examples = load_dataset(path, dataset_fields(data));
  for (const Example& e : out.examples) {
    out.token_ids.push_back(encode(e, e.prompt, true, model));
    const auto n = static_cast<std::int64_t>(out.token_ids.back().size());
    if (n == 0) fail(ErrorCode::kFormat, "{}: the prompt has no tokens", e.source);
    if (n >= model.config.max_position_embeddings) {
      fail(ErrorCode::kInvalidArgument,
           "{}: the prompt has {} tokens, the model's max_position_embeddings is {}", e.source, n,
           model.config.max_position_embeddings);
    }
    out.longest = std::max(out.longest, n);
  }
  return out;
}

}  // namespace rlk
