// rlk_gpu_probe: `rlk probe` alone, for machines without the libraries that rlk needs.
#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include "cli/probe.h"
#include "cli/verbs.h"
#include "rlk/core/error.h"

int main(int argc, char** argv) {
  CLI::App app("Compares the GPU's matrix instructions with their CPU models", "rlk_gpu_probe");
  int exit_code = rlk::cli::kOk;
  rlk::cli::set_up_probe(app, exit_code, rlk::cli::probe_gpu);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& e) {
    return app.exit(e) == 0 ? rlk::cli::kOk : rlk::cli::kBadInput;
  } catch (const rlk::Error& e) {
    fmt::print(stderr, "{}\n", e.what());
    return e.code() == rlk::ErrorCode::kNotAvailable ? rlk::cli::kNotAvailable
                                                     : rlk::cli::kBadInput;
  }
  return exit_code;
}
