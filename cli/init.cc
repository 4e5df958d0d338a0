#include <memory>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "cli/verbs.h"
#include "rlk/io/files.h"
#include "rlk/io/json.h"
#include "rlk/model/config.h"
#include "rlk/model/hf_model.h"

namespace rlk::cli {
namespace {

struct Arguments {
  std::string config;
  std::string out;
  std::string tokenizer;
  std::uint64_t seed = 1;
  bool json = false;
};

// The tokenizer of a toy model: {"characters": "0123456789", "special_tokens": ["<eos>"]}.
std::string tokenizer_json(const Arguments& a, FieldReader& root) {
  if (!a.tokenizer.empty()) return read_file(a.tokenizer);
  if (!root.has("tokenizer")) {
    root.refuse(ErrorCode::kInvalidArgument, "tokenizer",
                "absent; give it here or pass --tokenizer FILE");
  }
  FieldReader t = root.object("tokenizer");
  const auto characters = t.required<std::string>("characters");
  std::vector<std::string> special_tokens;
  t.optional("special_tokens", special_tokens);
  t.finish();
  return make_character_tokenizer_json(characters, special_tokens);
}

int run(const Arguments& a) {
  const JsonDocument document = JsonDocument::load(a.config);
  FieldReader root = document.object();
  const ModelConfig config = parse_model_config(read_file(a.config), a.config);
  double initializer_range = 0.02;
  root.optional("initializer_range", initializer_range, {.min = 0.0, .max = 10.0});
  const std::string tokenizer_text = tokenizer_json(a, root);
  const Tokenizer tokenizer = Tokenizer::parse(tokenizer_text, a.config);
  if (tokenizer.vocab_size() > config.vocab_size) {
    fail(ErrorCode::kInvalidArgument, "{}: the tokenizer has {} tokens, vocab_size is {}", a.config,
         tokenizer.vocab_size(), config.vocab_size);
  }
  GenerationConfig generation;
  generation.bos_token_id = config.bos_token_id;
  generation.eos_token_ids = config.eos_token_ids;

  Parameters parameters =
      init_parameters(config, config.vocab_size, initializer_range, a.seed);
  make_directories(a.out);
  write_file(join_path(a.out, "tokenizer.json"), tokenizer_text);
  write_file(join_path(a.out, "generation_config.json"), to_json(generation));
  save_hf_model(a.out, config, parameters, a.out);

  std::int64_t count = 0;
  for (const HfTensor& t : hf_tensors(config, parameters)) count += t.view.layout.size();
  const std::string digest = model_digest(config, parameters);
  if (a.json) {
    const nlohmann::json out = {
        {"folder", a.out}, {"parameters", count}, {"model_digest", digest}};
    fmt::print("{}\n", out.dump());
  } else {
    fmt::print("{}: {} with {} parameters, seed {}, model digest {}\n", a.out, config.model_type,
               with_commas(count), a.seed, digest.substr(0, 16));
  }
  return kOk;
}

}  // namespace

void add_init(CLI::App& app, int& exit_code) {
  auto a = std::make_shared<Arguments>();
  CLI::App* verb = app.add_subcommand(
      "init", "Write a Hugging Face folder with fresh weights from a config and a seed");
  verb->add_option("--config", a->config,
                   "config.json of the model; for a toy vocabulary also \"tokenizer\": "
                   "{\"characters\": ..., \"special_tokens\": [...]} and \"initializer_range\"")
      ->required();
  verb->add_option("--out", a->out, "The folder")->required();
  verb->add_option("--seed", a->seed, "Of the weights")->capture_default_str();
  verb->add_option("--tokenizer", a->tokenizer, "A tokenizer.json to use instead");
  verb->add_flag("--json", a->json, "Print folder, size and digest as JSON");
  verb->callback([a, &exit_code] { exit_code = run(*a); });
}

}  // namespace rlk::cli
