// A whole model of Qwen3's shapes on a GPU, in each profile that it runs: the trainer's weights and
// the rollout engine's tokens and log-probabilities are those of the CPU, whatever the batches.
#include <chrono>
#include <iostream>

#include <fmt/format.h>

#include "rlk/core/error.h"
#include "rlk/ops/backend.h"
#include "tests/gpu/engines.h"

namespace rlk::test {
namespace {

// 4 layers of Qwen3-0.6B.
EngineSetup whole_model(Profile profile) {
  EngineSetup s;
  s.contract = Contract();
  s.contract.profile = profile;
  s.contract.kv_split = 128;    // sequences of several splits
  s.contract.grad_group = 128;  // and groups
  ModelConfig& c = s.config = ModelConfig();
  c.model_type = "qwen3";
  c.vocab_size = 8192;  // padded to itself with one leaf too
  c.hidden_size = 1024;
  c.intermediate_size = 3072;
  c.num_hidden_layers = 4;
  c.num_attention_heads = 16;
  c.num_key_value_heads = 8;
  c.head_dim = 128;
  c.max_position_embeddings = 1024;
  c.tie_word_embeddings = true;
  c.qk_norm = true;
  s.num_threads = 0;
  s.trainer.max_model_len = 512;
  s.trainer.micro_batch_tokens = 100000;
  s.rollout.max_model_len = 512;
  s.random_weights = init_parameters(c, vocab_padded(s.contract, c.vocab_size), 0.05, 1);
  return s;
}

std::vector<Request> requests(const EngineSetup& s) {
  std::vector<Request> out;
  for (const std::int64_t length : {150, 1, 33, 64, 17, 90}) {
    Request r;
    r.id = out.size();
    r.seed = 3;
    r.prompt_token_ids = random_tokens(length, r.id + 1, s.config.vocab_size);
    r.max_new_tokens = 6;
    if (length == 33) r.sampling = {0.8f, 50, 0.95f, 0};
    out.push_back(r);
  }
  return out;
}

// What was sampled, as a trainer sees it.
std::vector<TrainSample> samples(const std::vector<Completion>& completions,
                                 const std::vector<Request>& requests) {
  std::vector<TrainSample> out;
  for (std::size_t i = 0; i < completions.size(); ++i) {
    const Completion& c = completions[i];
    TrainSample t;
    t.token_ids = c.prompt_token_ids;
    t.token_ids.insert(t.token_ids.end(), c.token_ids.begin(), c.token_ids.end());
    t.prompt_len = std::ssize(c.prompt_token_ids);
    t.sampling = requests[i].sampling;
    t.old_logprobs = c.logprobs;
    t.active.assign(c.token_ids.size(), 1);
    t.advantage = i % 2 == 0 ? 0.5f : -1.0f;
    out.push_back(std::move(t));
  }
  return out;
}

class Timer {
 public:
  explicit Timer(std::string what) : what_(std::move(what)) {}
  ~Timer() {
    const std::chrono::duration<double> time = std::chrono::steady_clock::now() - start_;
    std::cout << fmt::format("  {:<40}{:>9.3f} s\n", what_, time.count());
  }

 private:
  std::string what_;
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

class WholeModel : public testing::TestWithParam<Profile> {
 protected:
  void SetUp() override {
    try {
      gpu_ = &find_backend(gpu_kernels(GetParam()).backend);
    } catch (const Error& e) {
      if (e.code() != ErrorCode::kNotAvailable) throw;
      GTEST_SKIP() << e.what();
    }
  }
  const KernelTable* gpu_ = nullptr;
};

class WholeModelInvariance : public WholeModel {};
class WholeModelTwin : public WholeModel {};

TEST_P(WholeModelInvariance, HasTheBytesOfTheCpuWhateverTheBatches) {
  const EngineSetup s = whole_model(GetParam());
  const std::vector<Request> all = requests(s);
  std::vector<Completion> completions;
  Trained want;
  {
    Timer timer("CPU rollout");
    completions = generate(s.on(cpu_kernels()), all);
  }
  const std::vector<TrainSample> batch = samples(completions, all);
  {
    Timer timer("CPU score, gradient, step");
    want = train(s.on(cpu_kernels()), batch);
  }
  for (std::size_t i = 0; i < batch.size(); ++i) {
    EXPECT_TRUE(same_bytes(completions[i].logprobs, want.scores[i])) << "rollout and trainer";
  }
  std::int64_t num_graph_steps = 0;
  for (const auto& [page_size, chunk, num_seqs] :
       {std::array{16, 512, 64}, std::array{64, 40, 3}, std::array{1, 200, 64}}) {
    EngineSetup cut = s;
    cut.rollout.page_size = page_size;
    cut.rollout.max_num_batched_tokens = chunk;
    cut.rollout.max_num_seqs = num_seqs;
    Timer timer(fmt::format("GPU rollout, pages of {}, {} tokens a step", page_size, chunk));
    RolloutStats stats;
    expect_same(generate(cut.on(*gpu_), all, &stats), completions);
    num_graph_steps += stats.num_graph_steps;
  }
  EXPECT_GT(num_graph_steps, 0);
  for (const std::int64_t tokens : {100000, 100}) {
    EngineSetup cut = s;
    cut.trainer.micro_batch_tokens = tokens;
    Timer timer(fmt::format("GPU score, gradient, step, {} tokens a batch", tokens));
    expect_same(train(cut.on(*gpu_), batch), want);
  }
}

TEST_P(WholeModelTwin, OtherLeavesGiveOtherLogprobs) {
  EngineSetup s = whole_model(GetParam());
  const std::vector<Request> all = requests(s);
  const std::vector<Completion> want = generate(s.on(*gpu_), all);
  s.contract.leaves = 1;
  const std::vector<Completion> got = generate(s.on(*gpu_), all);
  for (std::size_t i = 0; i < all.size(); ++i) EXPECT_NE(got[i].logprobs, want[i].logprobs) << i;
}

std::string profile_name(const testing::TestParamInfo<Profile>& info) {
  return to_string(info.param);
}
INSTANTIATE_TEST_SUITE_P(Gpu, WholeModelInvariance, testing::ValuesIn(kAllProfiles), profile_name);
INSTANTIATE_TEST_SUITE_P(Gpu, WholeModelTwin, testing::ValuesIn(kAllProfiles), profile_name);

}  // namespace
}  // namespace rlk::test
