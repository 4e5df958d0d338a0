#include <memory>
#include <string>

#include <CLI/CLI.hpp>
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "cli/verbs.h"
#include "rlk/contract/contract.h"
#include "rlk/io/files.h"

namespace rlk::cli {
namespace {

Contract load(const std::string& path) {
  return path.empty() ? Contract() : parse_contract(read_file(path), path);
}

int diff(const std::string& path_a, const std::string& path_b, bool json) {
  const Contract a = load(path_a), b = load(path_b);
  const std::vector<std::string> lines = differences(a, b);
  if (json) {
    const nlohmann::json out = {{"equal", lines.empty()},
                                {"forward_equal", forward_digest(a) == forward_digest(b)},
                                {"backward_equal", backward_digest(a) == backward_digest(b)},
                                {"differences", lines}};
    fmt::print("{}\n", out.dump());
  } else {
    for (const std::string& line : lines) fmt::print("{}\n", line);
    fmt::print("forward {}, backward {}\n",
               forward_digest(a) == forward_digest(b) ? "equal" : "differs",
               backward_digest(a) == backward_digest(b) ? "equal" : "differs");
  }
  return lines.empty() ? kOk : kDiffers;
}

}  // namespace

void add_contract(CLI::App& app, int& exit_code) {
  struct Arguments {
    std::string a, b;
    bool json = false;
  };
  auto args = std::make_shared<Arguments>();
  CLI::App* verb = app.add_subcommand(
      "contract", "Show a numerical execution contract, its digests, or what differs between two");
  verb->require_subcommand(1);

  CLI::App* show = verb->add_subcommand("show", "Print the contract as canonical JSON");
  show->add_option("file", args->a, "Contract (JSON); default: the built-in one");
  show->add_flag("--json", args->json, "JSON is the only form; accepted for symmetry");
  show->callback([args, &exit_code] {
    fmt::print("{}\n", canonical_json(load(args->a)));
    exit_code = kOk;
  });

  CLI::App* digest = verb->add_subcommand("digest", "Print the forward and backward digests");
  digest->add_option("file", args->a, "Contract (JSON); default: the built-in one");
  digest->add_flag("--json", args->json, "Print as JSON");
  digest->callback([args, &exit_code] {
    const Contract c = load(args->a);
    if (args->json) {
      const nlohmann::json out = {{"forward", forward_digest(c)}, {"backward", backward_digest(c)}};
      fmt::print("{}\n", out.dump());
    } else {
      fmt::print("forward  {}\nbackward {}\n", forward_digest(c), backward_digest(c));
    }
    exit_code = kOk;
  });

  CLI::App* differ = verb->add_subcommand("diff", "List the fields in which two contracts differ");
  differ->add_option("a", args->a, "Contract (JSON)")->required();
  differ->add_option("b", args->b, "Contract (JSON)")->required();
  differ->add_flag("--json", args->json, "Print as JSON");
  differ->callback([args, &exit_code] { exit_code = diff(args->a, args->b, args->json); });
}

}  // namespace rlk::cli
