#include <memory>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include "cli/verbs.h"
#include "rlk/bench/bench.h"
#include "rlk/io/files.h"

namespace rlk::cli {
namespace {

struct Arguments {
  BenchOptions options;
  std::string device = "cpu";
  std::string output;
  bool json = false;
  bool markdown = false;
  bool list = false;
};

int run(const Arguments& a) {
  if (a.list) {
    for (const std::string& name : bench_names(a.options)) fmt::print("{}\n", name);
    return kOk;
  }
  catch_interrupts();
  BenchOptions options = a.options;
  options.interrupted = interrupted;
  options.progress = [](const std::string& name) {
    if (stderr_is_terminal()) fmt::print(stderr, "\r\x1b[K{}", name);
  };
  const BenchReport report = run_bench(options);
  if (stderr_is_terminal()) fmt::print(stderr, "\r\x1b[K");
  if (!a.output.empty()) write_file(a.output, to_json(report));
  fmt::print("{}", a.json ? to_json(report) : a.markdown ? to_markdown(report) : to_text(report));
  return report.bits_equal() ? kOk : kDiffers;
}

}  // namespace

void add_bench(CLI::App& app, int& exit_code) {
  auto a = std::make_shared<Arguments>();
  CLI::App* verb = app.add_subcommand(
      "bench", "Time the contract's kernels beside vendor libraries, memory and route production");
  verb->add_option("device", a->device, "cpu")->check(CLI::IsMember({"cpu"}));
  verb->add_flag("--quick", a->options.quick, "Fewer and smaller cases, at most 90 seconds");
  verb->add_option("--filter", a->options.filter, "Only cases in whose name REGEX is found")
      ->type_name("REGEX");
  verb->add_option("--threads", a->options.threads,
                   "Threads of each case, with commas between; default: 1 and, where there are two "
                   "cores, 2")
      ->delimiter(',')
      ->check(CLI::Range(1, 1024));
  verb->add_option("--demo", a->options.demo,
                   "Folder of model.json and rl.json for the end-to-end cases")
      ->capture_default_str();
  verb->add_flag("--list", a->list, "Print the names of the cases and time nothing");
  verb->add_option("--output", a->output, "Also write the JSON to this file");
  auto* json = verb->add_flag("--json", a->json, "Print JSON");
  verb->add_flag("--markdown", a->markdown, "Print the tables as Markdown")->excludes(json);
  verb->footer(
      "Bits are checked first: a case whose bytes are not the reference's is not timed, "
      "and the exit code is 1.\nA missed target changes no exit code.");
  verb->callback([a, &exit_code] { exit_code = run(*a); });
}

}  // namespace rlk::cli
