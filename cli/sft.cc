#include <memory>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "cli/engine.h"
#include "cli/verbs.h"
#include "rlk/core/error.h"
#include "rlk/rl/engines.h"
#include "rlk/rl/sft.h"
#include "rlk/verify/admission_file.h"

namespace rlk::cli {
namespace {

struct Arguments {
  std::string config;
  std::string out;
  std::string backend;
  std::vector<std::string> overrides;
  bool json = false;
};

int run(const Arguments& a) {
  RlConfig config = load_rl_config(a.config);
  if (!a.backend.empty()) apply_override(config, "trainer.backend=" + a.backend, ".");
  for (const std::string& assignment : a.overrides) apply_override(config, assignment, ".");
  validate(config, a.config);
  const auto progress = [&](const SftProgress& p) {
    if (p.step % 10 == 0 || p.step == p.steps) {
      fmt::print(stderr, "step {}/{}  loss {:.4f}\n", p.step, p.steps, p.loss);
    }
    return !interrupted();
  };
  const Admission admission = admission_for(
      config.contract,
      {{engine_kernels(config, Engine::kTrainer), engine_modes(config, Engine::kTrainer)}},
      Admission::own_kernels(), say_of_admission);
  catch_interrupts();
  const SftResult result = run_sft(config, a.out, progress, admission);
  if (a.json) {
    const nlohmann::json out = {{"folder", a.out},
                                {"steps", result.steps},
                                {"loss_first", result.loss_first},
                                {"loss_last", result.loss_last}};
    fmt::print("{}\n", out.dump());
  } else {
    fmt::print("{}: {} steps, loss {:.4f} -> {:.4f}\n", a.out, result.steps, result.loss_first,
               result.loss_last);
  }
  return result.interrupted ? kInterrupted : kOk;
}

}  // namespace

void add_sft(CLI::App& app, int& exit_code) {
  auto a = std::make_shared<Arguments>();
  CLI::App* verb = app.add_subcommand(
      "sft", "Supervised warm-up: imitate the answers of a dataset, write a Hugging Face folder");
  verb->add_option("--config", a->config, "Configuration (JSON), section sft; see rl --help-config")
      ->required();
  verb->add_option("--out", a->out, "The folder")->required();
  verb->add_option("--backend,--device", a->backend,
                   "Kernels: cpu, cuda, hip, or one by its own name. Default: the config's "
                   "trainer.backend");
  verb->add_option("--set", a->overrides, "Override a key: --set sft.steps=50")->take_all();
  verb->add_flag("--json", a->json, "Print the result as JSON");
  verb->callback([a, &exit_code] { exit_code = run(*a); });
}

}  // namespace rlk::cli
