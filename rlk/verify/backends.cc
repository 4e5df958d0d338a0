// The backends of this machine, by name.
#include "rlk/core/error.h"
#include "rlk/device/device.h"
#include "rlk/verify/conform.h"

namespace rlk {
namespace {

// Tables of a GPU, and the chips that they are for; the first runs on any.
struct Gpu {
  const KernelTable& (*kernels)();
  const char* architecture;
};
constexpr Gpu kGpus[] = {{gpu_kernels_on_host_memory, ""},
                         {gpu_kernels_sm90_on_host_memory, "sm_90"},
                         {gpu_kernels_cdna3_on_host_memory, "gfx942"},
                         {gpu_kernels_cdna2_on_host_memory, "gfx90a"}};

}  // namespace

std::vector<const KernelTable*> all_backends() {
  std::vector<const KernelTable*> tables = {&reference_kernels()};
  for (const Isa isa : {Isa::kScalar, Isa::kAvx2, Isa::kAvx512}) {
    if (available(isa)) tables.push_back(&cpu_kernels(isa));
  }
  tables.push_back(&production_kernels());
  for (const device::Info& device : device::list()) {
    if (device.index > 0) break;  // the first device runs them
    for (const Gpu& gpu : kGpus) {
      if (device.architecture.starts_with(gpu.architecture)) tables.push_back(&gpu.kernels());
    }
  }
  return tables;
}

const KernelTable& find_backend(std::string_view name) {
  std::string names;
  for (const KernelTable* table : all_backends()) {
    if (name == table->backend) return *table;
    names += std::string(names.empty() ? "" : ", ") + table->backend;
  }
  for (const Isa isa : {Isa::kScalar, Isa::kAvx2, Isa::kAvx512}) {
    if (name == std::string("cpu.") + to_string(isa)) {
      fail(ErrorCode::kNotAvailable, "backend {}: this CPU has no {}; it runs {}", name,
           to_string(isa), names);
    }
  }
  for (const Gpu& gpu : kGpus) {
    const std::string_view backend = gpu.kernels().backend;
    const bool portable = *gpu.architecture == '\0';
    if (name != backend && !(portable && name == backend.substr(0, backend.find('.')))) continue;
    device::require();
    if (portable) return gpu.kernels();
    fail(ErrorCode::kNotAvailable, "backend {}: this GPU is {}; it runs {}", name,
         device::list().front().architecture, names);
  }
  fail(ErrorCode::kInvalidArgument, "unknown backend \"{}\"; this machine has {}", name, names);
}

}  // namespace rlk
