#include <memory>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "cli/verbs.h"
#include "rlk/verify/report.h"

namespace rlk::cli {

void add_report(CLI::App& app, int& exit_code) {
  struct Arguments {
    std::string out = "report.html";
    std::vector<std::string> runs;
    bool json = false;
  };
  auto a = std::make_shared<Arguments>();
  CLI::App* verb = app.add_subcommand(
      "report", "Write one HTML page about a run, or about two routes side by side");
  verb->add_option("runs", a->runs, "Run folders, normally the strict one first")->required();
  verb->add_option("--out", a->out, "The page")->capture_default_str();
  verb->add_flag("--json", a->json, "Print where the page is as JSON");
  verb->callback([a, &exit_code] {
    write_report(a->out, a->runs);
    fmt::print("{}\n", a->json ? nlohmann::json({{"report", a->out}}).dump() : a->out);
    exit_code = kOk;
  });
}

}  // namespace rlk::cli
