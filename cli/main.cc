// rlk: the program. A verb parses its arguments, calls the library, prints.
#include <csignal>
#include <cstdio>
#include <exception>
#include <string>

#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include "cli/verbs.h"
#include "rlk/core/error.h"

namespace {

constexpr const char* kDescription =
    "Reinforcement learning with two engines whose log-probabilities are the same bytes.\n"
    "\n"
    "Typical use:\n"
    "  rlk init --config examples/demo/model.json --seed 1 --out runs/model\n"
    "  rlk rl --config examples/demo/rl.json --set model.path=$PWD/runs/model --out runs/strict\n"
    "  rlk report --out report.html runs/strict\n"
    "  rlk compare runs/a runs/b\n"
    "\n"
    "Results go to standard output, progress to standard error.";

constexpr const char* kFooter =
    "Exit codes: 0 done or equal, 1 bytes differ, 2 bad input or nothing comparable,\n"
    "3 not available on this machine, 130 interrupted.\n"
    "`rlk VERB --help` explains a verb; `rlk rl --help-config` every key of a run's configuration.";

int exit_code_of(rlk::ErrorCode code) {
  switch (code) {
    case rlk::ErrorCode::kNotAvailable:
    case rlk::ErrorCode::kUnsupported: return rlk::cli::kNotAvailable;
    case rlk::ErrorCode::kInterrupted: return rlk::cli::kInterrupted;
    default: return rlk::cli::kBadInput;
  }
}

bool has_verb(CLI::App& app, const std::string& name) {
  for (const CLI::App* verb : app.get_subcommands([](CLI::App*) { return true; })) {
    if (verb->get_name() == name) return true;
  }
  return false;
}

int run(CLI::App& app, int argc, char** argv, const int& exit_code) {
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& e) {
    const std::string verb = argc > 1 ? argv[1] : "-";
    if (verb[0] != '-' && !has_verb(app, verb)) {
      fmt::print(stderr, "rlk: no verb '{}'; rlk --help lists them\n", verb);
      return rlk::cli::kBadInput;
    }
    return app.exit(e) == 0 ? rlk::cli::kOk : rlk::cli::kBadInput;
  } catch (const rlk::Error& e) {
    fmt::print(stderr, "rlk: error ({}): {}\n", rlk::to_string(e.code()), e.what());
    return exit_code_of(e.code());
  } catch (const std::exception& e) {
    fmt::print(stderr, "rlk: error: {}\n", e.what());
    return rlk::cli::kBadInput;
  }
  return exit_code;
}

}  // namespace

int main(int argc, char** argv) {
  // A file that may not grow any more is an error with a message, like a full disk.
  std::signal(SIGXFSZ, SIG_IGN);
  CLI::App app(kDescription, "rlk");
  app.footer(kFooter);
  app.require_subcommand(1);
  int exit_code = rlk::cli::kOk;
  rlk::cli::add_rl(app, exit_code);
  rlk::cli::add_sft(app, exit_code);
  rlk::cli::add_init(app, exit_code);
  rlk::cli::add_generate(app, exit_code);
  rlk::cli::add_score(app, exit_code);
  rlk::cli::add_compare(app, exit_code);
  rlk::cli::add_report(app, exit_code);
  rlk::cli::add_contract(app, exit_code);
  rlk::cli::add_conform(app, exit_code);
  rlk::cli::add_probe(app, exit_code);
  rlk::cli::add_bench(app, exit_code);
  rlk::cli::add_doctor(app, exit_code);
  rlk::cli::add_env(app, exit_code);
  const int code = run(app, argc, argv, exit_code);
  if (std::fflush(stdout) != 0) {
    fmt::print(stderr, "rlk: error (io): standard output cannot be written\n");
    return rlk::cli::kBadInput;
  }
  return code;
}
