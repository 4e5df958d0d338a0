#include "rlk/model/hf_model.h"

#include <utility>

#include "rlk/io/files.h"

namespace rlk {

std::vector<std::int32_t> HfModel::stop_token_ids() const {
  const auto& ids = generation.eos_token_ids.empty() ? config.eos_token_ids
                                                     : generation.eos_token_ids;
  return {ids.begin(), ids.end()};
}

HfModel load_hf_model(const std::string& folder, const Contract& contract) {
  ModelConfig config = load_model_config(folder);
  GenerationConfig generation = load_generation_config(folder);
  Tokenizer tokenizer = Tokenizer::load(folder);
  if (tokenizer.vocab_size() > config.vocab_size) {
    fail(ErrorCode::kFormat, "{}: tokenizer.json has ids up to {}, config.json has vocab_size {}",
         folder, tokenizer.vocab_size() - 1, config.vocab_size);
  }
  Parameters parameters =
      load_parameters(folder, config, vocab_padded(contract, config.vocab_size));
  return {folder, std::move(config), std::move(generation), std::move(tokenizer),
          std::move(parameters)};
}

void save_hf_model(const std::string& folder, const ModelConfig& config, Parameters& parameters,
                   const std::string& source_folder) {
  make_directories(folder);
  write_file(join_path(folder, "config.json"), to_json(config));
  for (const char* name : {"generation_config.json", "tokenizer.json"}) {
    const std::string source = join_path(source_folder, name);
    if (file_exists(source)) write_file(join_path(folder, name), read_file(source));
  }
  save_parameters(join_path(folder, "model.safetensors"), config, parameters);
}

}  // namespace rlk
