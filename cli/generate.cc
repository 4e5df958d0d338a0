#include <memory>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "cli/engine.h"
#include "cli/verbs.h"
#include "rlk/core/error.h"
#include "rlk/io/files.h"
#include "rlk/model/hf_model.h"
#include "rlk/rollout/rollout_engine.h"

namespace rlk::cli {
namespace {

using nlohmann::json;

constexpr std::int64_t kOne = 1;
constexpr std::int64_t kMost = 1'000'000'000;

struct Arguments {
  std::string model;
  std::vector<std::string> prompts;
  std::int64_t samples = 1;
  std::int64_t max_new_tokens = 64;
  std::int64_t max_model_len = 0;
  std::int64_t page_size = 16;
  bool no_graphs = false;
  std::string vendor_products;
  SamplingParams sampling;
  std::uint64_t seed = 1;
  EngineFlags engine;
  bool json = false;
};

json completion_json(const Completion& c, const std::string& prompt, const std::string& text) {
  json tokens = json::array();
  for (std::size_t i = 0; i < c.token_ids.size(); ++i) {
    tokens.push_back({{"token_id", c.token_ids[i]},
                      {"logprob", c.logprobs[i]},
                      {"logprob_bits",
                       fmt::format("{:08x}", __builtin_bit_cast(std::uint32_t, c.logprobs[i]))}});
  }
  return {{"prompt", prompt},
          {"text", text},
          {"finish_reason", to_string(c.finish_reason)},
          {"prompt_token_ids", c.prompt_token_ids},
          {"tokens", tokens}};
}

int run(const Arguments& a) {
  const Contract contract = a.engine.contract();
  HfModel model = load_hf_model(a.model, contract);
  std::vector<Request> requests;
  std::int64_t longest = 0;
  for (const std::string& prompt : a.prompts) {
    for (std::int64_t k = 0; k < a.samples; ++k) {
      Request r;
      r.id = requests.size();
      r.seed = a.seed;
      r.prompt_token_ids = model.tokenizer.encode(prompt, true);
      r.sampling = a.sampling;
      r.max_new_tokens = a.max_new_tokens;
      r.stop_token_ids = model.stop_token_ids();
      longest = std::max(longest, static_cast<std::int64_t>(r.prompt_token_ids.size()));
      requests.push_back(std::move(r));
    }
  }
  RolloutOptions options;
  options.page_size = a.page_size;
  options.graphs = !a.no_graphs;
  options.vendor_products = a.vendor_products;
  options.max_model_len = a.max_model_len > 0 ? a.max_model_len
                                              : std::min(model.config.max_position_embeddings,
                                                         longest + a.max_new_tokens);
  const std::unique_ptr<Context> ctx = make_context(a.engine);
  RolloutEngine engine(*ctx, model.config, options);
  for (const VendorPlan& plan : engine.vendor_plans()) {
    for (const std::string& line : to_lines(plan)) fmt::print(stderr, "rlk: {}\n", line);
  }
  engine.load_weights(model.parameters, 0);
  const std::vector<Completion> completions = engine.generate(requests);
  for (std::size_t i = 0; i < completions.size(); ++i) {
    const Completion& c = completions[i];
    const std::string& prompt = a.prompts[i / static_cast<std::size_t>(a.samples)];
    const std::string text = model.tokenizer.decode(c.token_ids, true);
    if (a.json) {
      fmt::print(
          "{}\n",
          completion_json(c, prompt, text).dump(-1, ' ', false, json::error_handler_t::replace));
      continue;
    }
    double sum = 0;
    for (float x : c.logprobs) sum += static_cast<double>(x);
    fmt::print("{}{}\n  [{} tokens, {}, sum of logprobs {:.6f}]\n", prompt, text,
               c.token_ids.size(), to_string(c.finish_reason), sum);
  }
  return kOk;
}

}  // namespace

void add_generate(CLI::App& app, int& exit_code) {
  auto a = std::make_shared<Arguments>();
  CLI::App* verb = app.add_subcommand("generate", "Prompt in, text and log-probabilities out");
  verb->add_option("--model", a->model, "Hugging Face folder")->required();
  verb->add_option("--prompt", a->prompts, "May be given several times")->required()->take_all();
  verb->add_option("--samples", a->samples, "Per prompt")
      ->capture_default_str()
      ->check(CLI::Range(kOne, kMost));
  verb->add_option("--max-new-tokens", a->max_new_tokens)
      ->capture_default_str()
      ->check(CLI::Range(kOne, kMost));
  verb->add_option("--max-model-len", a->max_model_len,
                   "Context; default: longest prompt + max-new-tokens");
  verb->add_option("--page-size", a->page_size, "KV page, a power of two")->capture_default_str();
  verb->add_flag("--no-graphs", a->no_graphs,
                 "On a GPU: launch decode steps call by call, as rollout.graphs=false does");
  verb->add_option("--vendor-products", a->vendor_products, "As rollout.vendor_products")
      ->type_name("FILE");
  verb->add_option("--temperature", a->sampling.temperature, "0: greedy")->capture_default_str();
  verb->add_option("--top-k", a->sampling.top_k, "0: all")->capture_default_str();
  verb->add_option("--top-p", a->sampling.top_p)->capture_default_str();
  verb->add_option("--min-p", a->sampling.min_p)->capture_default_str();
  verb->add_option("--seed", a->seed, "Keys the random numbers, with request and position")
      ->capture_default_str();
  add_engine_flags(*verb, a->engine);
  verb->add_flag("--json", a->json,
                 "One JSON object per completion, with the bits of each logprob");
  verb->callback([a, &exit_code] { exit_code = run(*a); });
}

}  // namespace rlk::cli
