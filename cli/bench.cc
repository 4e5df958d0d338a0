#include <memory>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include "cli/engine.h"
#include "cli/verbs.h"
#include "rlk/bench/bench.h"
#include "rlk/io/files.h"
#include "rlk/ops/backend.h"

namespace rlk::cli {
namespace {

struct Arguments {
  BenchOptions options;
  std::string device = "cpu";
  std::string profile;  // empty: the best of the device
  std::string output;
  bool json = false;
  bool markdown = false;
  bool list = false;
};

BenchOptions options_of(const Arguments& a) {
  BenchOptions options = a.options;
  options.gpu = a.device != "cpu";
  if (!a.profile.empty()) options.contract.profile = parse_profile(a.profile);
  if (a.list) return options;
  if (a.profile.empty() && options.gpu) options.contract.profile = matrix_profile();
  options.kernels = &find_backend(a.device, options.contract.profile);
  return options;
}

int run(const Arguments& a) {
  BenchOptions options = options_of(a);
  if (a.list) {
    for (const std::string& name : bench_names(options)) fmt::print("{}\n", name);
    return kOk;
  }
  catch_interrupts();
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
  verb->add_option("device,--backend,--device", a->device,
                   "cpu; cuda or hip: the GPU, with sizes of its own (hip has run on an "
                   "emulator only)")
      ->check(CLI::IsMember({"cpu", "cuda", "hip"}))
      ->capture_default_str();
  verb->add_option("--profile", a->profile,
                   "Of the contract; default: portable, on a GPU that of its matrix units")
      ->check(CLI::IsMember(profile_names()));
  verb->add_flag("--quick", a->options.quick,
                 "Fewer and smaller cases; of a CPU at most 90 seconds");
  verb->add_option("--filter", a->options.filter, "Only cases in whose name REGEX is found")
      ->type_name("REGEX");
  verb->add_option(
          "--threads", a->options.threads,
          "Threads of each case of a CPU, with commas between; default: 1 and, where there "
          "are two cores, 2")
      ->delimiter(',')
      ->check(CLI::Range(1, 1024));
  verb->add_option("--products", a->options.vendor_products,
                   "File of the vendor's library that products on a GPU are timed beside; default: "
                   "libcublasLt.so.13 or .12 where it is installed")
      ->type_name("FILE");
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
