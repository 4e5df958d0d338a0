// What the trainer gets of a completion: its tokens, and how they were sampled.
#pragma once

#include "rlk/rollout/sequence.h"
#include "rlk/trainer/packed_batch.h"

namespace rlk::test {

inline TrainSample sample_of(const Completion& c, const SamplingParams& sampling) {
  TrainSample s;
  s.token_ids = c.prompt_token_ids;
  s.token_ids.insert(s.token_ids.end(), c.token_ids.begin(), c.token_ids.end());
  s.prompt_len = static_cast<std::int64_t>(c.prompt_token_ids.size());
  s.sampling = sampling;
  s.old_logprobs = c.logprobs;
  s.active.assign(c.token_ids.size(), 1);
  return s;
}

}  // namespace rlk::test
