// rlk.h with kernels of a GPU: tensors in the memory that it hands out, results and errors behind
// rlk_synchronize, the bytes of the CPU.
#include <array>
#include <cstdint>
#include <cstring>
#include <string>

#include "rlk/ops/audit.h"
#include "rlk/ops/rlk.h"
#include "tests/gpu/gpu_test.h"
#include "tests/ops/c_api_calls.h"

namespace rlk::test {
namespace {

class GpuCApi : public OnGpu {
 protected:
  void SetUp() override {
    OnGpu::SetUp();
    if (IsSkipped()) return;
    cpu_ = context("cpu");
    gpu_ = context(gpu_kernels().backend);
  }
  ~GpuCApi() override {
    rlk_context_destroy(cpu_);
    rlk_context_destroy(gpu_);
  }

  static rlk_context* context(const char* backend, const char* mode = "strict") {
    rlk_context_options options{};
    options.struct_size = sizeof(options);
    options.mode = mode;
    options.num_threads = 1;
    options.backend = backend;
    rlk_context* out = nullptr;
    EXPECT_EQ(rlk_context_create(&options, &out), RLK_OK) << rlk_last_error(nullptr);
    return out;
  }

  // A copy of the tensor's numbers, without gaps, in memory of the context.
  static TensorView in_memory_of(rlk_context* c, const ConstTensorView& t,
                                 int which = RLK_MEMORY_TENSORS) {
    const Tensor dense = gather(t);
    void* data = nullptr;
    EXPECT_EQ(rlk_memory_allocate(c, which, dense.size_bytes(), &data), RLK_OK)
        << rlk_last_error(c);
    std::memcpy(data, dense.view().data, dense.size_bytes());
    return {data, dense.dtype(), dense.layout()};
  }

  rlk_context* cpu_ = nullptr;
  rlk_context* gpu_ = nullptr;
};

// rms_norm, gemm and logprob of three tokens.
TEST_F(GpuCApi, GivesTheBytesOfTheCpu) {
  EXPECT_EQ(rlk_backend_name(gpu_), std::string(gpu_kernels().backend));
  const Tensor x = random_tensor(DType::kBF16, {3, 1, 64}, 1);
  const Tensor w = random_tensor(DType::kBF16, {64}, 2);
  const Tensor head = random_tensor(DType::kBF16, {40, 64}, 3);
  std::array<Tensor, 2> results;
  for (rlk_context* c : {cpu_, gpu_}) {
    const TensorView y = in_memory_of(c, Tensor(DType::kBF16, {3, 1, 64}));
    const TensorView logits = in_memory_of(c, Tensor(DType::kF32, {3, 40}));
    const TensorView logp = in_memory_of(c, Tensor(DType::kF32, {3}), RLK_MEMORY_SMALL);
    const auto norm = to_c(RmsNormArgs{y, {}, in_memory_of(c, x), in_memory_of(c, w), 1e-6f});
    EXPECT_EQ(rlk_rms_norm(c, &norm.args), RLK_OK) << rlk_last_error(c);
    GemmArgs product;
    product.c = logits;
    product.a = view(y.at<bf16>(), {3, 64});
    product.b = in_memory_of(c, head);
    product.segments = {64, 0, 0};
    const auto gemm = to_c(product);
    EXPECT_EQ(rlk_gemm(c, &gemm.args), RLK_OK) << rlk_last_error(c);
    const std::array<std::int32_t, 3> targets{7, 39, 0};  // the host's
    const SamplingParams params;
    LogprobArgs scored;
    scored.logp = logp;
    scored.logits = logits;
    scored.targets = view(targets.data(), {3});
    scored.params = &params;
    scored.num_params = 1;
    const auto scores = to_c(scored);
    EXPECT_EQ(rlk_logprob(c, &scores.args), RLK_OK) << rlk_last_error(c);
    EXPECT_EQ(rlk_synchronize(c), RLK_OK) << rlk_last_error(c);
    results[c == gpu_ ? 1 : 0] = gather(logp);
  }
  EXPECT_TRUE(same_bits(results[1], results[0]));
}

// The kernel of the GPU runs beside the production one, which alone reads the host's array itself.
TEST_F(GpuCApi, AuditsCallsWithIndexArraysOfTheHost) {
  if (!production_kernels().logprob) GTEST_SKIP() << "no production route in this program";
  const Tensor logits = random_tensor(DType::kF32, {3, 40}, 1);
  const std::array<std::int32_t, 3> targets{7, 39, 0};
  const SamplingParams params;
  std::array<Tensor, 2> results;
  for (const char* mode : {"off", "audit"}) {
    rlk_context* const c = context(gpu_kernels().backend, mode);
    LogprobArgs scored;
    scored.logp = in_memory_of(c, Tensor(DType::kF32, {3}), RLK_MEMORY_SMALL);
    scored.logits = in_memory_of(c, logits);
    scored.targets = view(targets.data(), {3});
    scored.params = &params;
    scored.num_params = 1;
    const auto call = to_c(scored);
    EXPECT_EQ(rlk_logprob(c, &call.args), RLK_OK) << mode << ": " << rlk_last_error(c);
    EXPECT_EQ(rlk_synchronize(c), RLK_OK) << rlk_last_error(c);
    results[mode == std::string("audit")] = gather(scored.logp);
    rlk_context_destroy(c);
  }
  EXPECT_TRUE(same_bits(results[1], results[0]));
}

TEST_F(GpuCApi, TellsOfAForbiddenNumberWhenItWaits) {
  Tensor x = random_tensor(DType::kBF16, {4, 1, 16}, 1);
  x.data<bf16>()[16 * 3] = bf16{0x7f80};
  const TensorView w = in_memory_of(gpu_, random_tensor(DType::kBF16, {16}, 2));
  const TensorView y = in_memory_of(gpu_, x);
  const auto call = to_c(RmsNormArgs{y, {}, in_memory_of(gpu_, x), w, 1e-6f});
  EXPECT_EQ(rlk_rms_norm(gpu_, &call.args), RLK_OK) << rlk_last_error(gpu_);
  EXPECT_EQ(rlk_synchronize(gpu_), RLK_ERROR_NON_FINITE);
  EXPECT_NE(std::string(rlk_last_error(gpu_)).find("rms_norm: row 3"), std::string::npos)
      << rlk_last_error(gpu_);
  EXPECT_EQ(rlk_synchronize(gpu_), RLK_OK);
  // Free waits too, and frees all the same.
  EXPECT_EQ(rlk_rms_norm(gpu_, &call.args), RLK_OK);
  EXPECT_EQ(rlk_memory_free(gpu_, y.data), RLK_ERROR_NON_FINITE);
  EXPECT_EQ(rlk_memory_free(gpu_, y.data), RLK_ERROR_INVALID_ARGUMENT);
}

}  // namespace
}  // namespace rlk::test
