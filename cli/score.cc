#include <iostream>
#include <memory>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "cli/engine.h"
#include "cli/verbs.h"
#include "rlk/compare/record_file.h"
#include "rlk/core/error.h"
#include "rlk/model/hf_model.h"
#include "rlk/trainer/trainer.h"

namespace rlk::cli {
namespace {

struct Arguments {
  std::string model;
  std::string record;
  std::string out;
  EngineFlags engine;
  bool json = false;
};

TrainSample to_sample(const RecordSample& s) {
  TrainSample t;
  t.token_ids = s.prefix;
  t.token_ids.insert(t.token_ids.end(), s.targets.begin(), s.targets.end());
  t.prompt_len = static_cast<std::int64_t>(s.prefix.size());
  t.sampling.temperature = static_cast<float>(s.sampling.temperature);
  t.sampling.top_k = static_cast<std::int32_t>(s.sampling.top_k);
  t.sampling.top_p = static_cast<float>(s.sampling.top_p);
  t.sampling.min_p = static_cast<float>(s.sampling.min_p);
  t.old_logprobs.assign(s.targets.size(), 0.0f);
  t.active.assign(s.targets.size(), 1);
  return t;
}

int run(const Arguments& a) {
  const Contract contract = a.engine.contract();
  HfModel model = load_hf_model(a.model, contract);
  Record record = read_record(a.record);
  if (record.vocab_size != model.config.vocab_size) {
    fail(ErrorCode::kContract, "{}: vocab_size is {}, the model has {}", a.record,
         record.vocab_size, model.config.vocab_size);
  }
  std::vector<TrainSample> samples;
  TrainerOptions options;
  for (const RecordSample& s : record.samples) {
    samples.push_back(to_sample(s));
    const auto length = static_cast<std::int64_t>(samples.back().token_ids.size());
    if (length > model.config.max_position_embeddings) {
      fail(ErrorCode::kInvalidArgument,
           "{}: step {}, sample {} has {} tokens, the model's max_position_embeddings is {}",
           a.record, s.step, s.sample, length, model.config.max_position_embeddings);
    }
    options.max_model_len = std::max(options.max_model_len, length);
  }
  if (samples.empty()) fail(ErrorCode::kFormat, "{}: no sample to score", a.record);
  const std::unique_ptr<Context> ctx = make_context(a.engine);
  Trainer trainer(*ctx, model.config, options, model.parameters, 0);
  const std::vector<std::vector<float>> logprobs = trainer.score(samples);

  record.name = "score";
  record.provenance = record.provenance + "/score";
  record.model_digest = model_digest(model.config, model.parameters);
  record.forward_digest = forward_digest(contract);
  double sum = 0;
  std::int64_t count = 0;
  for (std::size_t i = 0; i < logprobs.size(); ++i) {
    record.samples[i].logprobs = logprobs[i];
    for (float x : logprobs[i]) {
      sum += static_cast<double>(x);
      ++count;
    }
  }
  if (a.out.empty() || a.out == "-") {
    write_record(std::cout, record);
    return kOk;
  }
  write_record(a.out, record);
  if (a.json) {
    const nlohmann::json out = {
        {"record", a.out}, {"samples", logprobs.size()}, {"tokens", count}, {"sum_logprob", sum}};
    fmt::print("{}\n", out.dump());
  } else {
    fmt::print("{}: {} samples, {} log-probabilities, sum {}\n", a.out, logprobs.size(), count,
               sum);
  }
  return kOk;
}

}  // namespace

void add_score(CLI::App& app, int& exit_code) {
  auto a = std::make_shared<Arguments>();
  CLI::App* verb = app.add_subcommand(
      "score",
      "Tokens in, log-probabilities out: recompute a record file with the trainer's forward");
  verb->add_option("--model", a->model, "Hugging Face folder")->required();
  verb->add_option("record", a->record,
                   "Record file (JSON lines; docs/records.md); its log-probabilities are not used")
      ->required();
  verb->add_option("--out", a->out, "Where the scored record goes; default: standard output");
  add_engine_flags(*verb, a->engine);
  verb->add_flag("--json", a->json, "With --out: print what was scored as JSON");
  verb->callback([a, &exit_code] { exit_code = run(*a); });
}

}  // namespace rlk::cli
