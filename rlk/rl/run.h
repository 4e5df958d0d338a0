// The main job: GRPO with a rollout engine and a trainer whose log-probabilities are compared, byte
// for byte, in every step.
#pragma once

#include <functional>
#include <string>

#include "rlk/ops/admission.h"
#include "rlk/rl/rl_config.h"
#include "rlk/rl/summary.h"

namespace rlk {

struct RunProgress {
  std::int64_t step = 0;  // done
  std::int64_t steps = 0;
  double reward_mean = 0;
  double loss = 0;
  std::int64_t compared = 0;  // so far in the whole run
  std::int64_t mismatch_count = 0;
  double tokens_per_s = 0;  // response tokens of this step by its time
  double seconds_left = 0;
};

struct RunOptions {
  std::string out;      // the run folder: run.db, summary.json, checkpoints/
  bool resume = false;  // go on from the last checkpoint of `out`
  Admission admission = Admission::own_kernels();  // what modes strict and auto may run
  // Asked after every step; true ends the run behind a checkpoint.
  std::function<bool()> interrupted = [] { return false; };
  std::function<void(const RunProgress&)> progress = [](const RunProgress&) {};
};

enum class RunEnd : std::uint8_t {
  kDone,
  kInterrupted,  // --resume continues to the bits of an undisturbed run
  kMismatch,     // route strict only: the step is recorded, its update was not applied
};

struct RunResult {
  RunEnd end = RunEnd::kDone;
  RunSummary summary;
  std::string mismatch;  // kMismatch: the first one, for people
};

// One step: sample prompts_per_step * samples_per_prompt responses, grade them, recompute their
// log-probabilities in the trainer, compare, backward, AdamW, hand the new weights to the rollout
// engine. Everything lands in run.db, one transaction a step.
// Errors  whatever the config, the data, the model folder or the run folder has wrong; kContract
//         when a resumed run's config, model or contract differs; kNotAdmitted before anything is
//         written when an operator in mode strict has no admitted kernel.
RunResult run_rl(const RlConfig& config, const RunOptions& options);

}  // namespace rlk
