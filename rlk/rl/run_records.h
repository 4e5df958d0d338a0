// Records out of run.db: what rollout and trainer knew of the tokens of a run.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "rlk/compare/compare.h"
#include "rlk/rl/run_db.h"

namespace rlk {

enum class RunSide { kRollout, kTrainer };

// The record of one side over one step.
Record run_record(const RunDb& db, RunSide side, std::int64_t step);

// Mean over active tokens of (exp(d) - 1) - d, d = trainer - rollout log-probability: the k3
// estimate of the divergence between the two engines' policies. NaN without active tokens.
double mismatch_kl(const std::vector<TokenRow>& tokens);

// Of all steps. Rollout with trainer, within one run.
Comparison compare_sides(const RunDb& db);

struct RewardComparison {
  std::int64_t compared = 0;
  std::int64_t mismatch_count = 0;
  std::int64_t first_step = 0;  // of the first mismatch, with both values
  std::int64_t first_sample = 0;
  double first_a = 0;
  double first_b = 0;
};

// Two runs: rollout with rollout, trainer with trainer, rewards with rewards (f64 bytes), all
// steps. Runs of unequal length are kNotComparable with field "steps".
struct RunComparison {
  Comparison rollout;
  Comparison trainer;
  RewardComparison rewards;

  // not_comparable before differs before nothing_compared before equal.
  CompareStatus status() const;
};

// Errors  kInvalidArgument when both paths are one file, or a copy of it.
RunComparison compare_runs(const RunDb& a, const RunDb& b);

std::string to_json(const RunComparison& comparison);
std::string to_text(const RunComparison& comparison);

}  // namespace rlk
