#include "rlk/rl/summary.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>

#include <nlohmann/json.hpp>

#include "rlk/io/files.h"

namespace rlk {

namespace {

constexpr double kNone = std::numeric_limits<double>::quiet_NaN();
constexpr std::size_t kWindow = 10;

double mean_reward(const std::vector<StepRow>& steps, std::size_t begin, std::size_t end) {
  double sum = 0;
  for (std::size_t i = begin; i < end; ++i) sum += steps[i].reward_mean;
  return end > begin ? sum / static_cast<double>(end - begin) : kNone;
}

double median(std::vector<double> values) {
  if (values.empty()) return kNone;
  const std::size_t middle = values.size() / 2;
  std::sort(values.begin(), values.end());
  return values.size() % 2 ? values[middle] : (values[middle - 1] + values[middle]) / 2;
}

double rate(double count, double seconds) { return seconds > 0 ? count / seconds : kNone; }

void add_steps(const std::vector<StepRow>& steps, RunSummary& summary) {
  double rollout_s = 0;
  double train_s = 0;
  double sum_abs_diff = 0;
  std::vector<double> step_seconds;
  for (const StepRow& row : steps) {
    summary.compared += row.compared;
    summary.mismatch_count += row.mismatch_count;
    summary.max_abs_diff = std::max(summary.max_abs_diff, row.max_abs_diff);
    sum_abs_diff += row.mean_abs_diff * static_cast<double>(row.compared);
    summary.prompt_tokens += row.prompt_tokens;
    summary.response_tokens += row.response_tokens;
    rollout_s += row.rollout_s;
    train_s += row.score_s + row.backward_s + row.optimizer_s;
    summary.seconds_total += row.total_s;
    step_seconds.push_back(row.total_s);
  }
  const std::size_t n = steps.size();
  summary.steps = static_cast<std::int64_t>(n);
  summary.mean_abs_diff =
      summary.compared > 0 ? sum_abs_diff / static_cast<double>(summary.compared) : kNone;
  if (summary.compared == 0) summary.max_abs_diff = kNone;
  summary.reward_first10 = mean_reward(steps, 0, std::min(n, kWindow));
  summary.reward_last10 = mean_reward(steps, n - std::min(n, kWindow), n);
  summary.rollout_tokens_per_s = rate(static_cast<double>(summary.response_tokens), rollout_s);
  summary.train_tokens_per_s =
      rate(static_cast<double>(summary.prompt_tokens + summary.response_tokens), train_s);
  summary.seconds_per_step = median(std::move(step_seconds));
}

// Modes strict and, where nothing made it fall back, auto run admitted kernels only.
std::vector<std::string> unadmitted_ops(const std::vector<ProvenanceRow>& provenance) {
  std::set<std::string> ops;
  for (const ProvenanceRow& row : provenance) {
    if (row.mode == "strict" || (row.mode == "auto" && row.fallback_reason.empty())) continue;
    ops.insert(row.engine + '.' + row.op);
  }
  return {ops.begin(), ops.end()};
}

}  // namespace

RunSummary summarize(const RunDb& db) {
  RunSummary summary;
  summary.route = db.config_string(run_key::kRoute);
  summary.run_id = db.config_string(run_key::kRunId);
  add_steps(db.steps(), summary);
  const std::int64_t num_samples = db.num_samples();
  summary.mean_response_tokens = num_samples > 0 ? static_cast<double>(summary.response_tokens) /
                                                       static_cast<double>(num_samples)
                                                 : kNone;
  summary.heldout_reward_before = kNone;
  summary.heldout_reward_after = kNone;
  for (const MetricRow& row : db.metrics(run_metric::kHeldoutReward)) {
    (row.step == 0 ? summary.heldout_reward_before : summary.heldout_reward_after) = row.value;
  }
  summary.model_digest = db.config_string(run_key::kModelDigest);
  summary.contract_digest = db.config_string(run_key::kForwardDigest);
  summary.backward_digest = db.config_string(run_key::kBackwardDigest);
  summary.weights_digest = db.config_string(run_key::kWeightsDigest);
  if (summary.route == "strict") summary.unadmitted_ops = unadmitted_ops(db.provenance_totals());
  return summary;
}

std::string to_json(const RunSummary& s) {
  nlohmann::ordered_json json;
  json["route"] = s.route;
  json["run_id"] = s.run_id;
  json["steps"] = s.steps;
  json["compared"] = s.compared;
  json["mismatch_count"] = s.mismatch_count;
  json["max_abs_diff"] = s.max_abs_diff;
  json["mean_abs_diff"] = s.mean_abs_diff;
  json["reward_first10"] = s.reward_first10;
  json["reward_last10"] = s.reward_last10;
  json["heldout_reward_before"] = s.heldout_reward_before;
  json["heldout_reward_after"] = s.heldout_reward_after;
  json["prompt_tokens"] = s.prompt_tokens;
  json["response_tokens"] = s.response_tokens;
  json["mean_response_tokens"] = s.mean_response_tokens;
  json["rollout_tokens_per_s"] = s.rollout_tokens_per_s;
  json["train_tokens_per_s"] = s.train_tokens_per_s;
  json["seconds_per_step"] = s.seconds_per_step;
  json["seconds_total"] = s.seconds_total;
  json["model_digest"] = s.model_digest;
  json["contract_digest"] = s.contract_digest;
  json["backward_digest"] = s.backward_digest;
  json["weights_digest"] = s.weights_digest;
  json["unadmitted_ops"] = s.unadmitted_ops;
  return json.dump(2) + '\n';
}

void write_summary(const std::string& path, const RunSummary& summary) {
  write_file(path, to_json(summary));
}

}  // namespace rlk
