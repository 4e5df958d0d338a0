#include <limits>
#include <map>

#include "tests/io/error_matchers.h"
#include "tests/rollout/rollout_data.h"

namespace rlk::test {
namespace {

TEST(RolloutEngine, RecordsEveryTokenWithItsLogprobsAndWeightVersion) {
  TestEngine t{{}};
  for (const Completion& c : t.engine.generate(mixed_requests())) {
    ASSERT_FALSE(c.token_ids.empty());
    EXPECT_EQ(c.logprobs.size(), c.token_ids.size());
    EXPECT_EQ(c.logprobs_raw.size(), c.token_ids.size());
    EXPECT_EQ(c.weight_versions, std::vector<std::int64_t>(c.token_ids.size(), 0));
    EXPECT_EQ(c.finish_reason, FinishReason::kLength);
    for (std::size_t i = 0; i < c.token_ids.size(); ++i) {
      EXPECT_GE(c.token_ids[i], 0);
      EXPECT_LT(c.token_ids[i], 53);
      EXPECT_LE(c.logprobs[i], 0.0f);
      EXPECT_LE(c.logprobs_raw[i], 0.0f);
    }
  }
  EXPECT_TRUE(t.engine.step().empty());  // nothing to do, and no work done
}

TEST(RolloutEngine, CompletionsComeInTheOrderOfTheRequests) {
  std::vector<Request> requests{request(9, 4, 30), request(3, 4, 1), request(6, 4, 10)};
  const std::vector<Completion> out = generate({}, requests);
  for (std::size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(out[i].request_id, requests[i].id);
    EXPECT_EQ(static_cast<std::int64_t>(out[i].token_ids.size()), requests[i].max_new_tokens);
  }
}

TEST(RolloutEngine, StopsBehindTheFirstStopToken) {
  Request r = request(1, 10, 60);
  const Completion free = generate({}, {r})[0];
  const std::int32_t stop = free.token_ids[20];
  r.stop_token_ids = {52, stop};
  const Completion stopped = generate({}, {r})[0];
  std::size_t length = 0;
  while (free.token_ids[length] != stop && free.token_ids[length] != 52) ++length;
  ++length;  // the stop token is the last
  EXPECT_EQ(stopped.token_ids, std::vector<std::int32_t>(
                                   free.token_ids.begin(),
                                   free.token_ids.begin() + static_cast<std::ptrdiff_t>(length)));
  EXPECT_EQ(stopped.finish_reason, FinishReason::kStop);
  EXPECT_EQ(stopped.logprobs.size(), length);
}

TEST(RolloutEngine, EndsWhereTheContextIsFull) {
  RolloutSetup setup;
  setup.options.max_model_len = 40;
  EXPECT_EQ(generate(setup, {request(1, 39, 50)})[0].token_ids.size(), 1u);
  EXPECT_EQ(generate(setup, {request(1, 30, 1000)})[0].token_ids.size(), 10u);
  const std::int64_t most = std::numeric_limits<std::int64_t>::max();
  EXPECT_EQ(generate(setup, {request(1, 30, most)})[0].token_ids.size(), 10u);
}

TEST(RolloutEngine, APromptUpToThePagesFits) {
  RolloutSetup setup;
  setup.options.num_pages = 2;
  EXPECT_EQ(generate(setup, {request(1, 32, 1)})[0].token_ids.size(), 1u);
  EXPECT_EQ(generate(setup, {request(1, 20, 13)})[0].token_ids.size(), 13u);
}

TEST(RolloutEngine, GreedyTakesTheLikeliestToken) {
  Request r = request(1, 30, 20, {.temperature = 0});
  const Completion a = generate({}, {r})[0];
  r.seed = 1;
  r.id = 2;
  EXPECT_EQ(generate({}, {r})[0].token_ids, a.token_ids);  // no random number is involved
  r.sampling = {.temperature = 1, .top_k = 1};
  const Completion top1 = generate({}, {r})[0];
  EXPECT_EQ(top1.token_ids, a.token_ids);
  for (float x : top1.logprobs) EXPECT_EQ(x, 0.0f);        // the only token that takes part
  EXPECT_TRUE(same_bytes(a.logprobs, top1.logprobs_raw));  // greedy: that of temperature 1
}

TEST(RolloutEngine, RefusesRequestsThatDoNotFit) {
  RolloutSetup setup;
  setup.options.num_pages = 10;
  TestEngine t(setup);
  const auto refused = [&](const Request& r, const std::vector<std::string>& named) {
    expect_error(ErrorCode::kInvalidArgument, named, [&] { t.engine.add_request(r); });
  };
  refused(request(4, 0, 5), {"request 4", "empty"});
  refused(request(4, 256, 5), {"request 4", "256"});
  refused(request(4, 300, 5), {"request 4", "300", "256"});
  refused(request(4, 10, 0), {"request 4", "max_new_tokens 0"});
  refused(request(4, 100, 62), {"request 4", "161", "10 pages of 16"});
  Request r = request(4, 10, 5);
  r.prompt_token_ids[7] = 53;
  refused(r, {"request 4", "prompt token 7", "53", "[0, 53)"});
  r.prompt_token_ids[7] = -1;
  refused(r, {"request 4", "prompt token 7", "-1"});
  refused(request(4, 10, 5, {.temperature = -1}), {"request 4", "temperature -1"});
  refused(request(4, 10, 5, {.temperature = NAN}), {"request 4", "temperature"});
  refused(request(4, 10, 5, {.temperature = 1e-39f}), {"request 4", "greedy"});
  refused(request(4, 10, 5, {.temperature = 1, .top_k = -1}), {"request 4", "top_k -1"});
  refused(request(4, 10, 5, {.temperature = 1, .top_p = 0}), {"request 4", "top_p 0"});
  refused(request(4, 10, 5, {.temperature = 1, .min_p = 1.5f}), {"request 4", "min_p 1.5"});
  EXPECT_TRUE(t.engine.idle());
}

TEST(RolloutEngine, RefusesAWholeBatchBeforeAnyOfItRuns) {
  TestEngine t{{}};
  expect_error(ErrorCode::kInvalidArgument, {"request 2", "empty"}, [&] {
    t.engine.generate({request(1, 5, 5), request(2, 0, 5)});
  });
  EXPECT_TRUE(t.engine.idle());
  expect_error(ErrorCode::kInvalidArgument, {"request 1", "twice"}, [&] {
    t.engine.generate({request(1, 5, 5), request(1, 6, 5)});
  });
  EXPECT_TRUE(t.engine.idle());
  EXPECT_EQ(t.engine.generate({request(1, 5, 5)})[0].token_ids.size(), 5u);
  t.engine.add_request(request(3, 5, 5));
  expect_error(ErrorCode::kInvalidArgument, {"running"},
               [&] { t.engine.generate({request(4, 5, 5)}); });
}

TEST(RolloutEngine, RefusesOptionsThatDoNotFit) {
  const auto refused = [&](auto change, const std::vector<std::string>& named) {
    RolloutSetup setup;
    change(setup.options);
    expect_error(ErrorCode::kInvalidArgument, named, [&] { TestEngine t(setup); });
  };
  refused([](RolloutOptions& o) { o.page_size = 24; }, {"page_size", "24"});
  refused([](RolloutOptions& o) { o.page_size = 0; }, {"page_size", "0"});
  refused([](RolloutOptions& o) { o.max_num_seqs = 0; }, {"max_num_seqs", "0"});
  refused([](RolloutOptions& o) { o.max_num_batched_tokens = 0; }, {"max_num_batched_tokens"});
  refused([](RolloutOptions& o) { o.num_pages = -3; }, {"num_pages", "-3"});
  refused([](RolloutOptions& o) { o.max_model_len = 513; }, {"max_model_len", "513", "512"});
}

TEST(RolloutEngine, WithoutWeightsNothingRuns) {
  const RolloutSetup setup;
  Context ctx(setup.contract, setup.modes, 1);
  RolloutEngine engine(ctx, setup.config, setup.options);
  expect_error(ErrorCode::kContract, {"no weights"}, [&] { engine.generate({request(1, 5, 5)}); });
}

TEST(RolloutEngine, AWeightVersionMustRise) {
  TestEngine t{{}};
  Parameters weights = tiny_weights(tiny_config(), tiny_contract(), 8);
  EXPECT_EQ(t.engine.load_weights(weights, 5), 5);
  expect_error(ErrorCode::kContract, {"5", "does not follow"},
               [&] { t.engine.load_weights(weights, 5); });
  EXPECT_EQ(t.engine.model().weight_version(), 5);
}

// Every token carries the version that sampled it; the rest of the answer is that of a fresh engine
// with the new weights, given the tokens so far: no key or value of the old weights is left.
TEST(RolloutEngine, AWeightUpdateInTheMiddleRecomputesWhatWasSampled) {
  Parameters next = tiny_weights(tiny_config(), tiny_contract(), 8);
  TestEngine t{{}};
  const Request r = request(1, 40, 30);
  t.engine.add_request(r);
  for (int i = 0; i < 10; ++i) EXPECT_TRUE(t.engine.step().empty());
  t.engine.load_weights(next, 3);
  std::vector<Completion> out;
  while (!t.engine.idle()) {
    for (Completion& c : t.engine.step()) out.push_back(std::move(c));
  }
  ASSERT_EQ(out.size(), 1u);
  std::vector<std::int64_t> versions(10, 0);
  versions.resize(30, 3);
  EXPECT_EQ(out[0].weight_versions, versions);

  TestEngine fresh({}, 8);
  Request rest = r;
  rest.prompt_token_ids.insert(rest.prompt_token_ids.end(), out[0].token_ids.begin(),
                               out[0].token_ids.begin() + 10);
  rest.max_new_tokens = 20;
  const Completion wanted = fresh.engine.generate({rest})[0];
  EXPECT_EQ(std::vector<std::int32_t>(out[0].token_ids.begin() + 10, out[0].token_ids.end()),
            wanted.token_ids);
  EXPECT_TRUE(same_bytes({out[0].logprobs.begin() + 10, out[0].logprobs.end()}, wanted.logprobs));
}

TEST(RolloutEngine, NoPrefixOfOldWeightsIsHit) {
  Parameters next = tiny_weights(tiny_config(), tiny_contract(), 8);
  TestEngine t{{}};
  const Request r = request(1, 64, 10);
  t.engine.generate({r});
  t.engine.load_weights(next, 1);
  EXPECT_TRUE(
      same_completion(t.engine.generate({r})[0], TestEngine({}, 8).engine.generate({r})[0]));
  EXPECT_EQ(t.engine.stats().num_prefix_hits, 0);
}

// Weights that overflow make a step fail; with good weights the same requests go on, and no page
// that the failed step had announced is taken for written.
TEST(RolloutEngine, AFailedStepLeavesNoKvBehind) {
  const RolloutSetup setup;
  Parameters good = tiny_weights(setup.config, setup.contract);
  Parameters bad = good;
  for (std::int64_t i = 0; i < bad.layers[1].qkv_proj.size(); ++i) {
    bad.layers[1].qkv_proj.data<bf16>()[i] = numerics::to_bf16(0x1p120f);
  }
  Context ctx(setup.contract, setup.modes, 1);
  RolloutEngine engine(ctx, setup.config, setup.options);
  engine.load_weights(bad, 0);
  const std::vector<Request> requests{request(1, 40, 5), request(2, 50, 5)};
  for (const Request& r : requests) engine.add_request(r);
  for (int i = 0; i < 2; ++i) {  // the second time the same, not a read of half-written pages
    expect_error(ErrorCode::kNonFinite, {"layer 1"}, [&] { engine.step(); });
  }
  engine.load_weights(good, 1);
  std::map<std::uint64_t, Completion> out;
  while (!engine.idle()) {
    for (Completion& c : engine.step()) out[c.request_id] = std::move(c);
  }
  const std::vector<Completion> wanted = generate(setup, requests);
  EXPECT_TRUE(same_completion(out.at(1), wanted[0]));
  EXPECT_TRUE(same_completion(out.at(2), wanted[1]));
}

TEST(RolloutEngine, CountsWhatItDid) {
  RolloutStats stats;
  generate({}, {request(1, 20, 5), request(2, 30, 3)}, &stats);
  EXPECT_EQ(stats.num_sampled_tokens, 8);
  EXPECT_EQ(stats.num_steps, 5);
  EXPECT_EQ(stats.num_forward_tokens, 20 + 30 + 4 + 2);
  EXPECT_EQ(stats.num_preemptions, 0);
}

}  // namespace
}  // namespace rlk::test
