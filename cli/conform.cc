#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "cli/conform_products.h"
#include "cli/verbs.h"
#include "rlk/core/error.h"
#include "rlk/io/files.h"
#include "rlk/ops/backend.h"
#include "rlk/ops/context.h"
#include "rlk/verify/admission_file.h"
#include "rlk/verify/conform.h"

namespace rlk::cli {
namespace {

struct Arguments {
  std::vector<std::string> ops;
  std::vector<std::string> backends;
  std::string contract;
  std::string profile;
  std::string out;
  std::string products;
  std::string model;
  int threads = 2;
  bool json = false;
  bool digest = false;
};

std::vector<const KernelTable*> tables_of(const std::vector<std::string>& names, Profile profile) {
  if (names.empty()) return {&cpu_kernels()};
  if (names == std::vector<std::string>{"all"}) {
    std::vector<const KernelTable*> tables = all_backends(profile);
    std::erase(tables, &reference_kernels());
    return tables;
  }
  std::vector<const KernelTable*> tables;
  for (const std::string& name : names) tables.push_back(&find_backend(name, profile));
  return tables;
}

ConformOptions options_of(const Arguments& a) {
  ConformOptions options;
  if (!a.contract.empty()) options.contract = parse_contract(read_file(a.contract), a.contract);
  if (!a.profile.empty()) options.contract.profile = parse_profile(a.profile);
  for (const std::string& name : a.ops) options.ops.push_back(parse_op(name));
  options.backends = tables_of(a.backends, options.contract.profile);
  options.threads = a.threads;
  return options;
}

void print_table(const Admission& admission) {
  std::int64_t admitted = 0;
  const std::vector<AdmissionEntry> entries = admission.entries();
  for (const AdmissionEntry& entry : entries) {
    admitted += entry.admitted;
    fmt::print("{:<26}{:<12}{:<10}{:>5} vectors\n", to_string(entry.op), entry.backend,
               entry.admitted ? "admitted" : "refused", entry.vectors);
    if (!entry.admitted) fmt::print("    {}\n", entry.reason);
  }
  fmt::print("{} of {} admitted\n", admitted, entries.size());
}

// Kernels that are not ours may be refused, unless they are all that was asked for.
int exit_code_of(const Admission& admission, const std::vector<const KernelTable*>& backends) {
  const bool only_production = backends.size() == 1 && backends[0] == &production_kernels();
  for (const AdmissionEntry& entry : admission.entries()) {
    if (entry.admitted) continue;
    if (only_production || entry.backend != production_kernels().backend) return kDiffers;
  }
  return kOk;
}

// What other backends and operators the record on disk knows stays in it.
Admission merged(const std::string& path, const Admission& admission) {
  if (!file_exists(path)) return admission;
  try {
    Admission all = read_admission(path, admission.key());
    for (AdmissionEntry& entry : admission.entries()) all.add(std::move(entry));
    return all;
  } catch (const Error& e) {
    fmt::print(stderr, "{}; writing a new record\n", e.what());
    return admission;
  }
}

void write_record(const Arguments& a, const Admission& admission) {
  const std::string path = a.out.empty() ? admission_path(admission.key()) : a.out;
  try {
    if (path.empty()) fail(ErrorCode::kIo, "neither XDG_CACHE_HOME nor HOME is set");
    write_admission(path, merged(path, admission));
    fmt::print(stderr, "{}\n", path);
  } catch (const Error& e) {
    if (!a.out.empty()) throw;
    fmt::print(stderr, "the admission record is not written: {}\n", e.what());
  }
}

EngineFlags engine_of(const Arguments& a) {
  EngineFlags flags;
  flags.backend = a.backends.empty() ? "cuda" : a.backends[0];
  flags.profile = a.profile.empty() ? "sm90" : a.profile;
  flags.threads = a.threads;
  return flags;
}

int run(const Arguments& a) {
  if (!a.products.empty()) return conform_products(a.products, a.model, engine_of(a));
  const ConformOptions options = options_of(a);
  if (a.digest) {
    for (const KernelTable* table : options.backends) {
      const std::string digest = conform_digest(options, *table);
      if (a.json) {
        const nlohmann::json out = {{"backend", table->backend}, {"digest", digest}};
        fmt::print("{}\n", out.dump());
      } else {
        fmt::print("{}\n", digest);
      }
    }
    return kOk;
  }
  const Admission admission = conform(options, [](Op op) {
    if (stderr_is_terminal()) fmt::print(stderr, "\r\x1b[K{}", to_string(op));
  });
  if (stderr_is_terminal()) fmt::print(stderr, "\r\x1b[K");
  if (a.json) {
    fmt::print("{}", to_json(admission));
  } else {
    print_table(admission);
  }
  write_record(a, admission);
  return exit_code_of(admission, options.backends);
}

}  // namespace

void add_conform(CLI::App& app, int& exit_code) {
  auto a = std::make_shared<Arguments>();
  CLI::App* verb = app.add_subcommand(
      "conform", "Try kernels for admission to mode strict, against the reference");
  CLI::Option* const ops =
      verb->add_option("--op", a->ops, "Operators, with commas between; default: all")
          ->delimiter(',');
  verb->add_option(
          "--backend,--device", a->backends,
          "With commas between: cpu, cuda or hip (those of the profile on the GPU), or one by its "
          "own name: cpu.scalar, cpu.avx2, cpu.avx512, production, cuda.sm90, reference; all: "
          "every one of this machine but the reference. Default: cpu")
      ->delimiter(',');
  CLI::Option* const contract =
      verb->add_option("--contract", a->contract, "Contract (JSON); default: the built-in one");
  verb->add_option("--profile", a->profile, "In place of the contract's")
      ->check(CLI::IsMember(profile_names()));
  CLI::Option* const products =
      verb->add_option("--products", a->products,
                       "In place of all this try the products of few rows of the vendor's library, "
                       "a file or libcublasLt.so.13, beside those of cuda.sm90, and time them")
          ->type_name("FILE");
  verb->add_option("--model", a->model,
                   "With --products: a Hugging Face folder, of which only config.json is read; "
                   "default: the sizes of Qwen3-8B")
      ->needs(products);
  verb->add_option("--threads", a->threads, "Threads of the kernels that are tried; 0: all")
      ->check(CLI::Range(0, 1024));
  CLI::Option* const out = verb->add_option(
      "--out", a->out, "Admission record (JSON); default: in the user's cache folder");
  CLI::Option* const json = verb->add_flag("--json", a->json, "Print the record");
  CLI::Option* const digest = verb->add_flag(
      "--digest", a->digest,
      "Print one SHA-256 over all results; every build and instruction set gives the same. "
      "Writes no record");
  for (CLI::Option* const other : {ops, contract, out, json, digest}) products->excludes(other);
  verb->callback([a, &exit_code] { exit_code = run(*a); });
}

}  // namespace rlk::cli
