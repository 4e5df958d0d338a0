#include "rlk/verify/admission_file.h"

#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <optional>
#include <utility>

#include <nlohmann/json.hpp>

#include "rlk/core/digest.h"
#include "rlk/core/error.h"
#include "rlk/io/files.h"
#include "rlk/io/json.h"
#include "rlk/ops/backend.h"
#include "rlk/verify/conform.h"

namespace rlk {
namespace {

constexpr const char* kFormatName = "rlk-admission";
constexpr std::int64_t kVersion = 1;

nlohmann::ordered_json key_json(const AdmissionKey& key) {
  return {{"build", key.build}, {"device", key.device}, {"contract_digest", key.contract_digest}};
}

std::string variable(const char* name) {
  const char* value = std::getenv(name);
  return value ? value : "";
}

void check_key(const std::string& path, const AdmissionKey& found, const AdmissionKey& expected) {
  std::string text;
  const auto compare = [&](const char* field, const std::string& a, const std::string& b) {
    if (a == b) return;
    text += fmt::format("{}{} is {}, here it is {}", text.empty() ? "" : "; ", field, a, b);
  };
  compare("build", found.build, expected.build);
  compare("device", found.device, expected.device);
  compare("contract_digest", found.contract_digest, expected.contract_digest);
  if (!text.empty()) {
    fail(ErrorCode::kContract, "{}: an admission record of something else: {}", path, text);
  }
}

// All operators of the backend have an entry.
bool complete(const Admission& admission, const std::string& backend) {
  for (int i = 0; i < kNumOps; ++i) {
    const Op op = static_cast<Op>(i);
    if (op != Op::pack_weight && !admission.find(op, backend)) return false;
  }
  return true;
}

// The record at `path`, if it can be used; else *why says why not.
std::optional<Admission> found_record(const std::string& path, const AdmissionKey& key,
                                      std::string* why) {
  if (path.empty() || !file_exists(path)) {
    *why = "no admission record of this build, device and contract";
    return std::nullopt;
  }
  try {
    return read_admission(path, key);
  } catch (const Error& e) {
    *why = e.what();
    return std::nullopt;
  }
}

}  // namespace

std::string to_json(const Admission& admission) {
  nlohmann::ordered_json json;
  json["format"] = kFormatName;
  json["version"] = kVersion;
  json["key"] = key_json(admission.key());
  json["entries"] = nlohmann::ordered_json::array();
  for (const AdmissionEntry& entry : admission.entries()) {
    json["entries"].push_back({{"op", to_string(entry.op)},
                               {"backend", entry.backend},
                               {"admitted", entry.admitted},
                               {"vectors", entry.vectors},
                               {"reason", entry.reason}});
  }
  return json.dump(2) + '\n';
}

std::string admission_path(const AdmissionKey& key) {
  std::string folder = variable("XDG_CACHE_HOME");
  if (folder.empty()) {
    const std::string home = variable("HOME");
    if (home.empty()) return "";
    folder = join_path(home, ".cache");
  }
  return join_path(
      join_path(folder, "rlkernel"),
      fmt::format("admission-{}.json", sha256_hex(key_json(key).dump()).substr(0, 16)));
}

void write_admission(const std::string& path, const Admission& admission) {
  const std::string folder = std::filesystem::path(path).parent_path().string();
  if (!folder.empty()) make_directories(folder);
  // A name of its own: two programs may prove the same at the same time.
  const std::string own = fmt::format("{}.{}", path, ::getpid());
  write_file(own, to_json(admission));
  std::error_code error;
  std::filesystem::rename(own, path, error);
  if (!error) return;
  const std::string reason = error.message();
  std::filesystem::remove(own, error);
  fail(ErrorCode::kIo, "{}: cannot rename {} to it: {}", path, own, reason);
}

Admission read_admission(const std::string& path, const AdmissionKey& key) {
  const JsonDocument document = JsonDocument::load(path);
  FieldReader root = document.object();
  root.choice("format", {kFormatName}, "");
  root.required<std::int64_t>("version", {.min = kVersion, .max = kVersion});
  FieldReader found = root.object("key");
  AdmissionKey found_key;
  found_key.build = found.required<std::string>("build");
  found_key.device = found.required<std::string>("device");
  found_key.contract_digest = found.required<std::string>("contract_digest");
  check_key(path, found_key, key);
  Admission admission(key);
  for (FieldReader& fields : root.objects("entries")) {
    AdmissionEntry entry;
    const auto op = fields.required<std::string>("op");
    try {
      entry.op = parse_op(op);
    } catch (const Error& e) {
      fields.refuse(ErrorCode::kFormat, "op", e.what());
    }
    entry.backend = fields.required<std::string>("backend");
    entry.admitted = fields.required<bool>("admitted");
    entry.vectors = fields.required<std::int64_t>("vectors", {.min = 0});
    entry.reason = fields.required<std::string>("reason");
    fields.finish();
    admission.add(std::move(entry));
  }
  found.finish();
  root.finish();
  return admission;
}

Admission load_or_conform(const Contract& contract, const std::vector<std::string>& backends,
                          const std::function<void(const std::string&)>& say) {
  const AdmissionKey key = admission_key(contract);
  const std::string path = admission_path(key);
  std::string why = fmt::format("{}: not all operators were tried", path);
  std::optional<Admission> found = found_record(path, key, &why);
  Admission admission = found ? std::move(*found) : Admission(key);
  std::vector<const KernelTable*> tables;
  for (const std::string& backend : backends) {
    if (backend == reference_kernels().backend || complete(admission, backend)) continue;
    const KernelTable& table = find_backend(backend, contract.profile);
    if (std::find(tables.begin(), tables.end(), &table) == tables.end()) tables.push_back(&table);
  }
  if (tables.empty()) return admission;
  std::string names;
  for (const KernelTable* table : tables) {
    names += std::string(names.empty() ? "" : ", ") + table->backend;
  }
  say(fmt::format("{}: trying {} first", why, names));
  for (AdmissionEntry& entry : conform({.contract = contract, .backends = tables}).entries()) {
    admission.add(std::move(entry));
  }
  try {
    if (path.empty()) fail(ErrorCode::kIo, "neither XDG_CACHE_HOME nor HOME is set");
    write_admission(path, admission);
  } catch (const Error& e) {
    say(fmt::format("the admission record serves this run only: {}", e.what()));
  }
  return admission;
}

Admission admission_for(const Contract& contract, std::initializer_list<EngineKernels> engines,
                        const Admission& trusted,
                        const std::function<void(const std::string&)>& say) {
  std::vector<std::string> backends;
  for (const EngineKernels& engine : engines) {
    for (int i = 0; i < kNumOps; ++i) {
      const bool asks = engine.modes[i] == Mode::kStrict || engine.modes[i] == Mode::kAuto;
      if (!asks || trusted.admitted(static_cast<Op>(i), engine.kernels.backend)) continue;
      backends.emplace_back(engine.kernels.backend);
      break;
    }
  }
  return backends.empty() ? trusted : load_or_conform(contract, backends, say);
}

}  // namespace rlk
