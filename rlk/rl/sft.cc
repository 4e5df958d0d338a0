#include "rlk/rl/sft.h"

#include <algorithm>
#include <vector>

#include <nlohmann/json.hpp>

#include "rlk/core/error.h"
#include "rlk/io/files.h"
#include "rlk/rl/engines.h"
#include "rlk/rl/prompts.h"

namespace rlk {
namespace {

std::vector<TrainSample> answers_as_samples(const Prompts& prompts, const HfModel& model,
                                            std::int64_t& longest) {
  const std::vector<std::int32_t> stop = model.stop_token_ids();
  if (stop.empty()) {
    fail(ErrorCode::kInvalidArgument, "{}: the model has no eos_token_id to end answers with",
         model.folder);
  }
  std::vector<TrainSample> out;
  for (std::int64_t i = 0; i < prompts.size(); ++i) {
    TrainSample s;
    s.token_ids = prompts.token_ids[i];
    s.prompt_len = static_cast<std::int64_t>(s.token_ids.size());
    const auto answer = encode(prompts.examples[i], prompts.examples[i].answer, false, model);
    s.token_ids.insert(s.token_ids.end(), answer.begin(), answer.end());
    s.token_ids.push_back(stop.front());
    const auto n = static_cast<std::size_t>(s.response_len());
    s.old_logprobs.assign(n, 0.0f);
    s.active.assign(n, 1);
    const auto length = static_cast<std::int64_t>(s.token_ids.size());
    if (length > model.config.max_position_embeddings) {
      fail(ErrorCode::kInvalidArgument,
           "{}: prompt and answer have {} tokens, the model's max_position_embeddings is {}",
           prompts.examples[i].source, length, model.config.max_position_embeddings);
    }
    longest = std::max(longest, length);
    out.push_back(std::move(s));
  }
  return out;
}

}  // namespace

SftResult run_sft(const RlConfig& config, const std::string& out,
                  const std::function<bool(const SftProgress&)>& progress,
                  const Admission& admission) {
  HfModel model = load_hf_model(config.model.path, config.contract);
  const std::string& data = config.sft.data.empty() ? config.data.train : config.sft.data;
  const Prompts prompts = load_prompts(data, config.data, model);
  std::int64_t longest = 0;
  const std::vector<TrainSample> samples = answers_as_samples(prompts, model, longest);

  RlConfig sft = config;
  sft.steps = config.sft.steps;
  sft.trainer.minibatches = 1;
  sft.trainer.learning_rate = config.sft.learning_rate;
  sft.trainer.lr_schedule = config.sft.lr_schedule;
  sft.trainer.warmup_steps = config.sft.warmup_steps;
  TrainerOptions options = trainer_options(sft, longest);
  options.loss = LossOptions();
  options.loss.type = LossType::kSft;
  Context ctx(config.contract, engine_modes(config, Engine::kTrainer), config.trainer.threads,
              &engine_kernels(config, Engine::kTrainer), admission);
  Trainer trainer(ctx, model.config, options, model.parameters, 0);

  make_directories(out);  // refused now, not after the training

  PromptOrder order(prompts.size(), config.seed);
  SftResult result;
  nlohmann::json losses = nlohmann::json::array();
  for (std::int64_t step = 1; step <= config.sft.steps; ++step) {
    std::vector<TrainSample> batch;
    for (std::int64_t i : order.step_indices(step - 1, config.sft.batch_samples)) {
      batch.push_back(samples[i]);
    }
    const TrainPass pass = trainer.accumulate(batch);
    trainer.apply();
    if (step == 1) result.loss_first = pass.sums.loss;
    result.loss_last = pass.sums.loss;
    result.steps = step;
    losses.push_back(pass.sums.loss);
    if (!progress({step, config.sft.steps, pass.sums.loss})) {
      result.interrupted = step < config.sft.steps;
      break;
    }
  }
  save_hf_model(out, model.config, trainer.weights(), model.folder);
  write_file(join_path(out, kSftLossFile), nlohmann::json{{"loss", losses}}.dump());
  return result;
}

}  // namespace rlk
