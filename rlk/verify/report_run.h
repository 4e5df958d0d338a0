// One run as the report needs it: read once, then drawn from.
#pragma once

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "rlk/rl/run_db.h"
#include "rlk/rl/summary.h"

namespace rlk {

struct ReportRun {
  std::string name;  // the route, or the folder where routes are alike
  RunSummary summary;
  std::vector<StepRow> steps;
  std::vector<MetricRow> metrics;
  std::vector<ProvenanceRow> provenance;
  std::vector<SampleRow> first_samples;  // one of each of the first groups
  std::vector<SampleRow> last_samples;
  std::map<std::string, std::string> config;  // JSON texts
  std::int64_t num_samples = 0;
  std::int64_t steps_with_mismatch = 0;
};

std::vector<ReportRun> load_report_runs(const std::vector<std::string>& run_folders);

// A JSON text as (dotted key, value) pairs; a text that is no JSON object as one pair.
std::vector<std::pair<std::string, std::string>> flatten_json(const std::string& text);

// Indented; a text that is no JSON as it is.
std::string indent_json(const std::string& text);

}  // namespace rlk
