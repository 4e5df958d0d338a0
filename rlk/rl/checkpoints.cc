#include "rlk/rl/checkpoints.h"

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <optional>
#include <vector>

#include "rlk/core/error.h"
#include "rlk/io/files.h"
#include "rlk/model/hf_model.h"
#include "rlk/trainer/checkpoint.h"

namespace rlk {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kPrefix = "step-";

std::string folder_of(const std::string& out, std::int64_t step) {
  return join_path(join_path(out, "checkpoints"), fmt::format("{}{:06}", kPrefix, step));
}

std::optional<std::int64_t> step_of(const std::string& name) {
  if (!name.starts_with(kPrefix)) return std::nullopt;
  std::int64_t step = 0;
  const char* end = name.data() + name.size();
  const auto parsed = std::from_chars(name.data() + kPrefix.size(), end, step);
  if (parsed.ec != std::errc() || parsed.ptr != end) return std::nullopt;
  return step;
}

// Steps that have a whole checkpoint, rising.
std::vector<std::int64_t> steps_in(const std::string& out) {
  std::vector<std::int64_t> steps;
  std::error_code ignored;
  for (const fs::directory_entry& entry :
       fs::directory_iterator(join_path(out, "checkpoints"), ignored)) {
    if (const auto step = step_of(entry.path().filename().string())) steps.push_back(*step);
  }
  std::sort(steps.begin(), steps.end());
  return steps;
}

}  // namespace

void write_checkpoint(const std::string& out, std::int64_t step, Trainer& trainer,
                      const ModelConfig& config, const std::string& source_folder, int keep) {
  const std::string target = folder_of(out, step);
  const std::string partial = target + ".partial";
  std::error_code error;
  fs::remove_all(partial, error);
  save_hf_model(partial, config, trainer.weights(), source_folder);
  save_trainer_state(join_path(partial, "trainer.safetensors"), trainer,
                     {{"step", std::to_string(step)}});
  fs::remove_all(target, error);
  fs::rename(partial, target, error);
  if (error) fail(ErrorCode::kIo, "{}: cannot be renamed: {}", partial, error.message());

  std::vector<std::int64_t> steps = steps_in(out);
  while (keep > 0 && static_cast<int>(steps.size()) > keep) {
    fs::remove_all(folder_of(out, steps.front()), error);
    steps.erase(steps.begin());
  }
}

bool has_checkpoints(const std::string& out) { return !steps_in(out).empty(); }

void delete_checkpoints_after(const std::string& out, std::int64_t step) {
  for (const std::int64_t s : steps_in(out)) {
    std::error_code error;
    if (s > step) fs::remove_all(folder_of(out, s), error);
  }
}

std::int64_t load_latest_checkpoint(const std::string& out, std::int64_t last_step,
                                    Trainer& trainer) {
  const std::vector<std::int64_t> steps = steps_in(out);
  const auto behind = std::upper_bound(steps.begin(), steps.end(), last_step);
  if (behind == steps.begin()) return 0;
  const std::int64_t step = *(behind - 1);
  load_trainer_state(join_path(folder_of(out, step), "trainer.safetensors"), trainer);
  return step;
}

}  // namespace rlk
