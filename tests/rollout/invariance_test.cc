// Sampled tokens and log-probabilities do not depend on anything the engine is free to choose.
#include <algorithm>

#include "tests/rollout/rollout_data.h"

namespace rlk::test {
namespace {

const std::vector<Completion>& expected() {
  static const std::vector<Completion> kExpected = generate({}, mixed_requests());
  return kExpected;
}

TEST(RolloutInvariance, TheReferenceAndEveryInstructionSetAgreeForAnyThreadCount) {
  for (const KernelTable* kernels : backends()) {
    const bool best = kernels == &cpu_kernels();
    for (int num_threads : best ? std::vector<int>{1, 2, 3, 4, 5, 6, 7, 8} : std::vector<int>{2}) {
      RolloutSetup setup;
      setup.kernels = kernels;
      setup.num_threads = num_threads;
      EXPECT_TRUE(same_completions(generate(setup, mixed_requests()), expected()))
          << kernels->backend << ", " << num_threads << " threads";
    }
  }
}

TEST(RolloutInvariance, ARequestAloneGivesTheSameAsInABatch) {
  const std::vector<Request> requests = mixed_requests();
  for (std::size_t i = 0; i < requests.size(); ++i) {
    EXPECT_TRUE(same_completion(generate({}, {requests[i]})[0], expected()[i]));
  }
}

TEST(RolloutInvariance, NeighboursAndTheirOrderDoNotMatter) {
  std::vector<Request> requests = mixed_requests();
  std::reverse(requests.begin(), requests.end());
  std::vector<Completion> out = generate({}, requests);
  std::reverse(out.begin(), out.end());
  EXPECT_TRUE(same_completions(out, expected()));

  for (std::uint64_t i = 0; i < 5; ++i) {
    requests.insert(requests.begin() + static_cast<std::ptrdiff_t>(i),
                    request(100 + i, 9 + 40 * static_cast<std::int64_t>(i), 25));
  }
  out = generate({}, requests);
  std::erase_if(out, [](const Completion& c) { return c.request_id >= 100; });
  std::reverse(out.begin(), out.end());
  EXPECT_TRUE(same_completions(out, expected()));
}

TEST(RolloutInvariance, ARequestInABatchOf1To257GivesTheSame) {
  const Completion wanted = generate({}, {request(1, 40, 30)})[0];
  for (std::uint64_t n : {2, 3, 8, 17, 64, 257}) {
    RolloutSetup setup;
    setup.options.max_num_seqs = static_cast<std::int64_t>(n);
    setup.options.max_num_batched_tokens = 4096;
    setup.options.num_pages = 2000;
    std::vector<Request> requests;
    for (std::uint64_t i = 0; i < n; ++i) {
      requests.push_back(i == n / 2 ? request(1, 40, 30) : request(100 + i, 5, 10));
    }
    EXPECT_TRUE(same_completion(generate(setup, requests)[n / 2], wanted)) << n;
  }
}

TEST(RolloutInvariance, SeatsDoNotMatter) {
  for (std::int64_t seats : {1, 2, 3}) {
    RolloutSetup setup;
    setup.options.max_num_seqs = seats;
    EXPECT_TRUE(same_completions(generate(setup, mixed_requests()), expected())) << seats;
  }
}

TEST(RolloutInvariance, PrefillInChunksOfAnySizeGivesTheSame) {
  for (std::int64_t budget : {1, 7, 64, 333}) {
    RolloutSetup setup;
    setup.options.max_num_batched_tokens = budget;
    RolloutStats stats;
    EXPECT_TRUE(same_completions(generate(setup, mixed_requests(), &stats), expected())) << budget;
    EXPECT_GE(stats.num_steps * budget, stats.num_forward_tokens);
  }
}

TEST(RolloutInvariance, ThePageSizeDoesNotMatter) {
  for (std::int64_t page_size : {1, 8, 16, 32, 64, 128, 256}) {
    RolloutSetup setup;
    setup.options.page_size = page_size;
    EXPECT_TRUE(same_completions(generate(setup, mixed_requests()), expected())) << page_size;
  }
}

TEST(RolloutInvariance, PreemptionAndRecomputationGiveTheSame) {
  for (bool prefix_cache : {false, true}) {
    RolloutSetup setup;
    setup.options.num_pages = 16;
    setup.options.prefix_cache = prefix_cache;
    setup.options.max_num_batched_tokens = 100;
    RolloutStats stats;
    EXPECT_TRUE(same_completions(generate(setup, mixed_requests(), &stats), expected()));
    EXPECT_GT(stats.num_preemptions, 0);
  }
}

// A prompt length equal to the page size, or not a multiple of the split, is where others failed.
TEST(RolloutInvariance, APrefixCacheHitGivesTheSameAsAColdRun) {
  for (std::int64_t prompt_len : {15, 16, 17, 32, 33, 48, 63, 64, 65, 150}) {
    const Request first = request(1, prompt_len, 40);
    Request second = first;
    second.id = 2;
    second.sampling.temperature = 0.7f;
    RolloutSetup cold;
    cold.options.prefix_cache = false;
    const std::vector<Completion> wanted = generate(cold, {first, second});

    TestEngine one_by_one{{}};
    EXPECT_TRUE(same_completion(one_by_one.engine.generate({first})[0], wanted[0]));
    EXPECT_EQ(one_by_one.engine.stats().num_prefix_hits, 0);
    EXPECT_TRUE(same_completion(one_by_one.engine.generate({second})[0], wanted[1])) << prompt_len;
    EXPECT_EQ(one_by_one.engine.stats().num_prefix_hits, (prompt_len - 1) / 16) << prompt_len;

    // In one step the second reads pages that the first is about to fill.
    RolloutStats stats;
    EXPECT_TRUE(same_completions(generate({}, {first, second}, &stats), wanted)) << prompt_len;
    EXPECT_EQ(stats.num_prefix_hits, (prompt_len - 1) / 16) << prompt_len;
  }
}

TEST(RolloutInvariance, AHitEndsAtAnyPageBoundary) {
  for (std::int64_t page_size : {1, 8, 32}) {
    for (std::int64_t prompt_len : {15, 16, 17, 32, 33}) {
      const Request first = request(1, prompt_len, 4);
      Request second = request(2, prompt_len + 9, 30);  // goes on otherwise
      std::copy(first.prompt_token_ids.begin(), first.prompt_token_ids.end(),
                second.prompt_token_ids.begin());
      RolloutSetup setup;
      setup.options.page_size = page_size;
      TestEngine t(setup);
      t.engine.generate({first});
      EXPECT_TRUE(same_completion(t.engine.generate({second})[0], generate({}, {second})[0]))
          << prompt_len << ", pages of " << page_size;
      EXPECT_GE(t.engine.stats().num_prefix_hits, prompt_len / page_size);
    }
  }
}

TEST(RolloutInvariance, APromptThatContinuesACachedAnswerGivesTheSame) {
  TestEngine t{{}};
  const Completion answer = t.engine.generate({request(1, 40, 60)})[0];
  Request next = request(2, 1, 20);
  next.prompt_token_ids = answer.prompt_token_ids;
  next.prompt_token_ids.insert(next.prompt_token_ids.end(), answer.token_ids.begin(),
                               answer.token_ids.end());
  EXPECT_TRUE(same_completion(t.engine.generate({next})[0], generate({}, {next})[0]));
  EXPECT_EQ(t.engine.stats().num_prefix_hits, 6);  // 99 computed positions hold 6 full pages
}

TEST(RolloutInvariance, WhatUnusedKvSlotsHoldDoesNotMatter) {
  TestEngine t{{}, 99};  // other weights fill the pages first
  t.engine.generate({request(50, 200, 50), request(51, 200, 50), request(52, 128, 50)});
  Parameters weights = tiny_weights(tiny_config(), tiny_contract());
  t.engine.load_weights(weights, 1);
  EXPECT_TRUE(same_completions(t.engine.generate(mixed_requests()), expected()));
}

TEST(RolloutInvariance, LoadingTheSameWeightsAgainInTheMiddleGivesTheSame) {
  TestEngine t{{}};
  Parameters weights = tiny_weights(tiny_config(), tiny_contract());
  for (const Request& r : mixed_requests()) t.engine.add_request(r);
  std::vector<Completion> out;
  for (std::int64_t step = 1; !t.engine.idle(); ++step) {
    for (Completion& c : t.engine.step()) out.push_back(std::move(c));
    if (step % 9 == 0) t.engine.load_weights(weights, step);
  }
  std::sort(out.begin(), out.end(),
            [](const Completion& a, const Completion& b) { return a.request_id < b.request_id; });
  EXPECT_TRUE(same_completions(out, expected()));
}

TEST(RolloutInvariance, AnyMixOfOptionsGivesTheSame) {
  Rng rng(11);
  for (int round = 0; round < 25; ++round) {
    RolloutSetup setup;
    RolloutOptions& o = setup.options;
    o.page_size = std::int64_t{1} << rng.below(7);
    o.num_pages = (256 + o.page_size - 1) / o.page_size + rng.below(200) / o.page_size;
    o.max_num_seqs = 1 + rng.below(8);
    o.max_num_batched_tokens = 1 + rng.below(rng.below(2) ? 20 : 400);
    o.prefix_cache = rng.below(2) == 1;
    setup.num_threads = static_cast<int>(1 + rng.below(3));
    EXPECT_TRUE(same_completions(generate(setup, mixed_requests()), expected()))
        << "page_size " << o.page_size << ", num_pages " << o.num_pages << ", max_num_seqs "
        << o.max_num_seqs << ", max_num_batched_tokens " << o.max_num_batched_tokens
        << ", prefix_cache " << o.prefix_cache << ", num_threads " << setup.num_threads;
  }
}

TEST(RolloutInvariance, AnUntiedHeadAndBiasesChangeNothingOfThis) {
  for (const char* model_type : {"qwen2", "llama"}) {
    RolloutSetup setup;
    setup.config = tiny_config(model_type, false);
    const std::vector<Completion> wanted = generate(setup, mixed_requests());
    setup.options = {.max_model_len = 256,
                     .max_num_seqs = 3,
                     .max_num_batched_tokens = 37,
                     .page_size = 8,
                     .num_pages = 33,
                     .prefix_cache = false};
    setup.kernels = &reference_kernels();
    EXPECT_TRUE(same_completions(generate(setup, mixed_requests()), wanted)) << model_type;
  }
}

// ---- The same data under another order gives other bytes.

TEST(RolloutTwin, AnotherContractFieldGivesOtherBytes) {
  const auto differs = [&](const char* what, auto change) {
    RolloutSetup setup;
    change(setup.contract);
    EXPECT_FALSE(same_completions(generate(setup, mixed_requests()), expected())) << what;
  };
  differs("kv_block", [](Contract& c) { c.kv_block = 16; });
  differs("kv_split", [](Contract& c) { c.kv_split = 96; });
  differs("leaves", [](Contract& c) { c.leaves = 8; });
}

// A sum of squares never cancels: only one norm output in 100,000 sees its order.
TEST(RolloutTwin, AnotherOrderOfTheNormsGivesOtherBytesInALongRun) {
  std::vector<Request> requests;
  for (std::uint64_t i = 0; i < 8; ++i) requests.push_back(request(i, 300, 200));
  RolloutSetup setup;
  setup.options.max_model_len = 512;
  const std::vector<Completion> wanted = generate(setup, requests);
  setup.contract.norm_lanes = 64;
  EXPECT_FALSE(same_completions(generate(setup, requests), wanted));
}

TEST(RolloutTwin, ProductionProductsDependOnTheBatch) {
  RolloutSetup setup;
  setup.modes = all_ops(Mode::kOff);
  const std::vector<Completion> wanted = generate(setup, mixed_requests());
  setup.options.max_num_batched_tokens = 7;
  EXPECT_FALSE(same_completions(generate(setup, mixed_requests()), wanted));
}

TEST(RolloutTwin, KvOfOtherWeightsGivesOtherBytes) {
  Contract contract = tiny_contract();
  const ModelConfig config = tiny_config();
  Context ctx(contract, all_ops(Mode::kStrict), 1);
  Parameters first = tiny_weights(config, contract), second = tiny_weights(config, contract, 8);
  Model old_model(config, contract, 128, false), model(config, contract, 128, false);
  old_model.load(ctx, first, 0);
  model.load(ctx, second, 1);
  // 40 tokens in cache, then one more: with the cache of either model.
  const std::vector<std::int32_t> tokens = random_tokens(41, 3);
  const auto last_hidden = [&](const Model& prefill) {
    KvCache cache(config, 64);
    Activations activations(config, false);
    std::vector<std::int32_t> positions(41), pages{0, 1, 2, 3};
    std::vector<std::int64_t> slots(41);
    for (int i = 0; i < 41; ++i) positions[i] = i, slots[i] = i;
    const auto run = [&](const Model& m, int begin, int end) {
      const std::vector<std::int32_t> cu{0, end - begin}, kv_lens{end};
      ForwardBatch b;
      b.token_ids = view(tokens.data() + begin, {end - begin});
      b.positions = view(std::as_const(positions).data() + begin, {end - begin});
      b.cu_seqlens = view(cu.data(), {2});
      b.kv_lens = view(kv_lens.data(), {1});
      b.slot_mapping = view(std::as_const(slots).data() + begin, {end - begin});
      b.block_table = view(std::as_const(pages).data(), {1, 4});
      b.page_size = 16;
      const ConstTensorView hidden = forward(ctx, m, b, &cache, activations);
      Tensor out(DType::kBF16, {hidden.shape(1)});
      std::copy_n(hidden.at<bf16>(end - begin - 1), hidden.shape(1), out.data<bf16>());
      return out;
    };
    run(prefill, 0, 40);
    return run(model, 40, 41);
  };
  EXPECT_TRUE(same_bits(last_hidden(model), last_hidden(model)));
  EXPECT_FALSE(same_bits(last_hidden(model), last_hidden(old_model)));
}

TEST(RolloutTwin, AnotherSeedOrRequestIdGivesOtherTokens) {
  std::vector<Request> requests = mixed_requests();
  requests[0].seed = 2025;
  const Request other = request(1, 170, 40);
  requests[1] = other;
  requests[1].id = 77;  // the prompt of request 1
  const std::vector<Completion> out = generate({}, requests);
  EXPECT_NE(out[0].token_ids, expected()[0].token_ids);
  EXPECT_NE(out[1].token_ids, expected()[0].token_ids);
}

}  // namespace
}  // namespace rlk::test
