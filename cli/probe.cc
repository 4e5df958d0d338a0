#include "cli/probe.h"

#include <memory>
#include <string>

#include <fmt/format.h>
#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "cli/verbs.h"
#include "rlk/core/error.h"
#include "rlk/io/files.h"
#include "rlk/verify/probe.h"

namespace rlk::cli {
namespace {

using numerics::mma::Family;

struct Arguments {
  ProbeOptions options;
  std::string save;
  bool json = false;
};

std::string hex(std::uint32_t bits) { return fmt::format("0x{:08x}", bits); }

void print_table(const ProbeTarget& target, const ProbeReport& report) {
  fmt::print("{}\n{:<25}{:<18}{:>13}{:>13}\n", target.description, "instruction", "family",
             "compared", "different");
  for (const ProbeEntry& entry : report.entries) {
    fmt::print("{:<25}{:<18}{:>13}{:>13}\n", entry.instruction.name, to_string(entry.family),
               with_commas(entry.compared), with_commas(entry.different));
    if (!entry.first) continue;
    const ProbeDifference& d = *entry.first;
    fmt::print("    first: {}, seed {}, {} x {}, k {}: row {}, column {}: device {}, model {}\n",
               to_string(entry.family), d.seed, d.rows, d.columns, d.k, d.row, d.column,
               hex(d.device_bits), hex(d.model_bits));
  }
  for (const ProbeAnswer& answer : report.answers) {
    fmt::print("{:<25}{:<34}{} {}\n", answer.instruction.name, answer.point->question,
               hex(answer.device_bits), answer.as_model() ? "as the model" : "DIFFERS");
    if (answer.as_model()) continue;
    fmt::print("    model {}: {}\n    otherwise {}\n", hex(answer.point->model), answer.point->why,
               answer.point->otherwise);
  }
  fmt::print("{}: {} of {} results differ from the model\n",
             report.different() == 0 ? "equal" : "differs", with_commas(report.different()),
             with_commas(report.compared()));
}

nlohmann::json to_json(const ProbeEntry& entry) {
  nlohmann::json json = {{"instruction", entry.instruction.name},
                         {"family", to_string(entry.family)},
                         {"compared", entry.compared},
                         {"different", entry.different}};
  if (entry.first) {
    const ProbeDifference& d = *entry.first;
    json["first"] = {{"seed", d.seed},
                     {"rows", d.rows},
                     {"columns", d.columns},
                     {"k", d.k},
                     {"row", d.row},
                     {"column", d.column},
                     {"device_bits", hex(d.device_bits)},
                     {"model_bits", hex(d.model_bits)}};
  }
  return json;
}

void print_json(const ProbeTarget& target, const ProbeReport& report) {
  nlohmann::json json = {{"device", target.description},
                         {"status", report.different() == 0 ? "equal" : "differs"},
                         {"compared", report.compared()},
                         {"different", report.different()},
                         {"results", nlohmann::json::array()}};
  for (const ProbeEntry& entry : report.entries) json["results"].push_back(to_json(entry));
  json["open_points"] = nlohmann::json::array();
  for (const ProbeAnswer& answer : report.answers) {
    json["open_points"].push_back({{"instruction", answer.instruction.name},
                                   {"question", answer.point->question},
                                   {"device_bits", hex(answer.device_bits)},
                                   {"model_bits", hex(answer.point->model)},
                                   {"why", answer.point->why},
                                   {"otherwise", answer.point->otherwise}});
  }
  fmt::print("{}\n", json.dump(2));
}

int run(const Arguments& a, const ProbeTarget& target) {
  ProbeOptions options = a.options;
  options.instructions = target.instructions;
  options.progress = [](const RawInstruction& instruction, Family family) {
    if (!stderr_is_terminal()) return;
    fmt::print(stderr, "\r\x1b[K{}, {}", instruction.name, to_string(family));
  };
  if (!a.save.empty()) make_directories(a.save);
  const ProbeReport report = probe(options);
  if (stderr_is_terminal()) fmt::print(stderr, "\r\x1b[K");
  if (!a.save.empty()) {
    for (const ProbeFile& file : report.files) {
      const std::string path = join_path(a.save, file.name);
      write_file(path, file.bytes);
      fmt::print(stderr, "{}\n", path);
    }
  }
  if (a.json) {
    print_json(target, report);
  } else {
    print_table(target, report);
  }
  return report.different() == 0 ? kOk : kDiffers;
}

}  // namespace

ProbeTarget probe_gpu() {
  const device::Info info = device::selected();
  const ProbeTarget target = {
      fmt::format("{}, {}, driver for CUDA {}", info.name, info.architecture, info.driver),
      raw_instructions(info)};
  if (target.instructions.empty()) {
    fail(ErrorCode::kNotAvailable, "no matrix instruction of {} ({}) is known to this build",
         info.name, info.architecture);
  }
  return target;
}

void set_up_probe(CLI::App& verb, int& exit_code, ProbeTarget (*target)()) {
  auto a = std::make_shared<Arguments>();
  verb.add_option("--save", a->save, "Also write the raw results, a file per instruction")
      ->type_name("FOLDER");
  verb.add_option("--rows", a->options.rows, "Rows and columns of the random inputs")
      ->check(CLI::Range(64, 16384))
      ->capture_default_str();
  verb.add_option("--seed", a->options.seed, "Of the random inputs")->capture_default_str();
  verb.add_option("--threads", a->options.threads, "Threads that compute the model; 0: all")
      ->check(CLI::Range(0, 1024))
      ->capture_default_str();
  verb.add_flag("--json", a->json, "Print JSON");
  verb.callback([a, &exit_code, target] { exit_code = run(*a, target()); });
}

void add_probe(CLI::App& app, int& exit_code) {
  set_up_probe(
      *app.add_subcommand("probe", "Compare the GPU's matrix instructions with their CPU models"),
      exit_code, probe_gpu);
}

}  // namespace rlk::cli
