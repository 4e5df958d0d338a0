// Which operators the model runs, in which order, and with which of the contract's forms: the tests
// of the operators cannot see that, and two engines that share the model cannot either.
#include <algorithm>
#include <string>
#include <vector>

#include "rlk/model/backward.h"
#include "tests/model/tiny_model.h"

namespace rlk::test {
namespace {

std::vector<std::string>& log() {
  static std::vector<std::string> calls;
  return calls;
}

template <typename Args>
std::string describe(const Args&) {
  return "";
}
std::string describe(const GemmArgs& a) {
  return fmt::format(" {}{}{} {}+{}+{}", a.leaf_tree ? "tree" : "chain", a.bias ? " bias" : "",
                     a.c.dtype == DType::kF32 ? " f32" : "", a.segments[0], a.segments[1],
                     a.segments[2]);
}
std::string describe(const RmsNormArgs& a) {
  return fmt::format(" {}{} eps {}", a.x.shape(1), a.residual ? " residual" : "", a.eps);
}

// The reference kernels, noting every call but packing.
template <auto field, Op op, typename Args>
void noted(Exec& exec, const Args& args) {
  if (op != Op::pack_weight) log().push_back(to_string(op) + describe(args));
  (reference_kernels().*field)(exec, args);
}

const KernelTable& noting_kernels() {
  static const KernelTable kTable = [] {
    KernelTable t = reference_kernels();
#define RLK_OP(name, Args) t.name = &noted<&KernelTable::name, Op::name, Args>;
    RLK_OPS(RLK_OP)
#undef RLK_OP
    return t;
  }();
  return kTable;
}

struct Calls {
  std::vector<std::string> forward, backward;
};

Calls calls_of(ModelConfig config) {
  config.num_hidden_layers = 1;
  config.rms_norm_eps = 0.125;
  const Contract contract = tiny_contract();
  Context ctx(contract, all_ops(Mode::kStrict), 1, &noting_kernels());
  Model model(config, contract, 16, true);
  Parameters weights = tiny_weights(config, contract);
  model.load(ctx, weights, 0);
  const Tensor ids = i32_tensor({3, 1, 4}), positions = i32_tensor({0, 1, 2});
  const Tensor cu = i32_tensor({0, 3}), kv_lens = i32_tensor({3});
  ForwardBatch batch;
  batch.token_ids = ids;
  batch.positions = positions;
  batch.cu_seqlens = cu;
  batch.kv_lens = kv_lens;
  Activations activations(config, true);
  log().clear();
  const ConstTensorView hidden = forward(ctx, model, batch, nullptr, activations);
  Tensor logits(DType::kF32, {3, config.vocab_size});
  compute_logits(ctx, model, hidden, logits);
  Calls out;
  out.forward.swap(log());
  BackwardBuffers buffers(config);
  GradientAccumulator grads(config, model.vocab_padded());
  grads.begin_micro_batch(batch.cu_seqlens, contract.grad_group);
  backward(ctx, model, batch, activations, hidden, buffers, grads);
  out.backward.swap(log());
  return out;
}

using Lines = std::vector<std::string>;

TEST(Composition, ForwardOfQwen3) {
  EXPECT_EQ(calls_of(tiny_config()).forward,
            (Lines{"embedding", "rms_norm 1 eps 0.125", "gemm chain 64+0+0", "rms_norm 4 eps 0.125",
                   "rms_norm 2 eps 0.125", "rope", "copy_rows", "attention", "gemm tree 64+0+0",
                   "rms_norm 1 residual eps 0.125", "gemm chain 64+0+0", "swiglu",
                   "gemm tree 96+0+0", "rms_norm 1 residual eps 0.125", "gemm chain f32 64+0+0"}));
}

TEST(Composition, ForwardWithBiasesAndWithoutQkNorm) {
  ModelConfig config = tiny_config("llama", false);
  config.attention_bias = config.attention_output_bias = config.mlp_bias = true;
  EXPECT_EQ(
      calls_of(config).forward,
      (Lines{"embedding", "rms_norm 1 eps 0.125", "gemm chain bias 64+0+0", "rope", "copy_rows",
             "attention", "gemm tree bias 64+0+0", "rms_norm 1 residual eps 0.125",
             "gemm chain bias 64+0+0", "swiglu", "gemm tree bias 96+0+0",
             "rms_norm 1 residual eps 0.125", "gemm chain f32 64+0+0"}));
}

// Input gradients: row-parallel one chain; column-parallel the leaf tree, q, k, v together (64, 32
// and 32 features) and gate, up together.
TEST(Composition, BackwardOfQwen3) {
  EXPECT_EQ(
      calls_of(tiny_config()).backward,
      (Lines{"rms_norm_backward_weight", "rms_norm_backward",
             // MLP
             "gemm_backward_weight", "gemm chain 64+0+0", "swiglu_backward", "gemm_backward_weight",
             "gemm tree 96+96+0", "rms_norm_backward_weight", "rms_norm_backward", "residual_add",
             // attention
             "gemm_backward_weight", "gemm chain 64+0+0", "attention_backward", "rope_backward",
             "rms_norm_backward_weight", "rms_norm_backward", "rms_norm_backward_weight",
             "rms_norm_backward", "gemm_backward_weight", "gemm tree 64+32+32",
             "rms_norm_backward_weight", "rms_norm_backward", "residual_add",
             "embedding_backward"}));
}

TEST(Composition, BackwardHasOneBiasGradientPerBias) {
  ModelConfig config = tiny_config("llama", false);
  config.attention_bias = config.attention_output_bias = config.mlp_bias = true;
  const Lines calls = calls_of(config).backward;
  EXPECT_EQ(std::count(calls.begin(), calls.end(), "bias_backward"), 4);
  const Lines qwen2 = calls_of(tiny_config("qwen2", false)).backward;
  EXPECT_EQ(std::count(qwen2.begin(), qwen2.end(), "bias_backward"), 1);
}

}  // namespace
}  // namespace rlk::test
