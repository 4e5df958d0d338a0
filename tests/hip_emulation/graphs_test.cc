// Decode steps as graphs, through the kernels of the matrix units that decode: few rows, and the
// splits of attention merged by a second launch.
#include "rlk/kernels/gpu/gpu.h"
#include "tests/gpu/engines.h"

namespace rlk::test {
namespace {

TEST(HipGraphsInvariance, HaveTheBytesOfTheCpu) {
  for (const Profile profile : {Profile::kCdna3, Profile::kCdna2}) {
    const emulation::Scope scope({.wave = 64, .seed = 34, .profile = profile});
    EngineSetup s;
    s.contract.profile = profile;
    s.contract.kv_block = 128;
    s.contract.kv_split = 128;
    s.config.num_attention_heads = 2;
    s.config.num_key_value_heads = 1;
    s.config.head_dim = 64;
    s.rollout.page_size = 256;  // room for two splits
    std::vector<Request> requests(2);
    for (Request& r : requests) {
      r.id = static_cast<std::uint64_t>(&r - requests.data());
      r.prompt_token_ids = random_tokens(3, 70 + r.id);
      r.max_new_tokens = 4;
    }
    const std::vector<Completion> want = generate(s.on(cpu_kernels()), requests);
    RolloutStats stats;
    expect_same(generate(s.on(gpu_kernels(profile)), requests, &stats), want);
    EXPECT_GE(stats.num_graph_steps, 2);
  }
}

}  // namespace
}  // namespace rlk::test
