#include "rlk/core/environment.h"

#include <dlfcn.h>
#include <gnu/libc-version.h>
#include <sched.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <fstream>
#include <optional>
#include <string_view>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "rlk/core/digest.h"
#include "rlk/core/doctor.h"

extern char** environ;

namespace rlk {
namespace {

using nlohmann::json;

// CPU features by which our kernels, OpenBLAS or oneDNN choose their code.
constexpr std::string_view kCpuFlags[] = {
    "sse2",     "ssse3",       "sse4_1",      "sse4_2",      "avx",      "avx2",     "fma",
    "f16c",     "bmi2",        "avx_vnni",    "avx512f",     "avx512bw", "avx512dq", "avx512vl",
    "avx512cd", "avx512_vnni", "avx512_bf16", "avx512_fp16", "amx_tile", "amx_bf16", "amx_int8",
    "asimd",    "asimdhp",     "sve",         "sve2",        "bf16",     "i8mm",
};

// Environment variables that choose threads, code paths or roundings in a library or a driver.
constexpr std::string_view kVariablePrefixes[] = {
    "OPENBLAS_", "OMP_",       "GOMP_",   "KMP_",    "DNNL_",    "ONEDNN_", "MKL_",
    "RLK_",      "CUDA_",      "CUBLAS_", "NVIDIA_", "NCCL_",    "HIP_",    "HSA_",
    "ROCBLAS_",  "HIPBLASLT_", "MIOPEN_", "RCCL_",   "GPU_MAX_", "BLAS_",
};
constexpr std::string_view kVariables[] = {"GOTO_NUM_THREADS", "GLIBC_TUNABLES",
                                           "MALLOC_ARENA_MAX"};

template <typename Function>
Function* loaded(const char* name) {
  return reinterpret_cast<Function*>(dlsym(RTLD_DEFAULT, name));
}

// What follows "name :" in the first such line of a file of /proc or /etc.
std::optional<std::string> field(const char* path, std::string_view name, char separator) {
  std::ifstream in(path);
  for (std::string line; std::getline(in, line);) {
    const std::size_t at = line.find(separator);
    if (at == std::string::npos) continue;
    std::string_view key(line.data(), at);
    while (!key.empty() && (key.back() == ' ' || key.back() == '\t')) key.remove_suffix(1);
    if (key != name) continue;
    std::string value = line.substr(at + 1);
    const std::size_t begin = value.find_first_not_of(" \t\"");
    const std::size_t end = value.find_last_not_of(" \t\"");
    return begin == std::string::npos ? std::string() : value.substr(begin, end - begin + 1);
  }
  return std::nullopt;
}

json or_null(const std::optional<std::string>& value) { return value ? json(*value) : json(); }

json cpu() {
  json out;
  out["model"] = or_null(field("/proc/cpuinfo", "model name", ':'));
  out["logical_cpus"] = sysconf(_SC_NPROCESSORS_ONLN);
  cpu_set_t allowed;
  CPU_ZERO(&allowed);
  out["allowed_cpus"] =
      sched_getaffinity(0, sizeof allowed, &allowed) == 0 ? json(CPU_COUNT(&allowed)) : json();
  auto flags = field("/proc/cpuinfo", "flags", ':');
  if (!flags) flags = field("/proc/cpuinfo", "Features", ':');
  out["flags"] = flags ? json::array() : json();
  if (flags) {
    const std::string padded = " " + *flags + " ";
    for (const std::string_view flag : kCpuFlags) {
      if (padded.find(fmt::format(" {} ", flag)) != std::string::npos) out["flags"].push_back(flag);
    }
  }
  return out;
}

json operating_system() {
  json out;
  out["name"] = or_null(field("/etc/os-release", "PRETTY_NAME", '='));
  utsname names{};
  const bool known = uname(&names) == 0;
  out["kernel"] = known ? json(fmt::format("{} {}", names.sysname, names.release)) : json();
  out["machine"] = known ? json(names.machine) : json();
  out["libc"] = fmt::format("glibc {}", gnu_get_libc_version());
  return out;
}

json build() {
  json out;
  out["version"] = RLK_VERSION;
  out["git"] = RLK_GIT;
  out["compiler"] = RLK_COMPILER;
  out["build_type"] = RLK_BUILD_TYPE;
  out["flags"] = build_flags();
  out["sanitize"] = RLK_BUILD_SANITIZE;
  return out;
}

// The libraries are asked through the dynamic linker: this layer links none of them.
json libraries() {
  json out = json::object();
  if (auto* config = loaded<const char*()>("openblas_get_config")) {
    out["openblas"]["config"] = config();
    auto* core = loaded<const char*()>("openblas_get_corename");
    out["openblas"]["core"] = core ? json(core()) : json();
    auto* threads = loaded<int()>("openblas_get_num_threads");
    out["openblas"]["num_threads"] = threads ? json(threads()) : json();
  }
  struct DnnlVersion {  // the beginning of dnnl_version_t
    int major, minor, patch;
    const char* hash;
  };
  if (auto* version = loaded<const DnnlVersion*()>("dnnl_version")) {
    const DnnlVersion* v = version();
    out["onednn"]["version"] = fmt::format("{}.{}.{}", v->major, v->minor, v->patch);
    out["onednn"]["hash"] = v->hash ? json(v->hash) : json();
    auto* isa = loaded<int()>("dnnl_get_effective_cpu_isa");
    out["onednn"]["cpu_isa"] = isa ? json(fmt::format("{:#x}", isa())) : json();
  }
  if (auto* version = loaded<const char*()>("sqlite3_libversion")) out["sqlite"] = version();
  return out;
}

json variables() {
  json out = json::object();
  for (char** entry = environ; entry != nullptr && *entry != nullptr; ++entry) {
    const std::string_view text(*entry);
    const std::size_t equals = text.find('=');
    if (equals == std::string_view::npos) continue;
    const std::string_view name = text.substr(0, equals);
    bool wanted = is_diagnosed(name);
    for (const std::string_view prefix : kVariablePrefixes) wanted |= name.starts_with(prefix);
    for (const std::string_view known : kVariables) wanted |= name == known;
    if (wanted) out[std::string(name)] = text.substr(equals + 1);
  }
  return out;
}

}  // namespace

const char* build_flags() { return RLK_BUILD_FLAGS; }

std::string program_digest() {
  static const std::string kDigest = [] {
    std::ifstream in("/proc/self/exe", std::ios::binary);
    Sha256 digest;
    std::vector<char> buffer(std::size_t{1} << 20);
    while (in.read(buffer.data(), static_cast<std::streamsize>(buffer.size())) || in.gcount() > 0) {
      digest.update(buffer.data(), static_cast<std::size_t>(in.gcount()));
    }
    return digest.hex();
  }();
  return kDigest;
}

std::string device_name() {
  std::string name = field("/proc/cpuinfo", "model name", ':').value_or("unknown CPU");
  const json description = cpu();
  for (const json& flag : description["flags"]) name += " " + flag.get<std::string>();
  return name;
}

std::string environment_json(int num_threads) {
  json out;
  out["build"] = build();
  out["cpu"] = cpu();
  out["os"] = operating_system();
  out["libraries"] = libraries();
  out["variables"] = variables();
  out["num_threads"] = num_threads;
  return out.dump(2, ' ', false, json::error_handler_t::replace);
}

}  // namespace rlk
