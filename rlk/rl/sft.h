// Supervised warm-up: the answers of a dataset as targets.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "rlk/ops/admission.h"
#include "rlk/rl/rl_config.h"

namespace rlk {

struct SftProgress {
  std::int64_t step = 0;
  std::int64_t steps = 0;
  double loss = 0;  // mean -logp of the answers' tokens
};

struct SftResult {
  std::int64_t steps = 0;
  double loss_first = 0;
  double loss_last = 0;
  bool interrupted = false;
};

// config.sft.steps optimizer steps over prompt + answer + first stop token, loss on the latter two.
// Writes the Hugging Face folder `out` at the end, also when `progress` returns false to stop, and
// beside the weights sft_loss.json, from which a run that starts there takes the curve.
// Errors  those of the config, the data and the model; kInvalidArgument when the model has no stop
//         token; those of Context.
inline constexpr const char* kSftLossFile = "sft_loss.json";  // {"loss": [...]}, one per step

SftResult run_sft(const RlConfig& config, const std::string& out,
                  const std::function<bool(const SftProgress&)>& progress,
                  const Admission& admission = Admission::own_kernels());

}  // namespace rlk
