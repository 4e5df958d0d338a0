// The engines on a GPU, here a model small enough for the emulator: forward, backward, the
// optimizer and sampling give the bytes of the engines on a CPU.
#include "tests/gpu/engines.h"

#include "rlk/core/error.h"

namespace rlk::test {
namespace {

std::vector<Request> requests() {
  std::vector<Request> out;
  for (const std::int64_t length : {34, 5}) {
    Request r;
    r.id = static_cast<std::uint64_t>(length);
    r.seed = 11;
    r.prompt_token_ids = random_tokens(length, r.id);
    r.max_new_tokens = 3;
    if (length == 5) r.sampling = {0.7f, 20, 0.9f, 0};
    out.push_back(r);
  }
  return out;
}

std::vector<TrainSample> samples() {
  std::vector<TrainSample> out;
  for (const std::int64_t length : {34, 7, 4}) {
    TrainSample t;
    t.token_ids = random_tokens(length, static_cast<std::uint64_t>(length));
    t.prompt_len = length / 2;
    t.old_logprobs.assign(static_cast<std::size_t>(t.response_len()), -3.0f);
    t.active.assign(static_cast<std::size_t>(t.response_len()), 1);
    t.advantage = length == 7 ? -1.0f : 0.5f;
    out.push_back(t);
  }
  out[0].active[2] = 0;
  return out;
}

using GpuEngines = OnGpu;
using GpuEnginesInvariance = OnGpu;
using GpuEnginesTwin = OnGpu;

TEST_F(GpuEnginesInvariance, TrainTheWeightsOfTheCpu) {
  const EngineSetup s;
  const Trained want = train(s.on(cpu_kernels()), samples());
  EngineSetup cut = s;
  cut.trainer.micro_batch_tokens = 10;
  expect_same(train(cut.on(gpu_kernels()), samples()), want);
}

TEST_F(GpuEnginesInvariance, SampleTheTokensOfTheCpu) {
  EngineSetup s;
  const std::vector<Completion> want = generate(s.on(cpu_kernels()), requests());
  s.rollout.max_num_batched_tokens = 24;  // prompts in chunks
  s.rollout.page_size = 8;
  expect_same(generate(s.on(gpu_kernels()), requests()), want);
}

TEST_F(GpuEnginesTwin, OtherLeavesGiveOtherLogprobs) {
  EngineSetup s;
  const std::vector<std::vector<float>> want = scores(s.on(cpu_kernels()), samples());
  s.contract.leaves = 1;
  EXPECT_NE(scores(s.on(gpu_kernels()), samples()), want);
}

// The message names the node although nobody waited behind it.
TEST_F(GpuEngines, NameTheNodeThatMetANumberTheContractForbids) {
  const EngineSetup s;
  std::vector<std::string> messages;
  for (const KernelTable* table : {&cpu_kernels(), &gpu_kernels()}) {
    OneContext one(s.on(*table));
    Parameters weights = s.weights();
    weights.layers[0].k_norm.data<bf16>()[3] = bf16{0x7f80};
    Trainer trainer(one.ctx, s.config, s.trainer, weights, 0);
    try {
      trainer.score(samples());
      FAIL() << table->backend << ": accepted";
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), ErrorCode::kNonFinite);
      messages.push_back(e.what());
    }
  }
  EXPECT_NE(messages[0].find("layer 0"), std::string::npos) << messages[0];
  EXPECT_EQ(messages[0], messages[1]);
}

}  // namespace
}  // namespace rlk::test
