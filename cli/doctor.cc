#include <memory>
#include <string>

#include <fmt/format.h>
#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "cli/verbs.h"
#include "rlk/core/doctor.h"

namespace rlk::cli {
namespace {

bool refused(const Finding& f) {
  return f.severity == Severity::kRefused || f.severity == Severity::kRefusedGpu;
}

void print_text(const std::vector<Finding>& findings) {
  for (const Finding& f : findings) {
    fmt::print("{:<12}{} = {}\n    {}\n    {}\n", to_string(f.severity), f.subject, f.value, f.why,
               f.advice);
  }
}

void print_json(const std::vector<Finding>& findings) {
  nlohmann::json out = nlohmann::json::array();
  for (const Finding& f : findings) {
    out.push_back({{"severity", to_string(f.severity)},
                   {"subject", f.subject},
                   {"value", f.value},
                   {"why", f.why},
                   {"advice", f.advice}});
  }
  fmt::print("{}\n", out.dump(2, ' ', false, nlohmann::json::error_handler_t::replace));
}

}  // namespace

void add_doctor(CLI::App& app, int& exit_code) {
  auto json = std::make_shared<bool>(false);
  CLI::App* verb = app.add_subcommand(
      "doctor",
      "Say what in this environment and build changes bits or algorithms, and what to set.\n"
      "  refused      no strict run starts\n"
      "  refused_gpu  none with kernels of a GPU\n"
      "  production   libraries of route production compute or choose otherwise\n"
      "  note         no bit changes\n"
      "Exit code 1 where a strict run is refused, else 0");
  verb->add_flag("--json", *json, "Print JSON: a list of findings");
  verb->callback([json, &exit_code] {
    const std::vector<Finding> findings = diagnose();
    int count = 0;
    for (const Finding& f : findings) count += refused(f) ? 1 : 0;
    if (*json) {
      print_json(findings);
    } else {
      print_text(findings);
      fmt::print("{} findings, {} of them refuse a strict run\n", findings.size(), count);
    }
    exit_code = count == 0 ? kOk : kDiffers;
  });
}

}  // namespace rlk::cli
