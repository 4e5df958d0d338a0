// A request and the state of its generation.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "rlk/kernels/logprob.h"

namespace rlk {

struct Request {
  std::uint64_t id = 0;  // keys the random numbers, with seed and position
  std::uint64_t seed = 0;
  std::vector<std::int32_t> prompt_token_ids;
  SamplingParams sampling;
  std::int64_t max_new_tokens = 0;
  std::vector<std::int32_t> stop_token_ids;
};

enum class FinishReason : std::uint8_t { kNone, kStop, kLength };
const char* to_string(FinishReason reason);  // "none", "stop", "length"

// What rollout recorded of one request. The vectors from token_ids on have the same size; a stop
// token is the last of them.
struct Completion {
  std::uint64_t request_id = 0;
  std::vector<std::int32_t> prompt_token_ids;
  std::vector<std::int32_t> token_ids;
  std::vector<float> logprobs;      // of the distribution that was sampled
  std::vector<float> logprobs_raw;  // at temperature 1, without filters
  std::vector<std::int64_t> weight_versions;  // of the weights that sampled each token
  FinishReason finish_reason = FinishReason::kNone;
};

// A request on its way. `tokens` is the prompt, then what was sampled.
struct Sequence {
  Request request;
  std::vector<std::int32_t> tokens;
  Completion completion;
  std::vector<std::int32_t> pages;       // KV pages of positions 0 ..
  std::int64_t num_computed_tokens = 0;  // whose KV is written
  std::int64_t num_hashed_pages = 0;     // leading full pages that the prefix cache knows
  std::uint64_t last_page_node = 0;      // prefix-cache node of the last of those
  std::int64_t arrival = 0;              // order of admission
  std::int64_t num_preemptions = 0;
};

}  // namespace rlk
