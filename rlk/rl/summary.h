// summary.json: a run in some twenty numbers.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "rlk/rl/run_db.h"

namespace rlk {

// NaN, written as null, where a run has no such number.
struct RunSummary {
  std::string route;
  std::string run_id;
  std::int64_t steps = 0;
  std::int64_t compared = 0;
  std::int64_t mismatch_count = 0;
  double max_abs_diff = 0;  // over all compared log-probabilities
  double mean_abs_diff = 0;
  double reward_first10 = 0;  // mean of reward_mean over the first ten steps
  double reward_last10 = 0;
  double heldout_reward_before = 0;  // metric heldout_reward at step 0
  double heldout_reward_after = 0;   // and at the last step that has one
  std::int64_t prompt_tokens = 0;
  std::int64_t response_tokens = 0;
  double mean_response_tokens = 0;  // per sample
  double rollout_tokens_per_s = 0;  // response tokens by the time of rollout
  double train_tokens_per_s = 0;    // prompt and response tokens by score, backward, optimizer
  double seconds_per_step = 0;      // median
  double seconds_total = 0;         // sum of the steps
  std::string model_digest;
  std::string contract_digest;  // the forward digest
  std::string backward_digest;
  std::string weights_digest;
  // Route strict: "trainer.gemm" where kernels without admission ran, by an override of modes.
  std::vector<std::string> unadmitted_ops;
};

RunSummary summarize(const RunDb& db);
std::string to_json(const RunSummary& summary);  // indented, keys as above

// Writes beside `path`, then renames. Errors  kIo.
void write_summary(const std::string& path, const RunSummary& summary);

}  // namespace rlk
