// From a run's configuration to its engines: modes, options, and the gate between them.
#pragma once

#include <string>

#include "rlk/ops/context.h"
#include "rlk/rl/rl_config.h"
#include "rlk/rollout/rollout_engine.h"
#include "rlk/trainer/trainer.h"

namespace rlk {

enum class Engine : std::uint8_t { kRollout, kTrainer };

// Route strict: mode strict for every operator; production: off. Overrides of config.modes follow.
Modes engine_modes(const RlConfig& config, Engine engine);

// The kernels that `rollout.backend` or `trainer.backend` names. Errors  those of find_backend.
const KernelTable& engine_kernels(const RlConfig& config, Engine engine);

RolloutOptions rollout_options(const RlConfig& config, std::int64_t max_model_len);
TrainerOptions trainer_options(const RlConfig& config, std::int64_t max_model_len);

SamplingParams sampling_params(const RlConfig& config);

// SHA-256 of the plans of a run: what may change speed and can change no bit (pages, batches,
// threads, kernels). Each engine's contract kernels are named.
std::string deployment_digest(const RlConfig& config, const std::string& rollout_backend,
                              const std::string& trainer_backend);

// Two engines compare forward digests before the first token. kContract with every field that
// differs.
void check_handshake(const Contract& rollout, const Contract& trainer);

}  // namespace rlk
