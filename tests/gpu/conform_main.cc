// rlk_gpu_conform [PROFILE] [OP...]: conformance of the GPU backend of one profile, portable unless
// said otherwise, alone, for machines without the libraries that rlk needs. Prints one line per
// operator, and last "N passed, N failed".
#include <chrono>
#include <string_view>

#include <fmt/format.h>

#include "rlk/core/error.h"
#include "rlk/device/device.h"
#include "rlk/ops/backend.h"
#include "rlk/ops/context.h"
#include "rlk/verify/conform.h"

namespace {

constexpr int kNotAvailable = 3;  // exit code: no GPU, or not the one of the profile

// Whether the text names a profile.
bool parse(std::string_view text, rlk::Profile* profile) {
  for (const rlk::Profile known : rlk::kAllProfiles) {
    if (text != to_string(known)) continue;
    *profile = known;
    return true;
  }
  return false;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    rlk::device::require();
    for (const rlk::device::Info& info : rlk::device::list()) {
      fmt::print("GPU {}: {}, {}, {} processors, driver {}, runtime {}\n", info.index, info.name,
                 info.architecture, info.num_processors, info.driver, info.runtime);
    }
    rlk::ConformOptions options;
    const int first_op = argc > 1 && parse(argv[1], &options.contract.profile) ? 2 : 1;
    options.backends = {&rlk::find_backend(rlk::gpu_kernels(options.contract.profile).backend)};
    for (int i = first_op; i < argc; ++i) options.ops.push_back(rlk::parse_op(argv[i]));
    auto last = std::chrono::steady_clock::now();
    const rlk::Admission admission = rlk::conform(options, [&](rlk::Op op) {
      const auto now = std::chrono::steady_clock::now();
      const std::chrono::duration<double> seconds = now - last;
      fmt::print(stderr, "{} {:.2f} s\n", to_string(op), seconds.count());
      last = now;
    });
    int passed = 0;
    int failed = 0;
    for (const rlk::AdmissionEntry& entry : admission.entries()) {
      ++(entry.admitted ? passed : failed);
      fmt::print("{:<26}{:<15}{:<9}{:>5} vectors\n", to_string(entry.op), entry.backend,
                 entry.admitted ? "admitted" : "refused", entry.vectors);
      if (!entry.admitted) fmt::print("    {}\n", entry.reason);
    }
    fmt::print("{} passed, {} failed\n", passed, failed);
    return failed == 0 && passed > 0 ? 0 : 1;
  } catch (const rlk::Error& e) {
    fmt::print(stderr, "{}\n", e.what());
    return e.code() == rlk::ErrorCode::kNotAvailable ? kNotAvailable : 2;
  }
}
