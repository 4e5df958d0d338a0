#include "cli/engine.h"

#include <string>
#include <vector>

#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include "rlk/ops/backend.h"
#include "rlk/verify/admission_file.h"

namespace rlk::cli {

std::vector<std::string> profile_names() {
  std::vector<std::string> names;
  for (const Profile profile : kAllProfiles) names.emplace_back(to_string(profile));
  return names;
}

Contract EngineFlags::contract() const {
  Contract contract;
  contract.profile = parse_profile(profile);
  return contract;
}

void add_engine_flags(CLI::App& verb, EngineFlags& flags) {
  verb.add_option("--backend,--device", flags.backend,
                  "Kernels: cpu, cuda or hip (those of the profile on the GPU), or one by its "
                  "own name: cpu.avx2, cuda.sm90, reference")
      ->capture_default_str();
  verb.add_option("--profile", flags.profile, "Of the contract: how products multiply and add")
      ->check(CLI::IsMember(profile_names()))
      ->capture_default_str();
  verb.add_option("--route", flags.route,
                  "strict: the contract's kernels; production: the usual fast kernels")
      ->check(CLI::IsMember({"strict", "production"}))
      ->capture_default_str();
  verb.add_option("--threads", flags.threads, "0: one per hardware thread")->capture_default_str();
}

void say_of_admission(const std::string& line) { fmt::print(stderr, "rlk: {}\n", line); }

std::unique_ptr<Context> make_context(const EngineFlags& flags) {
  const Contract contract = flags.contract();
  const Modes modes = all_ops(flags.route == "strict" ? Mode::kStrict : Mode::kOff);
  const KernelTable& kernels = find_backend(flags.backend, contract.profile);
  const Admission admission =
      admission_for(contract, {{kernels, modes}}, Admission::own_kernels(), say_of_admission);
  return std::make_unique<Context>(contract, modes, flags.threads, &kernels, admission);
}

}  // namespace rlk::cli
