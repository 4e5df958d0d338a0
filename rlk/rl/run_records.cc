#include "rlk/rl/run_records.h"

#include <bit>
#include <cmath>
#include <filesystem>
#include <limits>

#include <nlohmann/json.hpp>

#include "rlk/core/error.h"
#include "rlk/numerics/math.h"

namespace rlk {

namespace {

std::int64_t vocab_size(const RunDb& db) {
  const auto text = db.config_json(run_key::kVocabSize);
  const auto json = nlohmann::json::parse(text.value_or("null"), nullptr, false);
  if (!json.is_number_integer()) {
    fail(ErrorCode::kFormat, "{}: config.{} is {}, expected a whole number", db.path(),
         run_key::kVocabSize, text.value_or("absent"));
  }
  return json.get<std::int64_t>();
}

std::string describe(const RunDb& db, const char* side) {
  return fmt::format("{} ({})", side, db.path());
}

std::vector<std::int64_t> step_numbers(const RunDb& db) {
  std::vector<std::int64_t> numbers;
  for (const StepRow& row : db.steps()) numbers.push_back(row.step);
  return numbers;
}

void compare_rewards(const std::vector<SampleRow>& a, const std::vector<SampleRow>& b,
                     RewardComparison& result) {
  for (std::size_t i = 0; i < a.size() && i < b.size(); ++i) {
    ++result.compared;
    if (std::bit_cast<std::uint64_t>(a[i].reward) == std::bit_cast<std::uint64_t>(b[i].reward) &&
        !std::isnan(a[i].reward)) {
      continue;
    }
    if (result.mismatch_count++ == 0) {
      result.first_step = a[i].step;
      result.first_sample = a[i].sample;
      result.first_a = a[i].reward;
      result.first_b = b[i].reward;
    }
  }
}

void add_samples(Record& record, const std::vector<SampleRow>& samples,
                 const std::vector<TokenRow>& tokens, RunSide side) {
  auto token = tokens.begin();
  for (const SampleRow& row : samples) {
    RecordSample& s = record.samples.emplace_back();
    s.step = row.step;
    s.sample = row.sample;
    s.sampling = {row.temperature, row.top_k, row.top_p, row.min_p};
    s.prefix = row.prompt_token_ids;
    for (; token != tokens.end() && token->sample == row.sample; ++token) {
      s.targets.push_back(token->token_id);
      s.positions.push_back(token->position);
      s.mask.push_back(token->active);
      s.weight_versions.push_back(token->weight_version);
      s.logprobs.push_back(side == RunSide::kRollout ? token->rollout_logprob
                                                     : token->trainer_logprob);
    }
  }
}

Record header(const RunDb& db, RunSide side) {
  Record record;
  record.name = side == RunSide::kRollout ? "rollout" : "trainer";
  record.provenance = db.config_string(run_key::kRunId) + "/" + record.name;
  record.model_digest = db.config_string(run_key::kModelDigest);
  record.forward_digest = db.config_string(run_key::kForwardDigest);
  record.vocab_size = vocab_size(db);
  return record;
}

}  // namespace

Record run_record(const RunDb& db, RunSide side, std::int64_t step) {
  Record record = header(db, side);
  add_samples(record, db.samples(step), db.tokens(step), side);
  return record;
}

double mismatch_kl(const std::vector<TokenRow>& tokens) {
  double sum = 0;
  std::int64_t count = 0;
  for (const TokenRow& token : tokens) {
    if (!token.active) continue;
    ++count;
    const double d =
        static_cast<double>(token.trainer_logprob) - static_cast<double>(token.rollout_logprob);
    if (std::fabs(d) > 0.5) {
      sum += (static_cast<double>(numerics::exp(static_cast<float>(d))) - 1.0) - d;
      continue;
    }
    // exp(d) - 1 cancels for small d; the series d^2/2! + d^3/3! + ... does not.
    double term = d;
    double value = 0;
    for (int k = 2; k <= 14; ++k) {
      term *= d / k;
      value += term;
    }
    sum += value;
  }
  return count > 0 ? sum / static_cast<double>(count) : std::numeric_limits<double>::quiet_NaN();
}

Comparison compare_sides(const RunDb& db) {
  Comparison total;
  for (const std::int64_t step : step_numbers(db)) {
    merge(total, compare(run_record(db, RunSide::kRollout, step),
                         run_record(db, RunSide::kTrainer, step)));
  }
  return total;
}

CompareStatus RunComparison::status() const {
  for (const CompareStatus status :
       {CompareStatus::kNotComparable, CompareStatus::kDiffers, CompareStatus::kNothingCompared}) {
    if (rollout.status == status || trainer.status == status) return status;
    if (status == CompareStatus::kDiffers && rewards.mismatch_count > 0) return status;
  }
  return CompareStatus::kEqual;
}

RunComparison compare_runs(const RunDb& a, const RunDb& b) {
  if (std::filesystem::equivalent(a.path(), b.path())) {
    fail(ErrorCode::kInvalidArgument, "compare: {} and {} are one file", a.path(), b.path());
  }
  RunComparison result;
  const std::vector<std::int64_t> steps = step_numbers(a);
  const std::vector<std::int64_t> steps_b = step_numbers(b);
  for (Comparison* side : {&result.rollout, &result.trainer}) {
    const char* name = side == &result.rollout ? "rollout" : "trainer";
    side->name_a = describe(a, name);
    side->name_b = describe(b, name);
    if (steps == steps_b) continue;
    side->status = CompareStatus::kNotComparable;
    side->field = "steps";
    side->detail = fmt::format("{} steps to step {} != {} steps to step {}", steps.size(),
                               a.last_complete_step(), steps_b.size(), b.last_complete_step());
  }
  if (steps != steps_b) return result;

  for (const std::int64_t step : steps) {
    const std::vector<SampleRow> samples_a = a.samples(step);
    const std::vector<SampleRow> samples_b = b.samples(step);
    const std::vector<TokenRow> tokens_a = a.tokens(step);
    const std::vector<TokenRow> tokens_b = b.tokens(step);
    for (const RunSide side : {RunSide::kRollout, RunSide::kTrainer}) {
      Record x = header(a, side);
      Record y = header(b, side);
      x.provenance.clear();  // whether one is a copy of the other shows over all steps, below
      y.provenance.clear();
      add_samples(x, samples_a, tokens_a, side);
      add_samples(y, samples_b, tokens_b, side);
      x.name = describe(a, x.name.c_str());
      y.name = describe(b, y.name.c_str());
      merge(side == RunSide::kRollout ? result.rollout : result.trainer, compare(x, y));
    }
    if (result.rollout.status == CompareStatus::kNotComparable) return result;
    compare_rewards(samples_a, samples_b, result.rewards);
  }
  const std::string run_id = a.config_string(run_key::kRunId);
  if (result.status() == CompareStatus::kEqual && !run_id.empty() &&
      run_id == b.config_string(run_key::kRunId)) {
    fail(ErrorCode::kInvalidArgument,
         "compare: {} is a copy of {} (run {}); compare two independent runs", b.path(), a.path(),
         run_id);
  }
  return result;
}

std::string to_json(const RunComparison& c) {
  nlohmann::ordered_json json;
  json["status"] = to_string(c.status());
  json["rollout"] = nlohmann::ordered_json::parse(to_json(c.rollout));
  json["trainer"] = nlohmann::ordered_json::parse(to_json(c.trainer));
  nlohmann::ordered_json rewards = {{"compared", c.rewards.compared},
                                    {"mismatch_count", c.rewards.mismatch_count}};
  if (c.rewards.mismatch_count > 0) {
    rewards["first_mismatch"] = {{"step", c.rewards.first_step},
                                 {"sample", c.rewards.first_sample},
                                 {"a", c.rewards.first_a},
                                 {"b", c.rewards.first_b}};
  }
  json["rewards"] = rewards;
  return json.dump();
}

std::string to_text(const RunComparison& c) {
  std::string text = to_text(c.rollout) + '\n' + to_text(c.trainer);
  if (c.status() == CompareStatus::kNotComparable) return text;
  const RewardComparison& r = c.rewards;
  text += fmt::format("\nrewards: {} compared, {} differ", r.compared, r.mismatch_count);
  if (r.mismatch_count > 0) {
    text += fmt::format("; first: step {}, sample {}: {} and {}", r.first_step, r.first_sample,
                        r.first_a, r.first_b);
  }
  return text;
}

}  // namespace rlk
