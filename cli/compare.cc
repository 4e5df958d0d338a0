#include <filesystem>
#include <memory>
#include <string>

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include "cli/verbs.h"
#include "rlk/compare/compare.h"
#include "rlk/compare/record_file.h"
#include "rlk/core/error.h"
#include "rlk/rl/run_records.h"

namespace rlk::cli {
namespace {

struct Arguments {
  std::string a;
  std::string b;
  bool json = false;
};

// A run folder or its database; anything else is a record file.
bool is_run(const std::string& path) {
  return std::filesystem::is_directory(path) || path.ends_with(".db");
}

template <typename Result>
int print(const Result& result, CompareStatus status, bool json) {
  fmt::print("{}\n", json ? to_json(result) : to_text(result));
  return exit_code(status);
}

int run(const Arguments& a) {
  for (const std::string& path : {a.a, a.b}) {
    if (!path.empty() && !std::filesystem::exists(path)) {
      fail(ErrorCode::kIo, "compare: {}: no such file or folder", path);
    }
  }
  if (a.b.empty()) {
    if (!is_run(a.a)) {
      fail(ErrorCode::kInvalidArgument, "compare: {} is a record file; a second one is needed",
           a.a);
    }
    const Comparison c = compare_sides(RunDb::open_read_only(run_db_path(a.a)));
    return print(c, c.status, a.json);
  }
  if (is_run(a.a) != is_run(a.b)) {
    fail(ErrorCode::kInvalidArgument, "compare: {} and {}: one is a run, the other a record file",
         a.a, a.b);
  }
  if (is_run(a.a)) {
    const RunComparison c = compare_runs(RunDb::open_read_only(run_db_path(a.a)),
                                         RunDb::open_read_only(run_db_path(a.b)));
    return print(c, c.status(), a.json);
  }
  const Comparison c = compare(read_record(a.a), read_record(a.b));
  return print(c, c.status, a.json);
}

}  // namespace

void add_compare(CLI::App& app, int& exit_code) {
  auto a = std::make_shared<Arguments>();
  CLI::App* verb = app.add_subcommand(
      "compare",
      "Compare log-probabilities byte for byte: two record files, two runs, or the two sides of "
      "one run");
  verb->add_option("a", a->a, "Record file (JSON lines), run folder or run.db")->required();
  verb->add_option("b", a->b, "The other; left out: rollout against trainer inside run A");
  verb->add_flag("--json", a->json, "Print the comparison as JSON");
  verb->footer("Exit codes: 0 equal, 1 differs, 2 bad input, not comparable or nothing compared.");
  verb->callback([a, &exit_code] { exit_code = run(*a); });
}

}  // namespace rlk::cli
