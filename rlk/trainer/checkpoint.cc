#include "rlk/trainer/checkpoint.h"

#include <cstring>
#include <utility>

#include "rlk/io/safetensors.h"
#include "rlk/numerics/bf16.h"

namespace rlk {
namespace {

std::vector<std::pair<std::string, Parameters*>> parts(Optimizer::State& state) {
  return {{"master.", &state.master}, {"m.", &state.m}, {"v.", &state.v}};
}

// Doubles travel as hexadecimal floats, so that they come back to the bit.
std::string exact(double x) { return fmt::format("{:a}", x); }

std::string field(const SafetensorsFile& file, const std::string& key) {
  const auto it = file.metadata().find(key);
  if (it == file.metadata().end()) {
    fail(ErrorCode::kFormat, "{}: metadata field {} is missing", file.path(), key);
  }
  return it->second;
}

}  // namespace

void save_trainer_state(const std::string& path, Trainer& trainer,
                        const std::map<std::string, std::string>& extra) {
  Optimizer::State& state = trainer.optimizer().state();
  std::map<std::string, std::string> metadata = extra;
  metadata["format"] = "rlk-trainer";
  metadata["backward_digest"] = backward_digest(trainer.context().contract());
  metadata["weight_version"] = std::to_string(trainer.weight_version());
  metadata["optimizer_step"] = std::to_string(state.step);
  metadata["beta1_power"] = exact(state.beta1_power);
  metadata["beta2_power"] = exact(state.beta2_power);
  std::vector<NamedTensor> tensors;
  for (const auto& [prefix, parameters] : parts(state)) {
    for (const ParameterRef& p : list(*parameters)) tensors.push_back({prefix + p.name, *p.tensor});
  }
  write_safetensors(path, tensors, metadata);
}

std::map<std::string, std::string> load_trainer_state(const std::string& path, Trainer& trainer) {
  const SafetensorsFile file(path);
  if (field(file, "format") != "rlk-trainer") {
    fail(ErrorCode::kFormat, "{}: format is {}, expected rlk-trainer", path, field(file, "format"));
  }
  const std::string digest = backward_digest(trainer.context().contract());
  if (field(file, "backward_digest") != digest) {
    fail(ErrorCode::kContract, "{}: backward_digest is {}, this run has {}", path,
         field(file, "backward_digest"), digest);
  }
  // Everything is read and checked before the trainer changes.
  Optimizer::State& state = trainer.optimizer().state();
  std::vector<std::pair<Tensor*, ConstTensorView>> tensors;
  for (const auto& [prefix, parameters] : parts(state)) {
    for (const ParameterRef& p : list(*parameters)) {
      const ConstTensorView found = file.tensor(prefix + p.name);
      if (found.dtype != DType::kF32 || found.layout.shape != p.tensor->layout().shape) {
        fail(ErrorCode::kFormat, "{}: tensor {}{} is {} {}, expected F32 {}", path, prefix, p.name,
             to_string(found.dtype), found.layout.to_string(), p.tensor->layout().to_string());
      }
      tensors.emplace_back(p.tensor, found);
    }
  }
  std::int64_t step = 0, weight_version = 0;
  double beta1_power = 1, beta2_power = 1;
  try {
    step = std::stoll(field(file, "optimizer_step"));
    beta1_power = std::stod(field(file, "beta1_power"));
    beta2_power = std::stod(field(file, "beta2_power"));
    weight_version = std::stoll(field(file, "weight_version"));
  } catch (const std::logic_error&) {  // of stoll and stod
    fail(ErrorCode::kFormat, "{}: a counter in the metadata is not a number", path);
  }
  for (const auto& [to, from] : tensors) {
    std::memcpy(to->data<float>(), from.data, to->size_bytes());
  }
  state.step = step;
  state.beta1_power = beta1_power;
  state.beta2_power = beta2_power;
  const std::vector<ParameterRef> master = list(state.master), weights = list(trainer.weights());
  for (std::size_t i = 0; i < master.size(); ++i) {
    const float* from = master[i].tensor->data<float>();
    bf16* to = weights[i].tensor->data<bf16>();
    for (std::int64_t k = 0; k < master[i].tensor->size(); ++k) to[k] = numerics::to_bf16(from[k]);
  }
  trainer.restore(weight_version);
  return file.metadata();
}

}  // namespace rlk
