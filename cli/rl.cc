#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <CLI/CLI.hpp>

#include "cli/engine.h"
#include "cli/verbs.h"
#include "rlk/core/error.h"
#include "rlk/io/files.h"
#include "rlk/rl/engines.h"
#include "rlk/rl/run.h"
#include "rlk/verify/admission_file.h"
#include "rlk/verify/report.h"

namespace rlk::cli {
namespace {

struct Arguments {
  std::string config;
  std::string out;
  std::string route;
  std::string backend;
  std::vector<std::string> overrides;
  bool resume = false;
  bool json = false;
  bool help_config = false;
};

void show(const RunProgress& p) {
  // Without a terminal one line in ten is enough.
  if (!stderr_is_terminal() && p.step % 10 != 0 && p.step != 1 && p.step != p.steps) return;
  fmt::print(stderr, "{}step {:>{}}/{}  reward {:.3f}  mismatches {} of {}  {:>6} tok/s  left {}{}",
             stderr_is_terminal() ? "\r\x1b[K" : "", p.step, std::to_string(p.steps).size(),
             p.steps, p.reward_mean, with_commas(p.mismatch_count), with_commas(p.compared),
             with_commas(static_cast<std::int64_t>(p.tokens_per_s)), clock_text(p.seconds_left),
             !stderr_is_terminal() || p.step == p.steps ? "\n" : "");
}

void print_summary(const RunSummary& s, const std::string& out) {
  fmt::print("route {}: {} steps in {}, {} of {} log-probabilities differ", s.route, s.steps,
             clock_text(s.seconds_total), with_commas(s.mismatch_count), with_commas(s.compared));
  if (s.mismatch_count > 0) {
    fmt::print(" (max |dlogp| {:.3g}, mean {:.3g})", s.max_abs_diff, s.mean_abs_diff);
  }
  fmt::print("\nreward {:.3f} (first ten steps) -> {:.3f} (last ten)", s.reward_first10,
             s.reward_last10);
  if (!std::isnan(s.heldout_reward_after)) {
    fmt::print("; held out {:.3f} -> {:.3f}", s.heldout_reward_before, s.heldout_reward_after);
  }
  fmt::print("\n");
  fmt::print("rollout {} tokens/s, training {} tokens/s, {:.3f} s per step (median)\n",
             with_commas(static_cast<std::int64_t>(s.rollout_tokens_per_s)),
             with_commas(static_cast<std::int64_t>(s.train_tokens_per_s)), s.seconds_per_step);
  fmt::print("{}/run.db, summary.json, report.html\n", out);
}

// Route strict promises that nothing without admission ran.
bool warn_of_unadmitted(const RunSummary& summary) {
  if (summary.unadmitted_ops.empty()) return false;
  fmt::print(stderr, "{}route strict, but kernels without admission ran: {}\n",
             stderr_is_terminal() ? "\n" : "", fmt::join(summary.unadmitted_ops, ", "));
  return true;
}

int run(const Arguments& a) {
  if (a.help_config) {
    fmt::print("{}", config_help());
    return kOk;
  }
  if (a.config.empty() || a.out.empty()) {
    fail(ErrorCode::kInvalidArgument, "rl: --config and --out are required");
  }
  RlConfig config = load_rl_config(a.config);
  if (!a.route.empty()) apply_override(config, "route=" + a.route, ".");
  for (const char* key : {"rollout.backend=", "trainer.backend="}) {
    if (!a.backend.empty()) apply_override(config, key + a.backend, ".");
  }
  for (const std::string& assignment : a.overrides) apply_override(config, assignment, ".");
  validate(config, a.config);

  const auto engine = [&](Engine e) {
    return EngineKernels{engine_kernels(config, e), engine_modes(config, e)};
  };
  // A run proves the CPU's kernels too.
  const Admission admission =
      admission_for(config.contract, {engine(Engine::kRollout), engine(Engine::kTrainer)},
                    Admission({}), say_of_admission);

  catch_interrupts();
  RunOptions options;
  options.out = a.out;
  options.admission = admission;
  options.resume = a.resume;
  options.interrupted = interrupted;
  options.progress = show;
  const RunResult result = run_rl(config, options);
  write_report(join_path(a.out, "report.html"), {a.out});
  if (a.json) {
    fmt::print("{}\n", to_json(result.summary));
  } else {
    print_summary(result.summary, a.out);
  }
  const bool unadmitted = warn_of_unadmitted(result.summary);
  switch (result.end) {
    case RunEnd::kDone: return unadmitted ? kDiffers : kOk;
    case RunEnd::kInterrupted:
      fmt::print(stderr, "{}interrupted; --resume continues from here\n",
                 stderr_is_terminal() ? "\n" : "");
      return kInterrupted;
    case RunEnd::kMismatch:
      fmt::print(stderr, "{}stopped: route strict found a difference\n{}\n",
                 stderr_is_terminal() ? "\n" : "", result.mismatch);
      return kDiffers;
  }
  return kOk;
}

}  // namespace

void add_rl(CLI::App& app, int& exit_code) {
  auto a = std::make_shared<Arguments>();
  CLI::App* verb = app.add_subcommand("rl", "Run GRPO: rollout, recompute, compare bytes, update");
  verb->add_option("--config", a->config, "Configuration (JSON); --help-config explains every key");
  verb->add_option("--out", a->out, "Run folder: run.db, summary.json, report.html, checkpoints/");
  verb->add_option("--route", a->route,
                   "strict: the contract's kernels, stops at the first difference; production: the "
                   "usual fast kernels. Default: the config's");
  verb->add_option("--backend,--device", a->backend,
                   "Kernels of both engines: cpu, cuda, hip, or one by its own name. Default: the "
                   "config's");
  verb->add_option("--set", a->overrides, "Override a key: --set rollout.temperature=0.7")
      ->take_all();
  verb->add_flag("--resume", a->resume, "Go on from the last checkpoint in --out");
  verb->add_flag("--json", a->json, "Print the summary as JSON");
  verb->add_flag("--help-config", a->help_config, "Print every configuration key and exit");
  verb->callback([a, &exit_code] { exit_code = run(*a); });
}

}  // namespace rlk::cli
