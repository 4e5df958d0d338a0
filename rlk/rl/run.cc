#include "rlk/rl/run.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <limits>
#include <memory>
#include <optional>

#include "rlk/compare/compare.h"
#include "rlk/core/environment.h"
#include "rlk/io/files.h"
#include "rlk/io/json.h"
#include "rlk/rl/advantage.h"
#include "rlk/rl/checkpoints.h"
#include "rlk/rl/engines.h"
#include "rlk/rl/prompts.h"
#include "rlk/rl/rl_config_keys.h"
#include "rlk/rl/run_records.h"
#include "rlk/rl/sft.h"
#include "rlk/rl/verifier.h"

namespace rlk {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

constexpr double kNotMeasured = std::numeric_limits<double>::quiet_NaN();

constexpr const char* kLockFile = "run.lock";

// A request id names its step and sample, so random numbers depend on nothing else. Evaluations
// have the top bit.
std::uint64_t request_id(std::int64_t step, std::int64_t sample) {
  return (static_cast<std::uint64_t>(step) << 24) + static_cast<std::uint64_t>(sample);
}
constexpr std::uint64_t kEvalRequest = std::uint64_t{1} << 63;

// Routes and digests need no escapes.
std::string json_text(const std::string& s) { return "\"" + s + "\""; }

class Run {
 public:
  Run(const RlConfig& config, const RunOptions& options);
  RunResult run();

 private:
  struct Step;  // what one step collects

  void check_pages() const;
  void start();
  void resume();
  void describe_or_check();
  void describe();
  void evaluate(std::int64_t step);
  void rollout(Step& s);
  void grade(Step& s);
  void train(Step& s);
  Comparison compare_step(const Step& s) const;
  void record(Step& s);
  void sync();
  void save_checkpoint(std::int64_t step);
  void report_progress(const Step& s, std::int64_t first_step, Clock::time_point run_start);
  std::vector<Request> requests(Step& s) const;
  std::string text(const std::vector<std::int32_t>& ids) const {
    return model_.tokenizer.decode(ids, true);
  }

  RlConfig config_;
  RunOptions options_;
  HfModel model_;
  std::string model_digest_;
  Prompts train_;
  Prompts heldout_;
  VerifierSet verifiers_;
  PromptOrder order_;
  std::int64_t max_model_len_;
  Context rollout_ctx_;
  Context trainer_ctx_;
  RolloutEngine rollout_;
  Trainer trainer_;
  std::optional<FileLock> lock_;  // one writer per run folder
  std::optional<RunDb> db_;
  std::string run_id_;
  std::int64_t first_step_ = 1;
  std::int64_t compared_ = 0;
  std::int64_t mismatch_count_ = 0;
};

struct Run::Step {
  StepRow row;
  std::vector<std::int64_t> prompt_indices;  // one per group
  std::vector<Completion> completions;
  std::vector<double> rewards;
  std::vector<float> advantages;
  std::vector<TrainSample> samples;
  std::vector<std::vector<float>> trainer_logprobs;
  Comparison comparison;
  RolloutStats stats_before;
  Clock::time_point start = Clock::now();
};

std::int64_t longest_sequence(const RlConfig& c, const HfModel& model, const Prompts& train,
                              const Prompts& heldout) {
  return std::min(model.config.max_position_embeddings,
                  std::max(train.longest, heldout.longest) + c.rollout.max_new_tokens);
}

Run::Run(const RlConfig& config, const RunOptions& options)
    : config_(config),
      options_(options),
      model_(load_hf_model(config.model.path, config.contract)),
      model_digest_(model_digest(model_.config, model_.parameters)),
      train_(load_prompts(config.data.train, config.data, model_)),
      heldout_(load_prompts(config.data.heldout, config.data, model_)),
      verifiers_({config.data.command, config.data.command_dir, config.data.command_timeout_s}),
      order_(train_.size(), config.seed),
      max_model_len_(longest_sequence(config, model_, train_, heldout_)),
      rollout_ctx_(config.contract, engine_modes(config, Engine::kRollout), config.rollout.threads,
                   &engine_kernels(config, Engine::kRollout), options.admission),
      trainer_ctx_(config.contract, engine_modes(config, Engine::kTrainer), config.trainer.threads,
                   &engine_kernels(config, Engine::kTrainer), options.admission),
      rollout_(rollout_ctx_, model_.config, rollout_options(config, max_model_len_)),
      trainer_(trainer_ctx_, model_.config, trainer_options(config, max_model_len_),
               model_.parameters, 0) {
  verifiers_.check(train_.examples);
  verifiers_.check(heldout_.examples);
  check_handshake(rollout_ctx_.contract(), trainer_ctx_.contract());
  if (config_.loss.kl != RlConfig::Kl::kNone) trainer_.set_reference(model_.parameters);
  if (config_.rollout.stop_token_ids.empty()) {
    for (std::int32_t id : model_.stop_token_ids()) config_.rollout.stop_token_ids.push_back(id);
  }
  check_pages();
  options_.resume ? resume() : start();
  run_id_ = db_->config_string(run_key::kRunId);
}

// One sequence alone must fit; what does not fit beside others waits. The last token is sampled but
// never stored.
void Run::check_pages() const {
  const RlConfig::Rollout& r = config_.rollout;
  if (r.num_pages == 0 || std::int64_t{r.num_pages} * r.page_size >= max_model_len_ - 1) return;
  fail(ErrorCode::kInvalidArgument,
       "rollout.num_pages is {}: with rollout.page_size {} that is {} positions, the longest "
       "prompt and response need {}",
       r.num_pages, r.page_size, std::int64_t{r.num_pages} * r.page_size, max_model_len_ - 1);
}

void Run::start() {
  make_directories(options_.out);
  const std::string path = join_path(options_.out, "run.db");
  if (file_exists(path)) {
    fail(ErrorCode::kIo,
         "{}: a run is there already; resume it (--resume) or choose another folder", path);
  }
  if (has_checkpoints(options_.out)) {
    fail(ErrorCode::kIo,
         "{}/checkpoints: checkpoints of another run are there; choose another folder",
         options_.out);
  }
  lock_.emplace(join_path(options_.out, kLockFile));
  db_ = RunDb::create(path);
  describe();
}

void Run::resume() {
  const std::string path = join_path(options_.out, "run.db");
  if (!file_exists(path)) {
    fail(ErrorCode::kIo, "{}: no run to resume; start it without --resume", path);
  }
  lock_.emplace(join_path(options_.out, kLockFile));
  db_ = RunDb::open(path);
  describe_or_check();
  const std::int64_t step =
      load_latest_checkpoint(options_.out, db_->last_complete_step(), trainer_);
  delete_checkpoints_after(options_.out, step);
  db_->truncate_after(step);
  first_step_ = step + 1;
  for (const StepRow& row : db_->steps()) {
    compared_ += row.compared;
    mismatch_count_ += row.mismatch_count;
  }
  db_->write_event(step, "resume", fmt::format("from step {}", step));
}

// "seed was 1, is now 2": the first key that differs.
std::string first_difference(RlConfig was, RlConfig now) {
  for (const ConfigKey& key : config_keys()) {
    const std::string a = config_value_json(key.slot(was)), b = config_value_json(key.slot(now));
    if (a != b) return fmt::format("{} was {}, is now {}", key.path, a, b);
  }
  return "";
}

// describe() stores the config last: without it the process was killed before the first step.
void Run::describe_or_check() {
  const std::string& path = db_->path();
  const auto config = db_->config_json(run_key::kConfig);
  if (!config) {
    describe();
    return;
  }
  if (*config != to_json(config_)) {
    fail(ErrorCode::kContract, "{}: the run was started with another config: {}", path,
         first_difference(parse_rl_config(*config, path, ""), config_));
  }
  if (db_->config_string(run_key::kModelDigest) != model_digest_) {
    fail(ErrorCode::kContract,
         "{}: the run was started from other weights: model digest {}, now {}", path,
         db_->config_string(run_key::kModelDigest), model_digest_);
  }
}

void Run::describe() {
  RunDb& db = *db_;
  db.set_config(run_key::kRoute, json_text(to_string(config_.route)));
  db.set_config(run_key::kModelConfig, to_json(model_.config));
  db.set_config(run_key::kContract, canonical_json(config_.contract));
  db.set_config(run_key::kEnvironment, environment_json(rollout_ctx_.pool().num_threads()));
  db.set_config(run_key::kModelDigest, json_text(model_digest_));
  db.set_config(run_key::kForwardDigest, json_text(forward_digest(config_.contract)));
  db.set_config(run_key::kBackwardDigest, json_text(backward_digest(config_.contract)));
  db.set_config(run_key::kDeploymentDigest,
                json_text(deployment_digest(config_, rollout_ctx_.contract_table().backend,
                                            trainer_ctx_.contract_table().backend)));
  db.set_config(run_key::kVocabSize, std::to_string(model_.config.vocab_size));
  db.write_event(0, "start", to_string(config_.route));
  for (const VendorPlan& plan : rollout_.vendor_plans()) {
    for (const std::string& line : to_lines(plan)) db.write_event(0, "vendor_products", line);
  }
  const std::string sft = join_path(model_.folder, kSftLossFile);
  if (file_exists(sft)) {
    const JsonDocument document = JsonDocument::load(sft);
    FieldReader root = document.object();
    const auto losses = root.required<std::vector<double>>("loss");
    for (std::size_t i = 0; i < losses.size(); ++i) {
      db.write_metric(static_cast<std::int64_t>(i) + 1, run_metric::kSftLoss, losses[i]);
    }
  }
  db.set_config(run_key::kConfig, to_json(config_));  // last: says that all of the above is there
}

// Mean reward on held-out prompts with the weights that rollout has now.
void Run::evaluate(std::int64_t step) {
  if (heldout_.size() == 0) return;
  const RlConfig::Eval& e = config_.eval;
  const std::int64_t prompts =
      e.prompts == 0 ? heldout_.size() : std::min<std::int64_t>(e.prompts, heldout_.size());
  std::vector<Request> requests;
  for (std::int64_t i = 0; i < prompts; ++i) {
    for (int k = 0; k < e.samples_per_prompt; ++k) {
      Request r;
      r.id = kEvalRequest + request_id(step, static_cast<std::int64_t>(requests.size()));
      r.seed = config_.seed;
      r.prompt_token_ids = heldout_.token_ids[i];
      r.sampling.temperature = static_cast<float>(e.temperature);
      r.max_new_tokens = config_.rollout.max_new_tokens;
      r.stop_token_ids.assign(config_.rollout.stop_token_ids.begin(),
                              config_.rollout.stop_token_ids.end());
      requests.push_back(std::move(r));
    }
  }
  const std::vector<Completion> completions = rollout_.generate(requests);
  double sum = 0;
  for (std::size_t i = 0; i < completions.size(); ++i) {
    const auto prompt = static_cast<std::int64_t>(i) / e.samples_per_prompt;
    sum += verifiers_.score(text(completions[i].token_ids), heldout_.examples[prompt]);
  }
  db_->write_metric(step, run_metric::kHeldoutReward,
                    sum / static_cast<double>(completions.size()));
}

std::vector<Request> Run::requests(Step& s) const {
  std::vector<Request> out;
  for (std::int64_t index : s.prompt_indices) {
    for (int k = 0; k < config_.rollout.samples_per_prompt; ++k) {
      Request r;
      r.id = request_id(s.row.step, static_cast<std::int64_t>(out.size()));
      r.seed = config_.seed;
      r.prompt_token_ids = train_.token_ids[index];
      r.sampling = sampling_params(config_);
      r.max_new_tokens = config_.rollout.max_new_tokens;
      r.stop_token_ids.assign(config_.rollout.stop_token_ids.begin(),
                              config_.rollout.stop_token_ids.end());
      out.push_back(std::move(r));
    }
  }
  return out;
}

void Run::rollout(Step& s) {
  const auto start = Clock::now();
  s.row.weight_version = rollout_.model().weight_version();
  s.prompt_indices = order_.step_indices(s.row.step - 1, config_.rollout.prompts_per_step);
  s.completions = rollout_.generate(requests(s));
  s.row.rollout_s = seconds_since(start);
}

// Rewards and advantages; then the samples as the trainer gets them: tokens and record, no state.
void Run::grade(Step& s) {
  const auto start = Clock::now();
  const int group_size = config_.rollout.samples_per_prompt;
  double sum = 0, squares = 0;
  for (std::size_t i = 0; i < s.completions.size(); ++i) {
    const std::int64_t prompt = s.prompt_indices[i / static_cast<std::size_t>(group_size)];
    const double reward =
        verifiers_.score(text(s.completions[i].token_ids), train_.examples[prompt]);
    s.rewards.push_back(reward);
    sum += reward;
    squares += reward * reward;
  }
  const auto n = static_cast<double>(s.rewards.size());
  s.row.reward_mean = sum / n;
  s.row.reward_std = std::sqrt(std::max(0.0, squares / n - s.row.reward_mean * s.row.reward_mean));
  s.advantages.resize(s.rewards.size());
  group_advantages(trainer_ctx_, s.advantages, s.rewards, group_size, config_.loss.advantage_eps,
                   config_.loss.advantage_ddof);
  for (std::size_t i = 0; i < s.completions.size(); ++i) {
    const Completion& c = s.completions[i];
    TrainSample t;
    t.token_ids = c.prompt_token_ids;
    t.token_ids.insert(t.token_ids.end(), c.token_ids.begin(), c.token_ids.end());
    t.prompt_len = static_cast<std::int64_t>(c.prompt_token_ids.size());
    t.sampling = sampling_params(config_);
    t.old_logprobs = c.logprobs;
    t.active.assign(c.token_ids.size(), 1);
    t.advantage = s.advantages[i];
    s.samples.push_back(std::move(t));
    s.row.prompt_tokens += s.samples.back().prompt_len;
    s.row.response_tokens += s.samples.back().response_len();
  }
  s.row.record_s = seconds_since(start);
}

// Recompute, compare, and, unless strict found a difference, update. With one minibatch the pass
// that makes the gradient is also the one whose log-probabilities are compared.
void Run::train(Step& s) {
  const int minibatches = config_.trainer.minibatches;
  const std::span<const TrainSample> samples(s.samples);
  const auto num_samples = static_cast<std::int64_t>(samples.size());
  const bool strict = config_.route == RlConfig::Route::kStrict;
  LossSums sums;
  const auto add = [&](const TrainPass& pass) {
    s.row.score_s += pass.forward_s;
    s.row.backward_s += pass.backward_s;
    sums.loss += pass.sums.loss;
    sums.kl += pass.sums.kl;
    sums.entropy += pass.sums.entropy;
    sums.clipped += pass.sums.clipped;
    sums.active += pass.sums.active;
  };
  std::optional<TrainPass> first_pass;
  if (minibatches == 1) {
    first_pass = trainer_.accumulate(samples);
    s.trainer_logprobs = first_pass->logprobs;
  } else {
    const auto start = Clock::now();
    s.trainer_logprobs = trainer_.score(samples);
    s.row.score_s = seconds_since(start);
  }
  const auto compare_start = Clock::now();
  s.comparison = compare_step(s);
  s.row.compared = s.comparison.compared;
  s.row.mismatch_count = s.comparison.mismatch_count;
  s.row.max_abs_diff = s.comparison.max_abs_diff;
  s.row.mean_abs_diff = s.comparison.mean_abs_diff;
  s.row.score_s += seconds_since(compare_start);
  if (strict && s.comparison.status != CompareStatus::kEqual) return;

  for (int b = 0; b < minibatches; ++b) {
    if (minibatches == 1) {
      add(*first_pass);
    } else {
      const SampleRange r = slot_samples(num_samples, b, minibatches);
      if (r.begin == r.end) continue;
      add(trainer_.accumulate(samples.subspan(r.begin, r.end - r.begin)));
    }
    const auto start = Clock::now();
    const OptimizerStepStats stats = trainer_.apply();
    s.row.optimizer_s += seconds_since(start);
    s.row.grad_norm = stats.grad_norm;
    s.row.learning_rate = stats.learning_rate;
  }
  s.row.loss = sums.loss / minibatches;
  s.row.kl = config_.loss.kl == RlConfig::Kl::kNone ? kNotMeasured : sums.kl / sums.active;
  s.row.entropy = sums.entropy / sums.active;
  s.row.clip_fraction = sums.clipped / sums.active;
}

Comparison Run::compare_step(const Step& s) const {
  const auto record = [&](const char* name, bool rollout_side) {
    Record r;
    r.name = name;
    r.provenance = run_id_ + "/" + name;
    r.model_digest = model_digest_;
    r.forward_digest =
        forward_digest(rollout_side ? rollout_ctx_.contract() : trainer_ctx_.contract());
    r.vocab_size = (rollout_side ? rollout_.model() : trainer_.model()).config().vocab_size;
    for (std::size_t i = 0; i < s.samples.size(); ++i) {
      const TrainSample& t = s.samples[i];
      const Completion& c = s.completions[i];
      RecordSample& out = r.samples.emplace_back();
      out.step = s.row.step;
      out.sample = static_cast<std::int64_t>(i);
      const SamplingParams& p = t.sampling;
      out.sampling = {p.temperature, p.top_k, p.top_p, p.min_p};
      out.prefix.assign(t.token_ids.begin(), t.token_ids.begin() + t.prompt_len);
      out.targets.assign(t.token_ids.begin() + t.prompt_len, t.token_ids.end());
      out.mask = t.active;
      for (std::int64_t k = 0; k < t.response_len(); ++k) out.positions.push_back(t.prompt_len + k);
      out.logprobs = rollout_side ? c.logprobs : s.trainer_logprobs[i];
      out.weight_versions =
          rollout_side ? c.weight_versions
                       : std::vector<std::int64_t>(c.token_ids.size(), trainer_.weight_version());
    }
    return r;
  };
  return compare(record("rollout", true), record("trainer", false));
}

void Run::record(Step& s) {
  const auto start = Clock::now();
  StepData data;
  for (std::size_t i = 0; i < s.samples.size(); ++i) {
    const Completion& c = s.completions[i];
    const TrainSample& t = s.samples[i];
    SampleRow& row = data.samples.emplace_back();
    row.sample = static_cast<std::int64_t>(i);
    row.group = row.sample / config_.rollout.samples_per_prompt;
    row.prompt_index = s.prompt_indices[static_cast<std::size_t>(row.group)];
    row.grad_slot =
        row.sample * config_.contract.grad_slots / static_cast<std::int64_t>(s.samples.size());
    row.seed = config_.seed;
    row.request = static_cast<std::int64_t>(c.request_id);
    row.temperature = t.sampling.temperature;
    row.top_k = t.sampling.top_k;
    row.top_p = t.sampling.top_p;
    row.min_p = t.sampling.min_p;
    row.reward = s.rewards[i];
    row.advantage = s.advantages[i];
    row.finish_reason = to_string(c.finish_reason);
    row.prompt_text = train_.examples[row.prompt_index].prompt;
    row.response_text = text(c.token_ids);
    row.prompt_token_ids = c.prompt_token_ids;
    for (std::size_t k = 0; k < c.token_ids.size(); ++k) {
      TokenRow& token = data.tokens.emplace_back();
      token.sample = row.sample;
      token.position = t.prompt_len + static_cast<std::int64_t>(k);
      token.token_id = c.token_ids[k];
      token.weight_version = c.weight_versions[k];
      token.rollout_logprob = c.logprobs[k];
      token.rollout_logprob_raw = c.logprobs_raw[k];
      token.trainer_logprob = s.trainer_logprobs[i][k];
      token.active = t.active[k] != 0;
    }
  }
  s.row.mismatch_kl = mismatch_kl(data.tokens);
  const RolloutStats stats = rollout_.stats();
  const auto metric = [&](const char* name, std::int64_t total, std::int64_t before) {
    data.metrics.push_back({s.row.step, name, static_cast<double>(total - before)});
  };
  metric("prefix_cache_pages", stats.num_prefix_hits, s.stats_before.num_prefix_hits);
  metric("preemptions", stats.num_preemptions, s.stats_before.num_preemptions);
  metric("rollout_batches", stats.num_steps, s.stats_before.num_steps);
  metric("graph_steps", stats.num_graph_steps, s.stats_before.num_graph_steps);
  const auto add_calls = [&](const char* engine, Context& ctx) {
    for (const auto& [key, stats] : ctx.provenance().calls()) {
      data.provenance.push_back({s.row.step, engine, to_string(key.op), key.backend,
                                 to_string(key.mode), key.shape_class, stats.count,
                                 stats.time_ns / 1000, stats.audit_compared, stats.audit_mismatches,
                                 ctx.fallback_reason(key.op)});
    }
    ctx.provenance().clear();
  };
  add_calls("rollout", rollout_ctx_);
  add_calls("trainer", trainer_ctx_);
  s.row.record_s += seconds_since(start);
  s.row.total_s = seconds_since(s.start);
  data.step = s.row;
  db_->write_step(data);
  compared_ += s.row.compared;
  mismatch_count_ += s.row.mismatch_count;
}

// Hands the trainer's weights to the rollout engine and waits for the acknowledged version.
void Run::sync() {
  const std::int64_t version = trainer_.weight_version();
  const std::int64_t acknowledged = rollout_.load_weights(trainer_.weights(), version);
  if (acknowledged != version) {
    fail(ErrorCode::kContract, "sync: rollout acknowledged weight version {}, the trainer sent {}",
         acknowledged, version);
  }
}

void Run::save_checkpoint(std::int64_t step) {
  db_->flush();
  write_checkpoint(options_.out, step, trainer_, model_.config, model_.folder,
                   config_.checkpoint.keep);
  db_->write_event(step, "checkpoint", fmt::format("weight version {}", trainer_.weight_version()));
}

void Run::report_progress(const Step& s, std::int64_t first_step, Clock::time_point run_start) {
  RunProgress p;
  p.step = s.row.step;
  p.steps = config_.steps;
  p.reward_mean = s.row.reward_mean;
  p.loss = s.row.loss;
  p.compared = compared_;
  p.mismatch_count = mismatch_count_;
  p.tokens_per_s = static_cast<double>(s.row.response_tokens) / s.row.total_s;
  const double per_step =
      seconds_since(run_start) / static_cast<double>(s.row.step - first_step + 1);
  p.seconds_left = per_step * static_cast<double>(config_.steps - s.row.step);
  options_.progress(p);
}

RunResult Run::run() {
  const auto run_start = Clock::now();
  RunResult result;
  sync();
  if (first_step_ == 1) evaluate(0);
  for (std::int64_t step = first_step_; step <= config_.steps; ++step) {
    Step s;
    s.row.step = step;
    s.stats_before = rollout_.stats();
    rollout(s);
    grade(s);
    train(s);
    if (config_.route == RlConfig::Route::kStrict && s.comparison.status != CompareStatus::kEqual) {
      record(s);
      result.end = RunEnd::kMismatch;
      result.mismatch = to_text(s.comparison);
      db_->write_event(step, "mismatch", result.mismatch);
      break;
    }
    const auto sync_start = Clock::now();
    sync();
    s.row.sync_s = seconds_since(sync_start);
    record(s);
    report_progress(s, first_step_, run_start);
    const bool last = step == config_.steps;
    const bool stop = options_.interrupted() && !last;
    const int eval_every = config_.eval.every, save_every = config_.checkpoint.every;
    if (last || (eval_every > 0 && step % eval_every == 0)) evaluate(step);
    if (last || stop || (save_every > 0 && step % save_every == 0)) save_checkpoint(step);
    if (stop) {
      result.end = RunEnd::kInterrupted;
      break;
    }
  }
  db_->set_config(run_key::kWeightsDigest,
                  json_text(model_digest(model_.config, trainer_.weights())));
  db_->write_event(std::min<std::int64_t>(db_->last_complete_step(), config_.steps), "end",
                   result.end == RunEnd::kDone ? "done" : "stopped");
  db_->flush();
  result.summary = summarize(*db_);
  write_summary(join_path(options_.out, "summary.json"), result.summary);
  return result;
}

}  // namespace

RunResult run_rl(const RlConfig& config, const RunOptions& options) {
  return Run(config, options).run();
}

}  // namespace rlk
