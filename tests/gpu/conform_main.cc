// rlk_gpu_conform [PROFILE] [OP...]: conformance of the GPU backend of one profile, portable unless
// said otherwise, alone, for machines without the libraries that rlk needs. Prints one line per
// operator, and last "N passed, N failed".
#include <chrono>
#include <string_view>

#include <fmt/format.h>

#include "rlk/core/error.h"
#include "rlk/device/device.h"
#include "rlk/verify/conform.h"

namespace {

rlk::Op find_op(std::string_view name) {
  for (int i = 0; i < rlk::kNumOps; ++i) {
    if (name == to_string(static_cast<rlk::Op>(i))) return static_cast<rlk::Op>(i);
  }
  rlk::fail(rlk::ErrorCode::kInvalidArgument, "unknown operator \"{}\"", name);
}

constexpr int kNotAvailable = 3;  // exit code: no GPU, or not the one of the profile

// Profiles that run on one chip only.
struct OfChip {
  rlk::Profile profile;
  std::string_view architecture;
  const rlk::KernelTable& (*kernels)();
};
constexpr OfChip kOfChips[] = {
    {rlk::Profile::kSm90, "sm_90", rlk::gpu_kernels_sm90_on_host_memory},
    {rlk::Profile::kCdna3, "gfx942", rlk::gpu_kernels_cdna3_on_host_memory},
    {rlk::Profile::kCdna2, "gfx90a", rlk::gpu_kernels_cdna2_on_host_memory}};

}  // namespace

int main(int argc, char** argv) {
  try {
    rlk::device::require();
    for (const rlk::device::Info& info : rlk::device::list()) {
      fmt::print("GPU {}: {}, {}, {} processors, driver {}, runtime {}\n", info.index, info.name,
                 info.architecture, info.num_processors, info.driver, info.runtime);
    }
    rlk::ConformOptions options;
    options.backends = {&rlk::gpu_kernels_on_host_memory()};
    int first_op = 1;
    for (const OfChip& chip : kOfChips) {
      if (argc < 2 || argv[1] != std::string_view(to_string(chip.profile))) continue;
      if (!rlk::device::list().front().architecture.starts_with(chip.architecture)) {
        fmt::print("profile {} is for another chip\n", argv[1]);
        return kNotAvailable;
      }
      options.contract.profile = chip.profile;
      options.backends = {&chip.kernels()};
      first_op = 2;
    }
    for (int i = first_op; i < argc; ++i) options.ops.push_back(find_op(argv[i]));
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
