// conform_digest PROFILE...: the digests of everything the contract's kernels compute for the
// conformance vectors, one line per profile, backend of this CPU and number of threads:
// "portable cpu.avx2 3 <SHA-256>"; in profiles other than portable of the CPU's best alone. As
// `rlk conform --digest`, but a program small enough to be built by every compiler.
#include <cstdio>

#include "rlk/core/error.h"
#include "rlk/verify/conform.h"

namespace {

void print(rlk::Profile profile, const rlk::KernelTable& table, int threads) {
  rlk::ConformOptions options;
  options.contract.profile = profile;
  options.threads = threads;
  std::printf("%s %s %d %s\n", to_string(profile), table.backend, threads,
              rlk::conform_digest(options, table).c_str());
}

void print_portable() {
  print(rlk::Profile::kPortable, rlk::reference_kernels(), 1);
  for (const rlk::Isa isa : rlk::kAllIsas) {
    if (!rlk::available(isa)) continue;
    for (const int threads : {1, 3}) {
      print(rlk::Profile::kPortable, rlk::cpu_kernels(isa), threads);
    }
  }
}

}  // namespace

int main(int argc, char** argv) {
  try {
    for (int i = 1; i < argc; ++i) {
      const rlk::Profile profile = rlk::parse_profile(argv[i]);
      if (profile == rlk::Profile::kPortable) {
        print_portable();
      } else {
        print(profile, rlk::cpu_kernels(), 2);
      }
    }
  } catch (const rlk::Error& e) {
    std::fprintf(stderr, "%s\n", e.what());
    return 1;
  }
}
