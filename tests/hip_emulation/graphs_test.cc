// Decode steps as graphs, through the kernels of the matrix units that decode: few rows, and the
// splits of attention merged by a second launch.
#include "rlk/kernels/gpu/gpu.h"
#include "tests/gpu/engines.h"

namespace rlk::test {
namespace {

EngineSetup setup(Profile profile) {
  EngineSetup s;
  s.contract.profile = profile;
  s.contract.kv_block = 128;
  s.contract.kv_split = 128;
  s.config.num_attention_heads = 2;
  s.config.num_key_value_heads = 1;
  s.config.head_dim = 64;
  s.rollout.page_size = 256;  // room for two splits
  return s;
}

std::vector<Request> requests() {
  std::vector<Request> out(2);
  for (Request& r : out) {
    r.id = static_cast<std::uint64_t>(&r - out.data());
    r.prompt_token_ids = random_tokens(3, 70 + r.id);
    r.max_new_tokens = 4;
  }
  return out;
}

TEST(HipGraphsInvariance, HaveTheBytesOfTheCpu) {
  for (const Profile profile : {Profile::kCdna3, Profile::kCdna2}) {
    const emulation::Scope scope({.wave = 64, .seed = 34, .profile = profile});
    const EngineSetup s = setup(profile);
    RolloutStats stats;
    expect_same(generate(s.on(gpu_kernels(profile)), requests(), &stats),
                generate(s.on(cpu_kernels()), requests()));
    EXPECT_GE(stats.num_graph_steps, 2);
  }
}

TEST(HipGraphsTwin, TheOtherChipsInstructionGivesOtherBytes) {
  const emulation::Scope scope({.wave = 64, .seed = 34, .profile = Profile::kCdna2});
  const EngineSetup s = setup(Profile::kCdna3);
  const auto logprobs = [](const std::vector<Completion>& completions) {
    std::vector<std::vector<float>> out;
    for (const Completion& c : completions) out.push_back(c.logprobs);
    return out;
  };
  EXPECT_NE(logprobs(generate(s.on(gpu_kernels(Profile::kCdna3)), requests())),
            logprobs(generate(s.on(cpu_kernels()), requests())));
}

}  // namespace
}  // namespace rlk::test
