#include "rlk/ops/backend.h"

#include <array>
#include <string>

#include "rlk/core/error.h"
#include "rlk/device/device.h"

namespace rlk {
namespace {

struct Gpu {
  const KernelTable& (*kernels)();
  Profile profile;
  const char* architecture;  // empty: any
};
constexpr std::array kGpus = {Gpu{gpu_kernels, Profile::kPortable, ""},
                              Gpu{gpu_kernels_sm90, Profile::kSm90, "sm_90"},
                              Gpu{gpu_kernels_cdna3, Profile::kCdna3, "gfx942"},
                              Gpu{gpu_kernels_cdna2, Profile::kCdna2, "gfx90a"}};

// "cuda" of "cuda.sm90".
std::string_view vendor_of(std::string_view backend) {
  return backend.substr(0, backend.find('.'));
}

const KernelTable& available_kernels(const Gpu& gpu) {
  const KernelTable& table = gpu.kernels();
  device::require();
  if (!table.on_device) {
    fail(ErrorCode::kNotAvailable, "backend {}: this build has no kernels of it", table.backend);
  }
  const std::string architecture = device::list().front().architecture;
  if (!architecture.starts_with(gpu.architecture)) {
    fail(ErrorCode::kNotAvailable, "backend {}: it runs on {}, this GPU is {}", table.backend,
         gpu.architecture, architecture);
  }
  return table;
}

}  // namespace

const KernelTable& engine_kernels(std::string_view name, Profile profile) {
  if (name == "cpu") return cpu_kernels();
  if (name == reference_kernels().backend) return reference_kernels();
  std::string names = "cpu, reference";
  for (const Isa isa : {Isa::kScalar, Isa::kAvx2, Isa::kAvx512}) {
    const std::string backend = std::string("cpu.") + to_string(isa);
    names += ", " + backend;
    if (name != backend) continue;
    if (available(isa)) return cpu_kernels(isa);
    fail(ErrorCode::kNotAvailable, "backend {}: this CPU has no {}", name, to_string(isa));
  }
  bool vendor = false;
  for (const Gpu& gpu : kGpus) {
    const std::string_view backend = gpu.kernels().backend;
    if (name == backend) return available_kernels(gpu);
    vendor = vendor || name == vendor_of(backend);
    if (name == vendor_of(backend) && profile == gpu.profile) return available_kernels(gpu);
    names += ", " + std::string(backend);
  }
  if (name == "cuda" || name == "hip") {
    fail(ErrorCode::kNotAvailable, "backend {}: {} profile {} with it", name,
         vendor ? "no GPU of this vendor runs" : "this build does not run", to_string(profile));
  }
  fail(ErrorCode::kInvalidArgument, "unknown backend \"{}\"; there are {}, cuda and hip", name,
       names);
}

}  // namespace rlk
