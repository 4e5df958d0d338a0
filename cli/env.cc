#include <memory>

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include "cli/verbs.h"
#include "rlk/core/environment.h"
#include "rlk/core/thread_pool.h"

namespace rlk::cli {

void add_env(CLI::App& app, int& exit_code) {
  auto json = std::make_shared<bool>(false);
  CLI::App* verb = app.add_subcommand(
      "env", "Print what can change bits, algorithms or speed on this machine (JSON)");
  verb->add_flag("--json", *json, "JSON is the only form; accepted for symmetry");
  verb->callback([json, &exit_code] {
    const ThreadPool pool;
    fmt::print("{}\n", environment_json(pool.num_threads()));
    exit_code = kOk;
  });
}

}  // namespace rlk::cli
