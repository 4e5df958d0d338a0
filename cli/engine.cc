#include "cli/engine.h"

#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include "rlk/ops/backend.h"
#include "rlk/verify/admission_file.h"

namespace rlk::cli {

Contract EngineFlags::contract() const {
  Contract contract;
  contract.profile = parse_profile(profile);
  return contract;
}

void add_engine_flags(CLI::App& verb, EngineFlags& flags) {
  verb.add_option(
          "--backend", flags.backend,
          "Kernels: cpu, cuda or hip (those of the profile on the first GPU), or one by its "
          "own name: cpu.avx2, cuda.sm90, reference")
      ->capture_default_str();
  verb.add_option("--profile", flags.profile, "Of the contract: how products multiply and add")
      ->check(CLI::IsMember({"portable", "sm90", "cdna3", "cdna2"}))
      ->capture_default_str();
  verb.add_option("--route", flags.route,
                  "strict: the contract's kernels; production: the usual fast kernels")
      ->check(CLI::IsMember({"strict", "production"}))
      ->capture_default_str();
  verb.add_option("--threads", flags.threads, "0: one per hardware thread")->capture_default_str();
}

Admission admission_of(const std::vector<std::string>& backends, const Contract& contract) {
  return load_or_conform(contract, backends,
                         [](const std::string& line) { fmt::print(stderr, "rlk: {}\n", line); });
}

std::unique_ptr<Context> make_context(const EngineFlags& flags) {
  const Contract contract = flags.contract();
  const Modes modes = all_ops(flags.route == "strict" ? Mode::kStrict : Mode::kOff);
  const KernelTable& kernels = engine_kernels(flags.backend, contract.profile);
  if (!kernels.on_device || flags.route != "strict") {
    return std::make_unique<Context>(contract, modes, flags.threads, &kernels);
  }
  return std::make_unique<Context>(contract, modes, flags.threads, &kernels,
                                   admission_of({kernels.backend}, contract));
}

}  // namespace rlk::cli
