#include "rlk/core/doctor.h"

#include <cfenv>
#include <cstdint>

#include <algorithm>
#include <map>

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

#include "rlk/core/environment.h"
#include "rlk/core/error.h"

extern char** environ;

namespace rlk {
namespace {

struct Rule {
  std::string_view name;  // with a * at its end: every variable that begins so
  Severity severity;
  const char* why;
  const char* advice;
};

constexpr Severity kNote = Severity::kNote;
constexpr Severity kProduction = Severity::kProduction;
constexpr Severity kRefusedGpu = Severity::kRefusedGpu;
constexpr Severity kRefused = Severity::kRefused;

constexpr const char* kUnset = "unset it";
constexpr const char* kChoosesGemm = "another kernel, with another order of its sums, is chosen";
constexpr const char* kMovesBytes =
    "chooses how collectives travel; ours move bytes and add in a fixed order, a library's own sum "
    "gets other bits";

// The first that fits.
constexpr Rule kRules[] = {
    {"LD_PRELOAD", kProduction, "a library stands before those of this build", kUnset},
    {"HSA_OVERRIDE_GFX_VERSION", kRefusedGpu,
     "the GPU is taken for another one: its profile, and code of another chip, would be used",
     "unset it, and build for the chip that rocminfo names"},
    {"CUDA_FORCE_PTX_JIT", kRefusedGpu,
     "the driver compiles the kernels anew instead of loading those that were tested", kUnset},
    {"HSA_XNACK", kNote,
     "0 leaves the memory of engines on the host, where kernels reach it slowly: no other bits",
     "HSA_XNACK=1 for engines on CDNA"},
    {"HSA_ENABLE_SDMA", kNote,
     "0 copies by kernels instead of the copy engines, a workaround for hangs: no other bits",
     "unset it unless copies hang"},
    {"HIP_VISIBLE_DEVICES", kNote, "device 0 is the first of this list", "one die per process"},
    {"ROCR_VISIBLE_DEVICES", kNote, "device 0 is the first of this list", "one die per process"},
    {"CUDA_VISIBLE_DEVICES", kNote, "device 0 is the first of this list", "one GPU per process"},
    {"GPU_DEVICE_ORDINAL", kNote, "device 0 is the first of this list", "HIP_VISIBLE_DEVICES"},
    {"MIOPEN_FIND_MODE", kProduction, "MIOpen chooses its solver by another search",
     "unset it, or MIOPEN_FIND_MODE=1 for every process alike"},
    {"MIOPEN_*", kProduction, "MIOpen is bound to a solver, or kept from one", kUnset},
    {"HIPBLASLT_TUNING_OVERRIDE_FILE", kProduction, kChoosesGemm, kUnset},
    {"HIPBLASLT_TENSILE_LIBPATH", kProduction, kChoosesGemm, kUnset},
    {"HIPBLASLT_*", kProduction, "changes how hipBLASLt chooses or logs", kUnset},
    {"ROCBLAS_TENSILE_LIBPATH", kProduction, kChoosesGemm, kUnset},
    {"ROCBLAS_TENSILE_GEMM_OVERRIDE_PATH", kProduction, kChoosesGemm, kUnset},
    {"ROCBLAS_DEFAULT_ATOMICS_MODE", kProduction, "sums by float atomics have no order",
     "ROCBLAS_DEFAULT_ATOMICS_MODE=0"},
    {"ROCBLAS_*", kProduction, "changes how rocBLAS chooses or logs", kUnset},
    {"TENSILE_*", kProduction, kChoosesGemm, kUnset},
    {"NCCL_ALGO", kProduction, kMovesBytes, kUnset},
    {"NCCL_PROTO", kProduction, kMovesBytes, kUnset},
    {"NCCL_NVLS_ENABLE", kProduction, "sums in the switch flush subnormals", "NCCL_NVLS_ENABLE=0"},
    {"NCCL_*", kNote, kMovesBytes, "the same for every rank"},
    {"RCCL_*", kNote, kMovesBytes, "the same for every rank"},
    {"CUBLAS_WORKSPACE_CONFIG", kProduction, "cuBLAS splits sums by the workspace it has",
     "the same for every process, :4096:8"},
    {"NVIDIA_TF32_OVERRIDE", kProduction, "f32 products are rounded to TF32, or never are", kUnset},
    {"CUDA_LAUNCH_BLOCKING", kNote, "every launch is waited for: slow, no other bits", kUnset},
    {"OPENBLAS_CORETYPE", kProduction, kChoosesGemm, kUnset},
    {"OPENBLAS_NUM_THREADS", kProduction, "OpenBLAS cuts sums by its threads", kUnset},
    {"OMP_NUM_THREADS", kProduction, "libraries cut sums by their threads", kUnset},
    {"ONEDNN_DEFAULT_FPMATH_MODE", kProduction, "f32 products are rounded to a shorter type",
     kUnset},
    {"ONEDNN_MAX_CPU_ISA", kProduction, kChoosesGemm, kUnset},
    {"DNNL_DEFAULT_FPMATH_MODE", kProduction, "f32 products are rounded to a shorter type", kUnset},
    {"DNNL_MAX_CPU_ISA", kProduction, kChoosesGemm, kUnset},
    {"MKL_*", kProduction, kChoosesGemm, kUnset},
    {"GLIBC_TUNABLES", kProduction, "the C library may take other functions; ours are not its",
     kUnset},
};

bool fits(const Rule& rule, std::string_view name) {
  if (!rule.name.ends_with('*')) return rule.name == name;
  return name.starts_with(rule.name.substr(0, rule.name.size() - 1));
}

const Rule* rule_of(std::string_view name) {
  for (const Rule& rule : kRules) {
    if (fits(rule, name)) return &rule;
  }
  return nullptr;
}

void add_variables(std::vector<Finding>& out) {
  for (char** entry = environ; entry != nullptr && *entry != nullptr; ++entry) {
    const std::string_view text(*entry);
    const std::size_t equals = text.find('=');
    if (equals == std::string_view::npos || equals + 1 == text.size()) continue;
    const Rule* rule = rule_of(text.substr(0, equals));
    if (!rule) continue;
    out.push_back({rule->severity, std::string(text.substr(0, equals)),
                   std::string(text.substr(equals + 1)), rule->why, rule->advice});
  }
}

// Kernels are compiled for two roundings, nearest even and gradual underflow; some libraries switch
// the processor over when they are loaded.
void add_mode(std::vector<Finding>& out) {
  const auto add = [&](const char* value, const char* why) {
    out.push_back({kRefused, "floating-point mode", value, why,
                   "load no library that was linked with -ffast-math"});
  };
  if (std::fegetround() != FE_TONEAREST) add("rounding", "results are not rounded to nearest even");
#if defined(__x86_64__)
  if ((_mm_getcsr() & 0x8040) != 0) add("flushing", "subnormal numbers are taken for zeros");
#endif
}

// What the flags should have prevented.
void add_compiled(std::vector<Finding>& out) {
  volatile float x = 1.0f + 0x1p-12f, y = 1.0f + 0x1p-11f, large = 0x1p25f, one = 1.0f;
  if (x * x - y != 0.0f) {
    out.push_back({kRefused, "build flags", "contraction", "a product and a sum are rounded once",
                   "-ffp-contract=off"});
  }
  if ((large + one) - large != 0.0f) {
    out.push_back({kRefused, "build flags", "reassociation", "sums are taken in another order",
                   "-fno-fast-math"});
  }
}

}  // namespace

const char* to_string(Severity severity) {
  constexpr const char* kNames[] = {"note", "production", "refused_gpu", "refused"};
  return kNames[static_cast<int>(severity)];
}

std::vector<Finding> diagnose_flags(std::string_view flags) {
  // Switches that each allow another result; the first is what the compilers do without one.
  std::string contraction = "-ffp-contract=fast";
  std::map<std::string, bool, std::less<>> on;
  constexpr const char* kParts[] = {"fast-math",        "unsafe-math-optimizations",
                                    "associative-math", "reciprocal-math",
                                    "finite-math-only", "approx-func"};
  while (!flags.empty()) {
    const std::size_t end = std::min(flags.find(' '), flags.size());
    const std::string_view flag = flags.substr(0, end);
    flags.remove_prefix(std::min(end + 1, flags.size()));
    if (flag.starts_with("-ffp-contract=")) contraction = flag;
    if (flag == "-Ofast") on["fast-math"] = true;
    if (flag == "-Ofast" || flag == "-ffast-math") contraction = "-ffp-contract=fast";
    for (const char* part : kParts) {
      if (flag == fmt::format("-f{}", part)) on[part] = true;
      if (flag == fmt::format("-fno-{}", part)) on[part] = false;
    }
  }
  std::vector<Finding> out;
  if (contraction != "-ffp-contract=off") {
    out.push_back({kRefused, "build flags", contraction, "a product and a sum may be rounded once",
                   "-ffp-contract=off"});
  }
  for (const auto& [part, set] : on) {
    if (!set) continue;
    out.push_back({kRefused, "build flags", "-f" + part,
                   "the compiler may take other operations than those written", "-fno-" + part});
  }
  return out;
}

std::vector<Finding> diagnose() {
  std::vector<Finding> out = diagnose_flags(build_flags());
  add_compiled(out);
  add_mode(out);
  add_variables(out);
  std::stable_sort(out.begin(), out.end(), [](const Finding& a, const Finding& b) {
    return a.severity != b.severity ? a.severity > b.severity : a.subject < b.subject;
  });
  return out;
}

bool is_diagnosed(std::string_view variable) { return rule_of(variable) != nullptr; }

void require_strict_environment(bool on_gpu) {
  for (const Finding& f : diagnose()) {
    const bool refused = f.severity == kRefused || (on_gpu && f.severity == kRefusedGpu);
    if (!refused) continue;
    fail(ErrorCode::kNotAvailable, "route strict: {} is \"{}\": {}; {} (`rlk doctor` lists all)",
         f.subject, f.value, f.why, f.advice);
  }
}

}  // namespace rlk
