// The digest of everything the contract's kernels compute for the conformance vectors, one line per
// backend of this CPU and number of threads: "cpu.avx2 3 <SHA-256>". As `rlk conform --digest`, but
// a program small enough to be built by every compiler.
#include <cstdio>

#include "rlk/core/error.h"
#include "rlk/verify/conform.h"

namespace {

void print(const rlk::KernelTable& table, int threads) {
  rlk::ConformOptions options;
  options.threads = threads;
  std::printf("%s %d %s\n", table.backend, threads, rlk::conform_digest(options, table).c_str());
}

}  // namespace

int main() {
  try {
    print(rlk::reference_kernels(), 1);
    for (const rlk::Isa isa : {rlk::Isa::kScalar, rlk::Isa::kAvx2, rlk::Isa::kAvx512}) {
      if (!rlk::available(isa)) continue;
      for (const int threads : {1, 3}) print(rlk::cpu_kernels(isa), threads);
    }
  } catch (const rlk::Error& e) {
    std::fprintf(stderr, "%s\n", e.what());
    return 1;
  }
}
