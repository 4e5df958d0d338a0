#include <memory>
#include <string>

#include <fmt/format.h>
#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "cli/verbs.h"
#include "rlk/core/environment.h"
#include "rlk/core/thread_pool.h"
#include "rlk/device/device.h"

namespace rlk::cli {
namespace {

// environment_json with what this program sees of GPUs.
std::string with_gpus(const std::string& environment) {
  nlohmann::json out = nlohmann::json::parse(environment);
  nlohmann::json gpus = nlohmann::json::array();
  for (const device::Info& gpu : device::list()) {
    gpus.push_back({{"index", gpu.index},
                    {"name", gpu.name},
                    {"architecture", gpu.architecture},
                    {"num_processors", gpu.num_processors},
                    {"memory_bytes", gpu.memory_bytes},
                    {"driver", gpu.driver},
                    {"runtime", gpu.runtime}});
  }
  out["gpus"] = gpus;
  return out.dump(2);
}

}  // namespace

void add_env(CLI::App& app, int& exit_code) {
  auto json = std::make_shared<bool>(false);
  CLI::App* verb = app.add_subcommand(
      "env", "Print what can change bits, algorithms or speed on this machine (JSON)");
  verb->add_flag("--json", *json, "JSON is the only form; accepted for symmetry");
  verb->callback([json, &exit_code] {
    const ThreadPool pool;
    fmt::print("{}\n", with_gpus(environment_json(pool.num_threads())));
    exit_code = kOk;
  });
}

}  // namespace rlk::cli
