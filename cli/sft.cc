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

namespace rlk::cli {
namespace {

struct Arguments {
  std::string config;
  std::string out;
  std::vector<std::string> overrides;
  bool json = false;
};

int run(const Arguments& a) {
  RlConfig config = load_rl_config(a.config);
  for (const std::string& assignment : a.overrides) apply_override(config, assignment, ".");
  validate(config, a.config);
  const auto progress = [&](const SftProgress& p) {
    if (p.step % 10 == 0 || p.step == p.steps) {
      fmt::print(stderr, "step {}/{}  loss {:.4f}\n", p.step, p.steps, p.loss);
    }
    return !interrupted();
  };
  const KernelTable& kernels = engine_kernels(config, Engine::kTrainer);
  const Admission admission = kernels.on_device ? admission_of({kernels.backend}, config.contract)
                                                : Admission::own_kernels();
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
  verb->add_option("--set", a->overrides, "Override a key: --set sft.steps=50")->take_all();
  verb->add_flag("--json", a->json, "Print the result as JSON");
  verb->callback([a, &exit_code] { exit_code = run(*a); });
}

}  // namespace rlk::cli
