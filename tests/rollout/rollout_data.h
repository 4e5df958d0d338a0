// Requests that cross pages, key blocks and splits, and what an engine made of them.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "rlk/rollout/rollout_engine.h"
#include "tests/model/tiny_model.h"

namespace rlk::test {

// What one run depends on and what it must not depend on.
struct RolloutSetup {
  Contract contract = tiny_contract();
  ModelConfig config = tiny_config();
  Modes modes = all_ops(Mode::kStrict);
  const KernelTable* kernels = nullptr;
  int num_threads = 1;
  RolloutOptions options{.max_model_len = 256, .max_num_seqs = 8, .max_num_batched_tokens = 256};
};

// An engine with its context and the weights of tiny_weights(..., weight_seed) as version 0.
struct TestEngine {
  Context ctx;
  RolloutEngine engine;

  explicit TestEngine(const RolloutSetup& setup, std::uint64_t weight_seed = 7)
      : ctx(setup.contract, setup.modes, setup.num_threads, setup.kernels),
        engine(ctx, setup.config, setup.options) {
    Parameters weights = tiny_weights(setup.config, setup.contract, weight_seed);
    engine.load_weights(weights, 0);
  }
};

inline Request request(std::uint64_t id, std::int64_t prompt_len, std::int64_t max_new_tokens,
                       const SamplingParams& sampling = {}) {
  Request r;
  r.id = id;
  r.seed = 2024;
  r.prompt_token_ids = random_tokens(prompt_len, 1000 + id);
  r.sampling = sampling;
  r.max_new_tokens = max_new_tokens;
  return r;
}

// Every way of sampling; lengths around a page, a key block and a split, one above 150.
inline std::vector<Request> mixed_requests() {
  return {
      request(1, 170, 40),
      request(2, 33, 30, {.temperature = 0.7f}),
      request(3, 1, 45, {.temperature = 0}),
      request(4, 64, 20, {.temperature = 1.3f, .top_k = 5}),
      request(5, 15, 34, {.temperature = 0.9f, .top_p = 0.8f}),
      request(6, 127, 12, {.temperature = 1, .min_p = 0.2f}),
  };
}

inline std::vector<Completion> generate(const RolloutSetup& setup,
                                        const std::vector<Request>& requests,
                                        RolloutStats* stats = nullptr) {
  TestEngine t(setup);
  std::vector<Completion> out = t.engine.generate(requests);
  if (stats) *stats = t.engine.stats();
  return out;
}

inline testing::AssertionResult same_completion(const Completion& a, const Completion& b) {
  const auto differ = [&](const char* what) {
    return testing::AssertionFailure() << "request " << a.request_id << ": other " << what;
  };
  if (a.request_id != b.request_id || a.prompt_token_ids != b.prompt_token_ids) {
    return differ("request");
  }
  if (a.token_ids.empty() || a.token_ids != b.token_ids) return differ("tokens");
  if (!same_bytes(a.logprobs, b.logprobs)) return differ("logprobs");
  if (!same_bytes(a.logprobs_raw, b.logprobs_raw)) return differ("raw logprobs");
  if (a.finish_reason != b.finish_reason) return differ("finish reason");
  return testing::AssertionSuccess() << "request " << a.request_id << ": the same bytes";
}

inline testing::AssertionResult same_completions(const std::vector<Completion>& a,
                                                 const std::vector<Completion>& b) {
  if (a.empty() || a.size() != b.size()) return testing::AssertionFailure() << "other requests";
  for (std::size_t i = 0; i < a.size(); ++i) {
    const testing::AssertionResult same = same_completion(a[i], b[i]);
    if (!same) return same;
  }
  return testing::AssertionSuccess() << "the same bytes";
}

}  // namespace rlk::test
