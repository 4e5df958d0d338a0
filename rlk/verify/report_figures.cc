#include "rlk/verify/report_figures.h"

#include <functional>

#include "rlk/verify/svg.h"

namespace rlk {

namespace {

using Value = std::function<double(const StepRow&)>;

// Runs have their own colours: markers and lines of one run share one.
std::vector<svg::Series> series_of(const std::vector<ReportRun>& runs, const Value& value) {
  std::vector<svg::Series> result;
  for (std::size_t i = 0; i < runs.size(); ++i) {
    svg::Series& series = result.emplace_back();
    series.label = runs[i].name;
    series.color = static_cast<int>(i % 4);
    for (const StepRow& row : runs[i].steps) {
      series.x.push_back(static_cast<double>(row.step));
      series.y.push_back(value(row));
    }
  }
  return result;
}

std::vector<svg::Series> metric_series(const std::vector<ReportRun>& runs, const char* name,
                                       const std::string& suffix, bool markers) {
  std::vector<svg::Series> result;
  for (std::size_t i = 0; i < runs.size(); ++i) {
    svg::Series series;
    series.label = runs[i].name + suffix;
    series.color = static_cast<int>(i % 4);
    series.markers = markers;
    for (const MetricRow& row : runs[i].metrics) {
      if (row.name != name) continue;
      series.x.push_back(static_cast<double>(row.step));
      series.y.push_back(row.value);
    }
    if (!series.x.empty()) result.push_back(std::move(series));
  }
  return result;
}

std::string reward_figure(const std::vector<ReportRun>& runs) {
  svg::LineChart chart;
  chart.title = "Reward";
  chart.note = "Mean of a step's samples. Diamonds: held-out prompts.";
  chart.y_label = "mean reward";
  chart.smooth = true;
  chart.series = series_of(runs, [](const StepRow& row) { return row.reward_mean; });
  for (svg::Series& series :
       metric_series(runs, run_metric::kHeldoutReward, ", held-out prompts", true)) {
    series.in_legend = false;  // the colours are those of the lines, the note names the shape
    chart.series.push_back(std::move(series));
  }
  return svg::line_chart(chart);
}

std::string engine_kl_figure(const std::vector<ReportRun>& runs) {
  svg::LineChart chart;
  chart.title = "KL between the engines";
  chart.note = "Off-policy by rounding alone: k3 estimate, rollout against trainer.";
  chart.y_label = "KL, nat per token";
  chart.scale = svg::Scale::kLogWithZero;
  chart.series = series_of(runs, [](const StepRow& row) { return row.mismatch_kl; });
  return svg::line_chart(chart);
}

std::vector<std::string> mismatch_figures(const std::vector<ReportRun>& runs) {
  svg::LineChart count;
  count.title = "Log-probabilities that differ";
  count.note = "Rollout against trainer, byte for byte.";
  count.y_label = "mismatches per step";
  count.series =
      series_of(runs, [](const StepRow& row) { return static_cast<double>(row.mismatch_count); });

  svg::LineChart largest;
  largest.title = "Largest difference";
  largest.note = "Of all tokens of a step; 0 is exactly 0.";
  largest.y_label = "max |Δ log p|, nat";
  largest.scale = svg::Scale::kLogWithZero;
  largest.series = series_of(runs, [](const StepRow& row) { return row.max_abs_diff; });

  svg::LineChart mean = largest;
  mean.title = "Mean difference";
  mean.note = "Over all tokens of a step; 0 is exactly 0.";
  mean.y_label = "mean |Δ log p|, nat";
  mean.series = series_of(runs, [](const StepRow& row) { return row.mean_abs_diff; });
  return {svg::line_chart(count), svg::line_chart(largest), svg::line_chart(mean),
          engine_kl_figure(runs)};
}

std::string step_figure(const std::vector<ReportRun>& runs, const char* title, const char* note,
                        const char* y_label, const Value& value) {
  svg::LineChart chart;
  chart.title = title;
  chart.note = note;
  chart.y_label = y_label;
  chart.smooth = true;
  chart.series = series_of(runs, value);
  return svg::line_chart(chart);
}

double rollout_speed(const StepRow& row) {
  return static_cast<double>(row.response_tokens) / row.rollout_s;
}

double training_speed(const StepRow& row) {
  return static_cast<double>(row.prompt_tokens + row.response_tokens) /
         (row.score_s + row.backward_s + row.optimizer_s);
}

std::string warm_up_figure(const std::vector<ReportRun>& runs) {
  svg::LineChart chart;
  chart.title = "Supervised warm-up";
  chart.note = "Before the first step of reinforcement learning.";
  chart.y_label = "loss, nat per token";
  chart.x_label = "warm-up step";
  chart.smooth = true;
  chart.series = metric_series(runs, run_metric::kSftLoss, "", false);
  return svg::line_chart(chart);
}

std::string phase_figure(const std::vector<ReportRun>& runs) {
  svg::StackedBars chart;
  chart.title = "Where the time of a step goes";
  chart.note = "Mean over all steps.";
  chart.part_names = {"rollout", "record", "score and compare", "backward", "optimizer", "sync"};
  for (const ReportRun& run : runs) {
    svg::Bar bar{run.name, std::vector<double>(chart.part_names.size(), 0.0)};
    const double n = static_cast<double>(run.steps.size());
    for (const StepRow& row : run.steps) {
      const double parts[] = {row.rollout_s,  row.record_s,    row.score_s,
                              row.backward_s, row.optimizer_s, row.sync_s};
      for (std::size_t i = 0; i < bar.parts.size(); ++i) bar.parts[i] += parts[i] / n;
    }
    chart.bars.push_back(std::move(bar));
  }
  return svg::stacked_bars(chart);
}

// Two columns; a figure left over in the last row lies on its side.
std::string section(const char* title, const std::vector<std::string>& figures,
                    const std::string& wide_figure = "") {
  std::vector<std::string> shown;
  for (const std::string& figure : figures) {
    if (!figure.empty()) shown.push_back(figure);
  }
  if (shown.empty() && wide_figure.empty()) return "";
  std::string out = std::string("<h2>") + title + "</h2><div class='figures'>" + wide_figure;
  for (std::size_t i = 0; i < shown.size(); ++i) {
    const bool lone = i + 1 == shown.size() && shown.size() % 2 == 1;
    out += lone ? "<div class='lone'>" + shown[i] + "</div>" : shown[i];
  }
  return out + "</div>\n";
}

}  // namespace

std::string report_figures(const std::vector<ReportRun>& runs) {
  return section("Do the engines agree?", mismatch_figures(runs)) +
         section(
             "Does the model learn?",
             {reward_figure(runs), warm_up_figure(runs),
              step_figure(runs, "KL to the reference model", "How far training moved the policy.",
                          "KL, nat per token", [](const StepRow& row) { return row.kl; }),
              step_figure(runs, "Entropy", "Of the sampled distribution, mean over tokens.",
                          "nat per token", [](const StepRow& row) { return row.entropy; })}) +
         section("What does it cost?",
                 {step_figure(runs, "Rollout speed", "Response tokens by the time of the rollout.",
                              "tokens per second", rollout_speed),
                  step_figure(runs, "Training speed",
                              "All tokens by the time of scoring, backward and optimizer.",
                              "tokens per second", training_speed),
                  step_figure(runs, "Time per step", "Thin: each step, thick: mean of 9 steps.",
                              "seconds", [](const StepRow& row) { return row.total_s; })},
                 phase_figure(runs));
}

}  // namespace rlk
