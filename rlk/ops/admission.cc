#include "rlk/ops/admission.h"

#include "rlk/core/environment.h"
#include "rlk/device/device.h"

namespace rlk {

AdmissionKey admission_key(const Contract& contract) {
  AdmissionKey key{program_digest(), device_name(), backward_digest(contract)};
  for (const device::Info& gpu : device::list()) {
    key.device += "; " + gpu.name + " " + gpu.architecture;
  }
  return key;
}

const Admission& Admission::own_kernels() {
  static const Admission kOwn = [] {
    Admission admission({});
    admission.trusts_own_kernels_ = true;
    return admission;
  }();
  return kOwn;
}

void Admission::add(AdmissionEntry entry) {
  entries_[{entry.op, entry.backend}] = std::move(entry);
}

const AdmissionEntry* Admission::find(Op op, std::string_view backend) const {
  const auto it = entries_.find({op, std::string(backend)});
  return it == entries_.end() ? nullptr : &it->second;
}

bool Admission::admitted(Op op, std::string_view backend) const {
  // The reference is the contract, and packing a plan.
  if (backend == "reference" || op == Op::pack_weight) return true;
  if (trusts_own_kernels_ && backend.starts_with("cpu.")) return true;
  const AdmissionEntry* entry = find(op, backend);
  return entry && entry->admitted;
}

std::vector<AdmissionEntry> Admission::entries() const {
  std::vector<AdmissionEntry> out;
  for (const auto& [key, entry] : entries_) out.push_back(entry);
  return out;
}

}  // namespace rlk
