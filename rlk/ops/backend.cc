#include "rlk/ops/backend.h"

#include <string>

#include "rlk/core/error.h"
#include "rlk/device/device.h"

namespace rlk {
namespace {

std::string cpu_name(Isa isa) { return std::string("cpu.") + to_string(isa); }

// "cuda" of "cuda.sm90".
std::string_view vendor_of(const KernelTable& table) {
  const std::string_view backend = table.backend;
  return backend.substr(0, backend.find('.'));
}

bool runs_on(const device::Info& gpu, const KernelTable& table) {
  return table.on_device && gpu.architecture.starts_with(table.architecture);
}

const KernelTable& on_this_gpu(const KernelTable& table) {
  const device::Info gpu = device::selected();
  if (runs_on(gpu, table)) return table;
  if (!table.on_device) {
    fail(ErrorCode::kNotAvailable, "backend {}: this build has no kernels of it", table.backend);
  }
  fail(ErrorCode::kNotAvailable, "backend {}: it runs on {}, this GPU is {}", table.backend,
       table.architecture, gpu.architecture);
}

}  // namespace

const KernelTable& find_backend(std::string_view name, Profile profile) {
  if (name == "cpu") return cpu_kernels();
  std::string names = "cpu, cuda, hip";
  const auto is = [&](const std::string& backend) {
    names += ", " + backend;
    return name == backend;
  };
  if (is(reference_kernels().backend)) return reference_kernels();
  for (const Isa isa : kAllIsas) {
    if (!is(cpu_name(isa))) continue;
    if (available(isa)) return cpu_kernels(isa);
    fail(ErrorCode::kNotAvailable, "backend {}: this CPU has no {}", name, to_string(isa));
  }
  if (is(production_kernels().backend)) return production_kernels();
  bool vendor = false;
  for (const Profile of : kAllProfiles) {
    const KernelTable& table = gpu_kernels(of);
    if (is(table.backend)) return on_this_gpu(table);
    if (name != vendor_of(table)) continue;
    if (of == profile) return on_this_gpu(table);
    vendor = true;
  }
  if (name == "cuda" || name == "hip") {
    fail(ErrorCode::kNotAvailable, "backend {}: {} profile {} with it", name,
         vendor ? "no GPU of this vendor runs" : "this build does not run", to_string(profile));
  }
  fail(ErrorCode::kInvalidArgument, "unknown backend \"{}\"; there are {}", name, names);
}

Profile matrix_profile() {
  if (device::list().empty()) return Profile::kPortable;
  const device::Info gpu = device::selected();
  for (const Profile profile : kAllProfiles) {
    if (profile != Profile::kPortable && runs_on(gpu, gpu_kernels(profile))) return profile;
  }
  return Profile::kPortable;
}

std::vector<const KernelTable*> all_backends(Profile profile) {
  std::vector<const KernelTable*> tables;
  const auto add = [&](const KernelTable& table) {
    if (table.runs(profile)) tables.push_back(&table);
  };
  add(reference_kernels());
  for (const Isa isa : kAllIsas) {
    if (available(isa)) add(cpu_kernels(isa));
  }
  add(production_kernels());
  const KernelTable& gpu = gpu_kernels(profile);
  if (!device::list().empty() && runs_on(device::selected(), gpu)) add(gpu);
  return tables;
}

}  // namespace rlk
