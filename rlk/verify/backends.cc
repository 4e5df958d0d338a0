// The backends of this machine, by name.
#include "rlk/core/error.h"
#include "rlk/device/device.h"
#include "rlk/verify/conform.h"

namespace rlk {

std::vector<const KernelTable*> all_backends() {
  std::vector<const KernelTable*> tables = {&reference_kernels()};
  for (const Isa isa : {Isa::kScalar, Isa::kAvx2, Isa::kAvx512}) {
    if (available(isa)) tables.push_back(&cpu_kernels(isa));
  }
  tables.push_back(&production_kernels());
  for (const device::Info& gpu : device::list()) {
    if (gpu.index > 0) break;  // the first device runs them
    tables.push_back(&gpu_kernels_on_host_memory());
    if (gpu.architecture == "sm_90") tables.push_back(&gpu_kernels_sm90_on_host_memory());
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
  const KernelTable& gpu = gpu_kernels_on_host_memory();
  const KernelTable& sm90 = gpu_kernels_sm90_on_host_memory();
  if (name == gpu.backend || name == "cuda" || name == sm90.backend) {
    device::require();
    if (name != sm90.backend) return gpu;
    fail(ErrorCode::kNotAvailable, "backend {}: this GPU is {}; it runs {}", name,
         device::list().front().architecture, names);
  }
  fail(ErrorCode::kInvalidArgument, "unknown backend \"{}\"; this machine has {}", name, names);
}

}  // namespace rlk
