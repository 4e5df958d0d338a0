#include "rlk/verify/report.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <iterator>

#include "rlk/core/error.h"
#include "rlk/io/files.h"
#include "rlk/verify/html.h"
#include "rlk/verify/report_figures.h"
#include "rlk/verify/report_run.h"
#include "rlk/verify/report_style.h"

namespace rlk {

namespace {

using html::escape;

template <typename... Args>
void add(std::string& out, fmt::format_string<Args...> format, Args&&... args) {
  fmt::format_to(std::back_inserter(out), format, std::forward<Args>(args)...);
}

std::string verdict(const RunSummary& s) {
  if (s.compared == 0) return "Nothing was compared";
  return fmt::format("{} of {} log-probabilities {}", html::integer(s.mismatch_count),
                     html::integer(s.compared), s.compared == 1 ? "differs" : "differ");
}

void add_verdict_card(std::string& out, const ReportRun& run, std::size_t index) {
  const RunSummary& s = run.summary;
  const bool good = s.compared > 0 && s.mismatch_count == 0;
  add(out, "<section class='verdict c{}'><div class='route'><span>{}</span>", index % 4,
      escape(run.name));
  add(out, "<span class='chip {}'>{}</span></div>", good ? "good" : "bad",
      good              ? "&#10003; equal, byte for byte"
      : s.compared == 0 ? "nothing compared"
                        : "the engines differ");
  add(out, "<div class='big'>{}</div>", html::integer(s.mismatch_count));
  add(out, "<p class='of'>of {} log-probabilities differ", html::integer(s.compared));
  if (!good && s.compared > 0) add(out, " ({})", html::percent(s.mismatch_count, s.compared));
  out += "</p><dl>";
  const auto row = [&](const char* name, const std::string& value) {
    add(out, "<dt>{}</dt><dd>{}</dd>", name, value);
  };
  row("largest |&Delta; log p|", html::significant(s.max_abs_diff, 3));
  row("steps with a difference",
      fmt::format("{} of {}", html::integer(run.steps_with_mismatch), html::integer(s.steps)));
  row("reward, start &rarr; end", fmt::format("{} &rarr; {}", html::fixed(s.reward_first10, 2),
                                              html::fixed(s.reward_last10, 2)));
  row("time per step, median", html::seconds(s.seconds_per_step));
  out += "</dl></section>\n";
}

void add_hero(std::string& out, const std::vector<ReportRun>& runs) {
  add(out, "<h1>{}{}</h1>\n", verdict(runs[0].summary),
      runs.size() > 1 ? fmt::format(" on the {} route", escape(runs[0].name)) : "");
  out +=
      "<p class='lead'>Every sampled token was scored twice: by the rollout engine as it "
      "sampled it, and by the trainer from the tokens alone. The two numbers were then compared "
      "byte for byte, at every step.</p>\n<div class='verdicts'>";
  for (std::size_t i = 0; i < runs.size(); ++i) add_verdict_card(out, runs[i], i);
  out += "</div>\n";
}

// One row of the table of runs; `ratio` compares the first two runs.
struct TableRow {
  const char* name;
  std::function<std::string(const ReportRun&)> text;
  std::function<double(const ReportRun&)> ratio;
};

std::vector<TableRow> table_rows() {
  using Run = const ReportRun&;
  return {
      {"Steps", [](Run r) { return html::integer(r.summary.steps); }, nullptr},
      {"Samples", [](Run r) { return html::integer(r.num_samples); }, nullptr},
      {"Prompt tokens", [](Run r) { return html::integer(r.summary.prompt_tokens); }, nullptr},
      {"Response tokens", [](Run r) { return html::integer(r.summary.response_tokens); }, nullptr},
      {"Tokens per response", [](Run r) { return html::fixed(r.summary.mean_response_tokens, 2); },
       nullptr},
      {"Log-probabilities compared", [](Run r) { return html::integer(r.summary.compared); },
       nullptr},
      {"Log-probabilities that differ",
       [](Run r) { return html::integer(r.summary.mismatch_count); }, nullptr},
      {"Largest |&Delta; log p|, nat",
       [](Run r) { return html::significant(r.summary.max_abs_diff, 4); }, nullptr},
      {"Mean |&Delta; log p|, nat",
       [](Run r) { return html::significant(r.summary.mean_abs_diff, 4); }, nullptr},
      {"Reward, first 10 steps", [](Run r) { return html::fixed(r.summary.reward_first10, 3); },
       nullptr},
      {"Reward, last 10 steps", [](Run r) { return html::fixed(r.summary.reward_last10, 3); },
       nullptr},
      {"Held-out reward, before",
       [](Run r) { return html::fixed(r.summary.heldout_reward_before, 3); }, nullptr},
      {"Held-out reward, after",
       [](Run r) { return html::fixed(r.summary.heldout_reward_after, 3); }, nullptr},
      {"Rollout, tokens/s", [](Run r) { return html::fixed(r.summary.rollout_tokens_per_s, 0); },
       [](Run r) { return r.summary.rollout_tokens_per_s; }},
      {"Training, tokens/s", [](Run r) { return html::fixed(r.summary.train_tokens_per_s, 0); },
       [](Run r) { return r.summary.train_tokens_per_s; }},
      {"Time per step, median", [](Run r) { return html::seconds(r.summary.seconds_per_step); },
       [](Run r) { return r.summary.seconds_per_step; }},
      {"Time of all steps", [](Run r) { return html::seconds(r.summary.seconds_total); },
       [](Run r) { return r.summary.seconds_total; }},
  };
}

bool is_mismatch_row(const TableRow& row) {
  const std::string_view name = row.name;
  return name.find("differ") != name.npos || name.find("&Delta;") != name.npos;
}

void add_table(std::string& out, const std::vector<ReportRun>& runs) {
  add(out, "<h2>{}</h2><div class='panel scroll'><table><thead><tr><th></th>",
      runs.size() > 1 ? "Side by side" : "The run in numbers");
  for (std::size_t i = 0; i < runs.size(); ++i) {
    add(out, "<th class='num'><span class='key c{}'></span>{}</th>", i % 4, escape(runs[i].name));
  }
  if (runs.size() == 2) {
    add(out, "<th class='num'>{} / {}</th>", escape(runs[0].name), escape(runs[1].name));
  }
  out += "</tr></thead><tbody>";
  for (const TableRow& row : table_rows()) {
    add(out, "<tr><th>{}</th>", row.name);
    for (const ReportRun& run : runs) {
      const std::string text = row.text(run);
      add(out, "<td class='num{}'>{}</td>", is_mismatch_row(row) && text == "0" ? " zero" : "",
          text);
    }
    if (runs.size() == 2) {
      const double ratio = row.ratio ? row.ratio(runs[0]) / row.ratio(runs[1]) : std::nan("");
      add(out, "<td class='num soft'>{}</td>",
          std::isfinite(ratio) ? html::fixed(ratio, 2) + " &times;" : "");
    }
    out += "</tr>";
  }
  out += "</tbody></table></div>\n";
}

void add_sample_rows(std::string& out, const std::vector<SampleRow>& samples) {
  for (const SampleRow& row : samples) {
    add(out,
        "<tr><td>{}</td><td class='text'>{}</td><td class='text'>{}</td>"
        "<td class='num'>{}</td><td>{}</td></tr>",
        row.step, escape(row.prompt_text), escape(row.response_text), html::fixed(row.reward, 2),
        escape(row.finish_reason));
  }
}

void add_samples(std::string& out, const std::vector<ReportRun>& runs) {
  out +=
      "<h2>Some responses</h2><p class='soft'>From the first and the last step.</p>"
      "<div class='panel'>";
  for (std::size_t i = 0; i < runs.size(); ++i) {
    if (runs[i].first_samples.empty()) continue;
    add(out, "<details{}><summary><span class='key c{}'></span>{}</summary><div class='scroll'>",
        i == 0 ? " open" : "", i % 4, escape(runs[i].name));
    out +=
        "<table><thead><tr><th>Step</th><th>Prompt</th><th>Response</th>"
        "<th class='num'>Reward</th><th>Ended by</th></tr></thead><tbody>";
    add_sample_rows(out, runs[i].first_samples);
    if (runs[i].steps.size() > 1) add_sample_rows(out, runs[i].last_samples);
    out += "</tbody></table></div></details>";
  }
  out += "</div>\n";
}

// What audits found and why mode auto fell back: columns that most runs do not need.
struct ProvenanceColumns {
  explicit ProvenanceColumns(const std::vector<ProvenanceRow>& rows) {
    for (const ProvenanceRow& row : rows) {
      audit |= row.audit_compared != 0 || row.audit_mismatches != 0;
      fallback |= !row.fallback_reason.empty();
    }
  }
  std::string head() const {
    std::string text;
    if (audit) text += "<th class='num'>Audited</th><th class='num'>Differ</th>";
    if (fallback) text += "<th>Fell back because</th>";
    return text;
  }
  std::string cells(const ProvenanceRow& row) const {
    std::string text;
    if (audit) {
      add(text, "<td class='num'>{}</td><td class='num'>{}</td>",
          html::integer(row.audit_compared), html::integer(row.audit_mismatches));
    }
    if (fallback) add(text, "<td>{}</td>", escape(row.fallback_reason));
    return text;
  }

  bool audit = false;
  bool fallback = false;
};

void add_provenance(std::string& out, const std::vector<ReportRun>& runs) {
  out +=
      "<h2>What ran</h2><p class='soft'>Every operator call of both engines, by the "
      "implementation that served it.</p><div class='panel'>";
  for (std::size_t i = 0; i < runs.size(); ++i) {
    if (runs[i].provenance.empty()) continue;
    add(out, "<details{}><summary><span class='key c{}'></span>{}</summary><div class='scroll'>",
        i == 0 ? " open" : "", i % 4, escape(runs[i].name));
    const ProvenanceColumns columns(runs[i].provenance);
    add(out,
        "<table><thead><tr><th>Engine</th><th>Operator</th><th>Implementation</th><th>Mode</th>"
        "<th>Shapes</th><th class='num'>Calls</th><th class='num'>Time</th>{}</tr></thead><tbody>",
        columns.head());
    for (const ProvenanceRow& row : runs[i].provenance) {
      add(out,
          "<tr><td>{}</td><td><code>{}</code></td><td><code>{}</code></td><td>{}</td><td>{}</td>"
          "<td class='num'>{}</td><td class='num'>{}</td>{}</tr>",
          escape(row.engine), escape(row.op), escape(row.implementation), escape(row.mode),
          escape(row.shape_class), html::integer(row.count),
          html::seconds(static_cast<double>(row.time_us) * 1e-6), columns.cells(row));
    }
    out += "</tbody></table></div></details>";
  }
  out += "</div>\n";
}

std::string value_or(const ReportRun& run, const char* key) {
  const auto found = run.config.find(key);
  return found == run.config.end() ? "" : found->second;
}

void add_digests(std::string& out, const std::vector<ReportRun>& runs) {
  out += "<div class='panel scroll'><table><thead><tr><th>Digest</th>";
  for (const ReportRun& run : runs) add(out, "<th>{}</th>", escape(run.name));
  out += "</tr></thead><tbody>";
  const std::pair<const char*, std::string RunSummary::*> rows[] = {
      {"contract, forward", &RunSummary::contract_digest},
      {"contract, backward", &RunSummary::backward_digest},
      {"model at the start", &RunSummary::model_digest},
      {"weights at the end", &RunSummary::weights_digest}};
  for (const auto& [name, member] : rows) {
    add(out, "<tr><th>{}</th>", name);
    for (const ReportRun& run : runs) {
      const std::string& digest = run.summary.*member;
      add(out, "<td><code title='{}'>{}</code></td>", escape(digest),
          digest.size() > 20 ? escape(digest.substr(0, 16)) + "&hellip;" : escape(digest));
    }
    out += "</tr>";
  }
  out += "</tbody></table></div>\n";
}

// What two configurations do not share, so that nobody has to look for it.
void add_differences(std::string& out, const std::vector<ReportRun>& runs) {
  if (runs.size() != 2) return;
  const auto a = flatten_json(value_or(runs[0], run_key::kConfig));
  const auto b = flatten_json(value_or(runs[1], run_key::kConfig));
  const auto find = [](const auto& list, const std::string& key) {
    const auto at = std::find_if(list.begin(), list.end(),
                                 [&](const auto& entry) { return entry.first == key; });
    return at == list.end() ? std::string("absent") : at->second;
  };
  std::string list;
  for (const auto& [key, value] : a) {
    if (find(b, key) != value) {
      add(list, "<tr><th><code>{}</code></th><td>{}</td><td>{}</td></tr>", escape(key),
          escape(value), escape(find(b, key)));
    }
  }
  for (const auto& [key, value] : b) {
    if (find(a, key) == "absent") {
      add(list, "<tr><th><code>{}</code></th><td>absent</td><td>{}</td></tr>", escape(key),
          escape(value));
    }
  }
  if (list.empty()) return;
  add(out,
      "<details open><summary>Where the configurations differ</summary><div class='scroll'><table>"
      "<thead><tr><th>Key</th><th>{}</th><th>{}</th></tr></thead><tbody>{}</tbody></table></div>"
      "</details>",
      escape(runs[0].name), escape(runs[1].name), list);
}

void add_json(std::string& out, const std::vector<ReportRun>& runs, const char* key,
              const char* title) {
  for (std::size_t i = 0; i < runs.size(); ++i) {
    const std::string text = value_or(runs[i], key);
    if (text.empty() || (i > 0 && text == value_or(runs[0], key))) continue;
    const bool shared = std::all_of(runs.begin(), runs.end(),
                                    [&](const auto& run) { return value_or(run, key) == text; });
    const std::string whose = shared ? "" : ", " + runs[i].name;
    add(out, "<details><summary>{}{}</summary><pre>{}</pre></details>", title, escape(whose),
        escape(indent_json(text)));
  }
}

void add_setting(std::string& out, const std::vector<ReportRun>& runs) {
  out += "<h2>Contract, configuration, environment</h2>";
  add_digests(out, runs);
  out += "<div class='panel'>";
  add_differences(out, runs);
  add_json(out, runs, run_key::kEnvironment, "Environment");
  add_json(out, runs, run_key::kContract, "Contract");
  add_json(out, runs, run_key::kModelConfig, "Model");
  add_json(out, runs, run_key::kConfig, "Configuration");
  out += "</div>\n";
}

}  // namespace

std::string report_html(const std::vector<std::string>& run_folders) {
  if (run_folders.empty()) fail(ErrorCode::kInvalidArgument, "report: no run folder is given");
  const std::vector<ReportRun> runs = load_report_runs(run_folders);
  std::string out =
      "<!doctype html>\n<html lang='en'><head><meta charset='utf-8'>"
      "<meta name='viewport' content='width=device-width, initial-scale=1'>"
      "<meta http-equiv='Content-Security-Policy' content=\"default-src 'none'; "
      "style-src 'unsafe-inline'\">";
  add(out, "<title>{} - rlkernel</title><style>{}</style></head>\n", verdict(runs[0].summary),
      kReportStyle);
  out +=
      "<body><header><b>rlkernel</b><span><input type='checkbox' id='theme'>"
      "<label for='theme'>Light / dark</label></span></header>\n<main>";
  add_hero(out, runs);
  out += report_figures(runs);
  add_table(out, runs);
  add_samples(out, runs);
  add_provenance(out, runs);
  add_setting(out, runs);
  out +=
      "<footer>Written by rlkernel from run.db. Figures show their values under the pointer."
      "</footer></main></body></html>\n";
  return out;
}

void write_report(const std::string& path, const std::vector<std::string>& run_folders) {
  write_file(path, report_html(run_folders));
}

}  // namespace rlk
