// Two engines with plans of their own: rollout and trainer find the same bytes for any model,
// contract, requests, pages, chunks, preemptions, prefix hits and micro-batches; and a gradient
// does not depend on the plan.
#include "tests/properties/draw.h"
#include "tests/rollout/rollout_data.h"
#include "tests/trainer/completion_sample.h"
#include "tests/trainer/trainer_data.h"

namespace rlk::test {
namespace {

constexpr std::int64_t kMaxModelLen = 96;

Contract draw_contract() {
  Contract c;
  c.leaves = 1 << draw(0, 3);
  c.kv_block = static_cast<int>(16 * draw(1, 3));
  c.kv_split = c.kv_block * static_cast<int>(draw(1, 3));
  c.norm_lanes = 1 << draw(4, 8);
  c.token_block = static_cast<int>(16 * draw(1, 2));
  c.grad_group = static_cast<int>(16 * draw(1, 8));
  c.grad_slots = 1 << draw(0, 2);
  return c;
}

ModelConfig draw_config() {
  ModelConfig c = tiny_config(draw_one<std::string>({"qwen3", "qwen2", "llama"}), draw_bool());
  c.vocab_size = draw_size(2, 70);
  c.hidden_size = 2 * draw_size(1, 40);
  c.intermediate_size = 2 * draw_size(1, 40);
  c.num_hidden_layers = static_cast<int>(draw(1, 2));
  c.num_key_value_heads = static_cast<int>(draw(1, 2));
  c.num_attention_heads = c.num_key_value_heads * static_cast<int>(draw(1, 3));
  c.head_dim = static_cast<int>(2 * draw_size(1, 12));
  if (c.model_type == "llama") {
    c.attention_bias = c.attention_output_bias = draw_bool();
    c.mlp_bias = draw_bool();
  }
  return c;
}

SamplingParams draw_sampling(std::int64_t vocab_size) {
  SamplingParams p;
  p.temperature = draw_one<float>({0.0f, 0.7f, 1.0f, 1.3f});
  if (draw_bool()) p.top_k = static_cast<std::int32_t>(draw(1, vocab_size));
  if (draw_bool()) p.top_p = 0.9f;
  if (draw_bool()) p.min_p = 0.02f;
  return p;
}

// Prompts that often begin like one before.
std::vector<Request> draw_requests(std::int64_t vocab_size) {
  std::vector<Request> out;
  for (std::int64_t i = draw(1, 6); i > 0; --i) {
    Request r;
    r.id = out.size();
    r.seed = static_cast<std::uint64_t>(draw(0, 1 << 20));
    r.prompt_token_ids = random_tokens(draw_size(1, 70), r.seed, vocab_size);
    if (!out.empty() && draw_bool()) {
      const std::vector<std::int32_t>& before = draw_one(out).prompt_token_ids;
      const std::size_t n = std::min(before.size(), r.prompt_token_ids.size());
      std::copy_n(before.begin(), n, r.prompt_token_ids.begin());
    }
    r.sampling = draw_sampling(vocab_size);
    r.max_new_tokens = draw_size(1, 26);
    out.push_back(std::move(r));
  }
  return out;
}

const KernelTable* draw_backend() { return draw_one(backends()); }

// Pages for one sequence of full length and a few more: the others are preempted.
RolloutSetup draw_rollout(const Contract& contract, const ModelConfig& config) {
  RolloutSetup s;
  s.contract = contract;
  s.config = config;
  s.kernels = draw_backend();
  s.num_threads = static_cast<int>(draw(1, 4));
  RolloutOptions& o = s.options;
  o.max_model_len = kMaxModelLen;
  o.page_size = std::int64_t{1} << draw(0, 7);
  o.num_pages = (kMaxModelLen + o.page_size - 1) / o.page_size + draw(0, 120) / o.page_size;
  o.max_num_seqs = draw(1, 6);
  o.max_num_batched_tokens = draw_one<std::int64_t>({1, 7, 16, 64, 333});
  o.prefix_cache = draw_bool();
  return s;
}

TrainerSetup draw_trainer(const Contract& contract, const ModelConfig& config) {
  TrainerSetup s;
  s.contract = contract;
  s.config = config;
  s.kernels = draw_backend();
  s.num_threads = static_cast<int>(draw(1, 4));
  s.options.max_model_len = kMaxModelLen;
  s.options.micro_batch_tokens = draw_one<std::int64_t>({1, 40, 100, 1000});
  return s;
}

TEST(Properties, RolloutAndTrainerFindTheSameBytesWhateverTheirPlans) {
  EXPECT_TRUE(rc::check("rollout and trainer", [] {
    const Contract contract = draw_contract();
    const ModelConfig config = draw_config();
    const std::vector<Request> requests = draw_requests(config.vocab_size);
    RolloutStats stats;
    const std::vector<Completion> sampled =
        generate(draw_rollout(contract, config), requests, &stats);
    RC_CLASSIFY(stats.num_preemptions > 0, "preempted");
    RC_CLASSIFY(stats.num_prefix_hits > 0, "prefix hits");

    const auto again = generate(draw_rollout(contract, config), requests);
    const auto same = same_completions(again, sampled);
    if (!same) RC_FAIL(same.message());

    std::vector<TrainSample> samples;
    std::vector<std::vector<float>> logprobs;
    for (std::size_t i = 0; i < requests.size(); ++i) {
      samples.push_back(sample_of(sampled[i], requests[i].sampling));
      logprobs.push_back(sampled[i].logprobs);
    }
    TrainerSetup setup = draw_trainer(contract, config);
    setup.options.loss.kl = Kl::kNone;
    TestTrainer t(setup);
    const auto agree = same_logprobs(t.trainer.score(samples), logprobs);
    if (!agree) RC_FAIL(agree.message());
  }));
}

TEST(Properties, AGradientDoesNotDependOnThePlan) {
  EXPECT_TRUE(rc::check("gradient", [] {
    const Contract contract = draw_contract();
    const ModelConfig config = draw_config();
    std::vector<TrainSample> samples;
    for (std::int64_t i = draw(1, 5); i > 0; --i) {
      const std::int64_t prompt_len = draw_size(1, 40);
      const auto advantage = static_cast<float>(draw(-2, 2));
      const auto seed = static_cast<std::uint64_t>(draw(0, 1 << 20));
      TrainSample s = train_sample(prompt_len, draw_size(0, 40), advantage, seed);
      for (std::int32_t& id : s.token_ids) id %= static_cast<std::int32_t>(config.vocab_size);
      s.sampling.temperature = draw_one<float>({0.0f, 0.7f, 1.0f});
      samples.push_back(std::move(s));
    }
    PassResult a = run_pass(draw_trainer(contract, config), samples);
    PassResult b = run_pass(draw_trainer(contract, config), samples);
    const auto same = same_result(a, b);
    if (!same) RC_FAIL(same.message());
  }));
}

}  // namespace
}  // namespace rlk::test
