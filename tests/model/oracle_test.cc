// The model against an independent float64 decoder, forward and backward, within the bounds of
// docs/correctness.md.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "rlk/io/files.h"
#include "rlk/io/safetensors.h"
#include "rlk/model/backward.h"
#include "rlk/ops/linear_logp.h"
#include "rlk/ops/logprob.h"
#include "tests/model/tiny_model.h"

namespace rlk {
namespace {

using nlohmann::json;

struct Bounds {
  json max_abs, relative;

  explicit Bounds(const std::string& path) {
    const json all = json::parse(read_file(path));
    max_abs = all.at("max_abs");
    relative = all.at("relative_frobenius");
  }
};

std::vector<float> as_floats(const ConstTensorView& t) {
  std::vector<float> out;
  for (std::int64_t i = 0; i < t.shape(0); ++i) {
    for (std::int64_t j = 0; j < (t.rank() > 1 ? t.shape(1) : 1); ++j) {
      out.push_back(t.dtype == DType::kBF16 ? numerics::to_f32(*t.at<bf16>(i, j))
                                            : *t.at<float>(i, j));
    }
  }
  return out;
}

class Oracle : public testing::TestWithParam<std::string> {
 protected:
  Oracle()
      : folder_(std::string(RLK_SOURCE_DIR) + "/tests/goldens/oracle/" + GetParam()),
        golden_(folder_ + "/golden.safetensors"),
        bounds_(folder_ + "/bounds.json"),
        ctx_(contract_, all_ops(Mode::kStrict), 2),
        config_(load_model_config(folder_)),
        model_(config_, contract_, 64, true),
        activations_(config_, true) {
    Parameters weights =
        load_parameters(folder_, config_, vocab_padded(contract_, config_.vocab_size));
    model_.load(ctx_, weights, 0);
    tokens_ = golden_.tensor("tokens");
    for (std::int64_t s = 0; s + 1 < golden_.tensor("cu_seqlens").shape(0); ++s) {
      const std::int32_t* cu = golden_.tensor("cu_seqlens").at<std::int32_t>(s);
      for (std::int32_t p = 0; p < cu[1] - cu[0]; ++p) positions_.push_back(p);
      kv_lens_.push_back(cu[1] - cu[0]);
    }
    batch_.token_ids = tokens_;
    batch_.positions = view(std::as_const(positions_).data(), {tokens_.shape(0)});
    batch_.cu_seqlens = golden_.tensor("cu_seqlens");
    batch_.kv_lens =
        view(std::as_const(kv_lens_).data(), {static_cast<std::int64_t>(kv_lens_.size())});
    hidden_ = forward(ctx_, model_, batch_, nullptr, activations_);
  }

  // Against the oracle, or another source of the same tensors.
  void expect_within(const std::string& name, const std::vector<float>& actual,
                     const SafetensorsFile* source = nullptr) {
    const std::vector<float> expected = as_floats((source ? *source : golden_).tensor(name));
    ASSERT_EQ(actual.size(), expected.size()) << name;
    double largest = 0, difference = 0, norm = 0;
    for (std::size_t i = 0; i < actual.size(); ++i) {
      const double d = static_cast<double>(actual[i]) - static_cast<double>(expected[i]);
      largest = std::max(largest, std::abs(d));
      difference += d * d;
      norm += static_cast<double>(expected[i]) * static_cast<double>(expected[i]);
    }
    ASSERT_TRUE(std::isfinite(difference)) << name;
    EXPECT_TRUE(bounds_.max_abs.contains(name) || bounds_.relative.contains(name)) << name;
    if (bounds_.max_abs.contains(name)) {
      EXPECT_LE(largest, bounds_.max_abs[name].at("bound").get<double>()) << name;
    }
    if (bounds_.relative.contains(name)) {
      EXPECT_LE(std::sqrt(difference / norm), bounds_.relative[name].at("bound").get<double>())
          << name;
    }
    ++compared_;
  }

  LinearLogpArgs logp_args(float temperature) {
    params_.temperature = temperature;
    LinearLogpArgs args;
    const std::int64_t n = tokens_.shape(0);
    logp_ = Tensor(DType::kF32, {n});
    entropy_ = Tensor(DType::kF32, {n});
    args.logp = logp_;
    args.entropy = entropy_;
    args.hidden = hidden_;
    args.head = model_.head();
    args.vocab_size = config_.vocab_size;
    args.packed_forward = &model_.packed_head().forward;
    args.packed_backward = &model_.packed_head().backward;
    args.targets = golden_.tensor("targets");
    args.params = &params_;
    return args;
  }

  // The gradient of every parameter under its Hugging Face name, embedding and head of a tied model
  // added.
  Parameters gradient_of(const std::string& loss) {
    const std::int64_t n = tokens_.shape(0);
    const LinearLogpArgs args = logp_args(temperature_of(loss));
    GradientAccumulator grads(config_, model_.vocab_padded());
    grads.begin_micro_batch(batch_.cu_seqlens, contract_.grad_group);
    Tensor d_hidden(DType::kBF16, {n, config_.hidden_size});
    LinearLogpBackwardArgs head;
    head.forward = args;
    head.d_hidden = d_hidden;
    head.dw = grads.dw().lm_head;
    head.chain = grads.chain().lm_head;
    head.group_ends = grads.group_ends();
    head.g = golden_.tensor("loss_weights");
    if (loss == "policy_entropy") head.g_entropy = golden_.tensor("entropy_weights");
    linear_logp_backward(ctx_, head);
    BackwardBuffers buffers(config_);
    backward(ctx_, model_, batch_, activations_, d_hidden, buffers, grads);
    Parameters gradient = make_parameters(config_, model_.vocab_padded(), DType::kF32, true);
    grads.finish(ctx_, gradient);
    if (config_.tie_word_embeddings) {
      float* embedding = gradient.embed_tokens.data<float>();
      for (std::int64_t i = 0; i < gradient.embed_tokens.size(); ++i) {
        embedding[i] += gradient.lm_head.data<float>()[i];
      }
      gradient.lm_head = Tensor();
    }
    return gradient;
  }

  float temperature_of(const std::string& loss) {
    return loss == "policy" ? 1.0f : *golden_.tensor(loss + ".temperature").at<float>();
  }

  std::string folder_;
  SafetensorsFile golden_;
  Bounds bounds_;
  Contract contract_;
  Context ctx_;
  ModelConfig config_;
  Model model_;
  Activations activations_;
  ConstTensorView tokens_;
  std::vector<std::int32_t> positions_, kv_lens_;
  ForwardBatch batch_;
  ConstTensorView hidden_;
  SamplingParams params_;
  Tensor logp_, entropy_;
  int compared_ = 0;
};

TEST_P(Oracle, HasTheSameHiddenStatesAndLogits) {
  const std::int64_t n = tokens_.shape(0);
  for (int i = 0; i < 2; ++i) {
    expect_within("hidden." + std::to_string(i),
                  as_floats(rows(activations_.layer(i).x.view(), 0, n)));
  }
  expect_within("hidden.2", as_floats(rows(activations_.x_out.view(), 0, n)));
  expect_within("final_norm", as_floats(hidden_));
  Tensor logits(DType::kF32, {n, config_.vocab_size});
  compute_logits(ctx_, model_, hidden_, logits);
  expect_within("logits", as_floats(logits));
  EXPECT_EQ(compared_, 5);
}

TEST_P(Oracle, HasTheSameLogprobsEntropiesAndLosses) {
  const std::vector<float> w = as_floats(golden_.tensor("loss_weights"));
  const std::vector<float> v = as_floats(golden_.tensor("entropy_weights"));
  for (const std::string loss : {"policy", "policy_entropy"}) {
    linear_logp(ctx_, logp_args(temperature_of(loss)));
    const std::string prefix = loss == "policy" ? "" : loss + ".";
    expect_within(prefix + "logprobs", as_floats(logp_));
    expect_within(prefix + "entropy", as_floats(entropy_));
    double sum = 0;
    for (std::size_t t = 0; t < w.size(); ++t) {
      sum += static_cast<double>(w[t]) * static_cast<double>(logp_.data<float>()[t]);
      if (loss == "policy") continue;
      sum += static_cast<double>(v[t]) * static_cast<double>(entropy_.data<float>()[t]);
    }
    expect_within(loss + ".loss", {static_cast<float>(sum)});
  }
  EXPECT_EQ(compared_, 6);
}

TEST_P(Oracle, HasTheSameGradientOfEveryParameter) {
  for (const std::string loss : {"policy", "policy_entropy"}) {
    Parameters gradient = gradient_of(loss);
    for (const HfTensor& t : hf_tensors(config_, gradient)) {
      expect_within(loss + ".grad." + t.name, as_floats(t.view));
    }
  }
  EXPECT_EQ(compared_, 2 * static_cast<int>(hf_tensors(config_, model_.parameters()).size()));
}

TEST_P(Oracle, HasTheResultsOfTransformersToo) {
  const SafetensorsFile hf(std::string(RLK_SOURCE_DIR) + "/tests/goldens/hf/" + GetParam() +
                           ".safetensors");
  Tensor logits(DType::kF32, {tokens_.shape(0), config_.vocab_size});
  compute_logits(ctx_, model_, hidden_, logits);
  expect_within("logits", as_floats(logits), &hf);
  for (const std::string loss : {"policy", "policy_entropy"}) {
    linear_logp(ctx_, logp_args(temperature_of(loss)));
    const std::string prefix = loss == "policy" ? "" : loss + ".";
    expect_within(prefix + "logprobs", as_floats(logp_), &hf);
    expect_within(prefix + "entropy", as_floats(entropy_), &hf);
  }
  Parameters gradient = gradient_of("policy");
  for (const HfTensor& t : hf_tensors(config_, gradient)) {
    expect_within("policy.grad." + t.name, as_floats(t.view), &hf);
  }
  EXPECT_EQ(compared_, 5 + static_cast<int>(hf_tensors(config_, model_.parameters()).size()));
}

INSTANTIATE_TEST_SUITE_P(Models, Oracle,
                         testing::Values("qwen3", "qwen3_untied", "qwen2", "llama", "llama_bias"),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace rlk
