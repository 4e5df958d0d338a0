// A step of the demo by route strict against one by route production: sampling, and training.
#include <algorithm>

#include <fmt/format.h>

#include "rlk/bench/data.h"
#include "rlk/io/files.h"
#include "rlk/io/json.h"
#include "rlk/rl/engines.h"
#include "rlk/rl/prompts.h"

namespace rlk::bench {
namespace {

struct Demo {
  RlConfig config;
  HfModel model;
  Prompts prompts;
  std::int64_t max_model_len;
};

std::shared_ptr<Demo> load_demo(const std::string& folder, int threads) {
  const std::string config_path = join_path(folder, "rl.json");
  const std::string model_path = join_path(folder, "model.json");
  if (!file_exists(config_path) || !file_exists(model_path)) {
    fail(ErrorCode::kNotAvailable, "{}: no rl.json and model.json there; say --demo FOLDER",
         folder);
  }
  RlConfig config = load_rl_config(config_path);
  config.rollout.threads = config.trainer.threads = threads;
  const JsonDocument document = JsonDocument::load(model_path);
  FieldReader root = document.object();
  FieldReader tokenizer = root.object("tokenizer");
  std::vector<std::string> special_tokens;
  tokenizer.optional("special_tokens", special_tokens);
  double initializer_range = 0.02;
  root.optional("initializer_range", initializer_range);
  const std::string tokenizer_text =
      make_character_tokenizer_json(tokenizer.required<std::string>("characters"), special_tokens);
  const ModelConfig shape = parse_model_config(read_file(model_path), model_path);
  auto demo = std::make_shared<Demo>(
      Demo{config,
           {folder,
            shape,
            {},
            Tokenizer::parse(tokenizer_text, model_path),
            init_parameters(shape, vocab_padded(config.contract, shape.vocab_size),
                            initializer_range, config.seed)},
           {},
           0});
  demo->prompts = load_prompts(config.data.train, config.data, demo->model);
  demo->max_model_len = std::min(shape.max_position_embeddings,
                                 demo->prompts.longest + config.rollout.max_new_tokens);
  return demo;
}

// Both engines of a run by one route.
struct Side {
  Side(Demo& d, Mode mode, const KernelTable* kernels)
      : demo(d),
        rollout_ctx(d.config.contract, all_ops(mode), d.config.rollout.threads, kernels),
        trainer_ctx(d.config.contract, all_ops(mode), d.config.trainer.threads, kernels),
        rollout(rollout_ctx, d.model.config, rollout_options(d.config, d.max_model_len)),
        trainer(trainer_ctx, d.model.config, trainer_options(d.config, d.max_model_len),
                d.model.parameters, 0) {}

  // The weights come first, as in every step, so that no page of an earlier call is found.
  std::vector<Completion> sample(std::int64_t num_prompts) {
    rollout.load_weights(demo.model.parameters, version++);
    std::vector<Request> requests;
    const RlConfig::Rollout& r = demo.config.rollout;
    for (std::int64_t i = 0; i < num_prompts * r.samples_per_prompt; ++i) {
      Request request;
      request.id = static_cast<std::uint64_t>(i);
      request.seed = demo.config.seed;
      request.prompt_token_ids =
          demo.prompts.token_ids[static_cast<std::size_t>(i / r.samples_per_prompt)];
      request.sampling = sampling_params(demo.config);
      request.max_new_tokens = r.max_new_tokens;
      request.stop_token_ids = demo.model.stop_token_ids();
      requests.push_back(std::move(request));
    }
    return rollout.generate(requests);
  }

  Demo& demo;
  Context rollout_ctx, trainer_ctx;
  RolloutEngine rollout;
  Trainer trainer;
  std::int64_t version = 1;
};

std::vector<TrainSample> train_samples(const Demo& demo,
                                       const std::vector<Completion>& completions) {
  std::vector<TrainSample> samples;
  for (const Completion& c : completions) {
    TrainSample& t = samples.emplace_back();
    t.token_ids = c.prompt_token_ids;
    t.token_ids.insert(t.token_ids.end(), c.token_ids.begin(), c.token_ids.end());
    t.prompt_len = static_cast<std::int64_t>(c.prompt_token_ids.size());
    t.sampling = sampling_params(demo.config);
    t.old_logprobs = c.logprobs;
    t.active.assign(c.token_ids.size(), 1);
    t.advantage = samples.size() % 2 ? 1.0f : -1.0f;
  }
  return samples;
}

double sampled_tokens(const std::vector<Completion>& completions) {
  std::size_t n = 0;
  for (const Completion& c : completions) n += c.token_ids.size();
  return static_cast<double>(n);
}

double all_tokens(const std::vector<TrainSample>& samples) {
  std::size_t n = 0;
  for (const TrainSample& t : samples) n += t.token_ids.size();
  return static_cast<double>(n);
}

// One prompt's step by our kernels and by the reference: log-probabilities of both engines, and the
// weights after the update.
std::string check(Demo& demo, const KernelTable& kernels) {
  Side ours(demo, Mode::kStrict, &kernels);
  Side reference(demo, Mode::kStrict, &reference_kernels());
  const std::vector<Completion> completions = ours.sample(1);
  const std::vector<TrainSample> samples = train_samples(demo, completions);
  const TrainPass got = ours.trainer.accumulate(samples);
  const TrainPass want = reference.trainer.accumulate(samples);
  for (std::size_t i = 0; i < samples.size(); ++i) {
    const auto tokens = static_cast<std::int64_t>(want.logprobs[i].size());
    const ConstTensorView expected = view(want.logprobs[i].data(), {tokens});
    std::string text =
        difference("trainer logprob", view(got.logprobs[i].data(), {tokens}), expected);
    if (text.empty()) {
      text =
          difference("rollout logprob", view(completions[i].logprobs.data(), {tokens}), expected);
    }
    if (!text.empty()) return fmt::format("sample {}: {}", i, text);
  }
  ours.trainer.apply();
  reference.trainer.apply();
  const std::vector<ParameterRef> a = list(ours.trainer.weights());
  const std::vector<ParameterRef> b = list(reference.trainer.weights());
  for (std::size_t i = 0; i < a.size(); ++i) {
    const std::string text = difference(a[i].name, *a[i].tensor, *b[i].tensor);
    if (!text.empty()) return text;
  }
  return "";
}

// Both routes with their samples; the trainers take the same ones.
struct Routes {
  Demo& demo;
  Side strict, production;
  std::vector<TrainSample> samples;
  Routes(Engines& e, Demo& d)
      : demo(d),
        strict(d, Mode::kStrict, &e.ours.contract_table()),
        production(d, Mode::kOff, nullptr) {}
};

Prepared prepare(Engines& e, const std::string& folder, bool train) {
  const std::shared_ptr<Demo> demo = load_demo(folder, e.threads);
  auto routes = std::make_shared<Routes>(e, *demo);
  const std::int64_t prompts = demo->config.rollout.prompts_per_step;
  const std::vector<Completion> completions = routes->strict.sample(prompts);
  routes->samples = train_samples(*demo, completions);
  const auto contender = [&](const char* name, Side Routes::*side) {
    Contender c;
    c.name = name;
    if (train) {
      c.work = all_tokens(routes->samples);
      c.call = [demo, routes, side] {
        Trainer& trainer = ((*routes).*side).trainer;
        trainer.accumulate(routes->samples);
        trainer.apply();
      };
    } else {
      c.work = side == &Routes::strict ? sampled_tokens(completions)
                                       : sampled_tokens(((*routes).*side).sample(prompts));
      c.call = [demo, routes, side, prompts] { ((*routes).*side).sample(prompts); };
    }
    return c;
  };
  Prepared out;
  out.check = [&e, demo] { return check(*demo, e.ours.contract_table()); };
  out.ours = contender("", &Routes::strict);
  out.peers.push_back(contender(kProduction, &Routes::production));
  return out;
}

}  // namespace

void add_demo_cases(Cases& cases, const std::string& folder) {
  for (const bool train : {false, true}) {
    Case c;
    c.name = train ? "demo/train" : "demo/rollout";
    c.op = c.name;
    c.shape = "one step";
    c.unit = kTokens;
    c.target = 1.0;
    c.quick = true;
    c.prepare = [folder, train](Engines& e) { return prepare(e, folder, train); };
    cases.push_back(std::move(c));
  }
}

}  // namespace rlk::bench
