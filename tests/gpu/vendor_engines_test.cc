// Products by the vendor's library on a GPU: cuBLASLt gives our bytes by some of its algorithms,
// and an engine that uses them samples the same tokens, with graphs and without.
#include <algorithm>
#include <iostream>

#include "rlk/core/error.h"
#include "rlk/device/vendor_products.h"
#include "rlk/ops/gemm.h"
#include "rlk/ops/vendor_products.h"
#include "tests/gpu/engines.h"

namespace rlk::test {
namespace {

class OnSm90WithLibrary : public OnGpu {
 protected:
  void SetUp() override {
    OnGpu::SetUp();
    if (IsSkipped()) return;
    if (device::selected().architecture != "sm_90") GTEST_SKIP() << "the GPU is no sm_90";
    try {
      library_ = &device::product_library();
    } catch (const Error& e) {
      GTEST_SKIP() << e.what();
    }
    setup_.contract = Contract();
    setup_.contract.profile = Profile::kSm90;
    ModelConfig& c = setup_.config;
    c.vocab_size = 1000;
    c.hidden_size = c.intermediate_size = 512;
    c.num_attention_heads = 4;
    c.num_key_value_heads = 2;
    c.head_dim = 128;
    setup_.random_weights =
        init_parameters(c, vocab_padded(setup_.contract, c.vocab_size), 0.05, 1);
  }
  // What is tried, and used whatever its time.
  const VendorPlan& try_products(const VendorShape& shape) {
    OneContext one(setup_.on(gpu_kernels(Profile::kSm90)));
    Exec& exec = one.ctx.exec();
    exec.gpu->products = library_;
    const VendorPlan& plan = try_vendor_products(exec, shape, {.worth = 1e9});
    for (const std::string& line : to_lines(plan)) std::cout << "  " << line << "\n";
    return plan;
  }

  const device::ProductLibrary* library_ = nullptr;
  EngineSetup setup_;
};
using VendorEnginesInvariance = OnSm90WithLibrary;
using VendorEnginesTwin = OnSm90WithLibrary;

TEST_F(VendorEnginesInvariance, SomeAlgorithmGivesTheBytesOfOurProducts) {
  for (const DType c : {DType::kBF16, DType::kF32}) {
    const VendorPlan& plan = try_products({6144, 4096, c});
    ASSERT_EQ(plan.failure, "");
    int admitted = 0;
    for (const VendorTrial& t : plan.trials) {
      admitted += t.difference.empty();
      EXPECT_FALSE(t.chosen && !t.difference.empty());
    }
    EXPECT_GT(admitted, 0);
  }
}

// For few rows the library's usual choice are algorithms that cut k.
TEST_F(VendorEnginesTwin, AnAlgorithmThatAddsPartialSumsGivesOtherBytes) {
  constexpr std::int64_t kM = 16, kN = 1024, kK = 4096;
  OneContext one(setup_.on(gpu_kernels(Profile::kSm90)));
  const auto numbers = [&](std::int64_t rows, std::uint64_t seed) {
    Tensor t(DType::kBF16, {rows, kK}, one.ctx.memory());
    const Tensor random = random_tensor(DType::kBF16, {rows, kK}, seed, Kind::kCancelling);
    std::copy_n(random.data<char>(), random.size_bytes(), t.data<char>());
    return t;
  };
  const Tensor a = numbers(kM, 1), b = numbers(kN, 2);
  Tensor ours(DType::kF32, {kM, kN}, one.ctx.memory()), theirs(ours);
  GemmArgs args;
  args.c = ours;
  args.a = a;
  args.b = b;
  args.segments = {kK, 0, 0};
  gemm(one.ctx, args);
  one.ctx.synchronize();
  device::Stream& stream = one.ctx.exec().gpu->stream();
  for (const device::Sums sums : {device::Sums::kWhole, device::Sums::kAny}) {
    const device::VendorProduct product(*library_, theirs, a, b, sums, 16);
    int differing = 0;
    for (int i = 0; i < product.num_algorithms(); ++i) {
      product.run(i, kM, theirs.data<char>(), a.data<char>(), b.data<char>(), stream);
      stream.synchronize();
      differing += !same_bits(theirs, ours);
    }
    EXPECT_EQ(differing > 0, sums == device::Sums::kAny);
  }
}

TEST_F(VendorEnginesInvariance, SampleTheSameTokens) {
  for (const VendorShape& shape : vendor_shapes(setup_.config)) {
    const VendorPlan& plan = try_products(shape);
    EXPECT_EQ(plan.failure, "");
    EXPECT_TRUE(std::ranges::any_of(plan.trials, &VendorTrial::chosen));  // else ours run twice
  }
  std::vector<Request> requests;
  for (const std::int64_t length : {5, 40, 1, 17, 9, 2, 33, 8, 3, 12}) {
    Request r;
    r.id = requests.size();
    r.seed = 3;
    r.prompt_token_ids = random_tokens(length, r.id + 1, setup_.config.vocab_size);
    r.max_new_tokens = 10 + length;
    requests.push_back(r);
  }
  EngineSetup s = setup_.on(gpu_kernels(Profile::kSm90));
  const std::vector<Completion> want = generate(s, requests);
  s.rollout.vendor_products = library_->path();
  for (const bool graphs : {true, false}) {
    s.rollout.graphs = graphs;
    RolloutStats stats;
    expect_same(generate(s, requests, &stats), want);
    EXPECT_EQ(stats.num_graph_steps > 0, graphs);
  }
}

}  // namespace
}  // namespace rlk::test
