#include "rlk/verify/report_run.h"

#include <algorithm>
#include <filesystem>
#include <set>

#include <nlohmann/json.hpp>

namespace rlk {

namespace {

constexpr std::size_t kSamplesShown = 4;

// The first sample of each of the first groups: different prompts.
std::vector<SampleRow> one_per_group(std::vector<SampleRow> samples) {
  std::vector<SampleRow> chosen;
  std::set<std::int64_t> groups;
  for (SampleRow& row : samples) {
    if (!groups.insert(row.group).second) continue;
    chosen.push_back(std::move(row));
    if (chosen.size() == kSamplesShown) break;
  }
  return chosen;
}

ReportRun load(const std::string& folder) {
  const RunDb db = RunDb::open_read_only(run_db_path(folder));
  ReportRun run;
  run.summary = summarize(db);
  run.steps = db.steps();
  run.metrics = db.metrics();
  run.provenance = db.provenance_totals();
  run.config = db.config();
  run.num_samples = db.num_samples();
  run.steps_with_mismatch = std::count_if(run.steps.begin(), run.steps.end(),
                                          [](const auto& row) { return row.mismatch_count > 0; });
  if (!run.steps.empty()) {
    run.first_samples = one_per_group(db.samples(run.steps.front().step));
    run.last_samples = one_per_group(db.samples(run.steps.back().step));
  }
  run.name = run.summary.route.empty() ? "run" : run.summary.route;
  return run;
}

void flatten(const std::string& prefix, const nlohmann::ordered_json& json,
             std::vector<std::pair<std::string, std::string>>& result) {
  if (json.is_object() && !json.empty()) {
    for (const auto& [key, value] : json.items()) {
      flatten(prefix.empty() ? key : prefix + '.' + key, value, result);
    }
    return;
  }
  result.emplace_back(
      prefix, json.is_string()
                  ? json.get<std::string>()
                  : json.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace));
}

}  // namespace

std::vector<ReportRun> load_report_runs(const std::vector<std::string>& run_folders) {
  std::vector<ReportRun> runs;
  for (const std::string& folder : run_folders) runs.push_back(load(folder));
  // Two runs of one route are told apart by their folders.
  std::set<std::string> names;
  for (const ReportRun& run : runs) names.insert(run.name);
  if (names.size() < runs.size()) {
    for (std::size_t i = 0; i < runs.size(); ++i) {
      runs[i].name = std::filesystem::path(run_folders[i]).lexically_normal().string();
    }
  }
  return runs;
}

std::vector<std::pair<std::string, std::string>> flatten_json(const std::string& text) {
  std::vector<std::pair<std::string, std::string>> result;
  const auto json = nlohmann::ordered_json::parse(text, nullptr, false);
  if (json.is_discarded()) {
    result.emplace_back("", text);
  } else {
    flatten("", json, result);
  }
  return result;
}

std::string indent_json(const std::string& text) {
  const auto json = nlohmann::ordered_json::parse(text, nullptr, false);
  if (json.is_discarded()) return text;
  return json.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

}  // namespace rlk
