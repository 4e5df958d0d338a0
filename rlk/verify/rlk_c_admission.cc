#include "rlk/ops/rlk_c_admission.h"

#include <map>
#include <mutex>
#include <string>
#include <utility>

#include "rlk/verify/conform.h"

namespace rlk::c {

Admission admission_for(const KernelTable& kernels, const Contract& contract) {
  if (Admission::own_kernels().admitted(Op::gemm, kernels.backend)) {
    return Admission::own_kernels();
  }
  static std::mutex mutex;
  static std::map<std::pair<std::string, std::string>, Admission> tried;
  const std::lock_guard lock(mutex);
  const std::pair<std::string, std::string> key(kernels.backend, backward_digest(contract));
  auto found = tried.find(key);
  if (found == tried.end()) {
    found = tried.emplace(key, conform({.contract = contract, .backends = {&kernels}})).first;
  }
  return found->second;
}

}  // namespace rlk::c
