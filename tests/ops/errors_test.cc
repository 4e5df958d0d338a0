// What an operator says when its arguments do not fit: the node, the operator, the argument.
#include <cmath>
#include <limits>

#include "rlk/ops/adamw.h"
#include "rlk/ops/attention.h"
#include "rlk/ops/copy_rows.h"
#include "rlk/ops/embedding.h"
#include "rlk/ops/gemm.h"
#include "rlk/ops/grpo_loss.h"
#include "rlk/ops/logprob.h"
#include "rlk/ops/residual_add.h"
#include "rlk/ops/rms_norm.h"
#include "rlk/ops/rope.h"
#include "rlk/ops/swiglu.h"
#include "tests/io/error_matchers.h"
#include "tests/kernels/test_data.h"

namespace rlk::test {
namespace {

class OpErrors : public testing::Test {
 protected:
  OpErrors() : ctx_({}, all_ops(Mode::kStrict), 1) { ctx_.set_node(3, "some_node"); }

  // Every message starts with the node.
  template <typename Op, typename Args>
  void refused(Op op, const Args& args, ErrorCode code, std::vector<std::string> named) {
    named.insert(named.begin(), "layer 3 some_node: ");
    expect_error(code, named, [&] { op(ctx_, args); });
  }

  static Tensor bf(std::initializer_list<std::int64_t> sizes) { return {DType::kBF16, sizes}; }
  static Tensor f32(std::initializer_list<std::int64_t> sizes) { return {DType::kF32, sizes}; }

  Context ctx_;
};

TEST_F(OpErrors, EmbeddingNamesTheTokenAndItsId) {
  Tensor y = bf({3, 8}), table = bf({10, 8});
  for (std::int32_t id : {-1, 10, -100}) {
    const Tensor ids = i32_tensor({0, 9, id});
    refused(embedding, EmbeddingArgs{y, table, ids}, ErrorCode::kInvalidArgument,
            {"embedding", "token 2", "id " + std::to_string(id), "[0, 10)"});
    Tensor d = f32({10, 8});
    refused(embedding_backward, EmbeddingBackwardArgs{d, y, ids}, ErrorCode::kInvalidArgument,
            {"embedding_backward", "token 2", std::to_string(id)});
  }
  const Tensor ids = i32_tensor({0, 1, 2});
  Tensor narrow = bf({3, 7});
  refused(embedding, EmbeddingArgs{narrow, table, ids}, ErrorCode::kShape,
          {"y has shape [3, 7]", "[3, 8]"});
  refused(embedding, EmbeddingArgs{y, f32({10, 8}), ids}, ErrorCode::kDtype, {"y is BF16", "F32"});
}

TEST_F(OpErrors, CopyRowsNamesTheRow) {
  Tensor y = bf({5, 8}), x = bf({3, 8});
  for (const std::int64_t row : {-2, 3}) {
    const std::vector<std::int64_t> from{0, row};
    refused(copy_rows, CopyRowsArgs{y, x, view(from.data(), {2}), {}}, ErrorCode::kInvalidArgument,
            {"copy_rows", "from[1] = " + std::to_string(row), "-1 to 2"});
  }
  const std::vector<std::int64_t> to{0, -1, 1};
  refused(copy_rows, CopyRowsArgs{y, x, {}, view(to.data(), {3})}, ErrorCode::kInvalidArgument,
          {"to[1] = -1", "0 to 4"});
  Tensor few = bf({2, 8}), narrow = bf({5, 7});
  refused(copy_rows, CopyRowsArgs{few, x, {}, {}}, ErrorCode::kShape, {"3 copies without to"});
  refused(copy_rows, CopyRowsArgs{narrow, x, {}, {}}, ErrorCode::kShape, {"y has shape [5, 7]"});
}

TEST_F(OpErrors, RmsNormNamesTheArgument) {
  Tensor x = bf({4, 2, 16}), y = bf({4, 2, 16}), w = bf({16}), q = f32({4, 2});
  const RmsNormArgs good{y, q, x, w, 1e-6f};
  rms_norm(ctx_, good);
  RmsNormArgs a = good;
  const Tensor short_w = bf({15});
  a.w = short_w;
  refused(rms_norm, a, ErrorCode::kShape, {"rms_norm", "w has shape [15]", "[16]"});
  a = good;
  a.x = {};
  refused(rms_norm, a, ErrorCode::kShape, {"rms_norm", "x"});
  a = good;
  a.w.data = nullptr;
  refused(rms_norm, a, ErrorCode::kInvalidArgument, {"rms_norm", "w is absent"});
  a = good;
  a.residual = x;
  refused(rms_norm, a, ErrorCode::kShape, {"rms_norm", "residual_out"});
  a = good;
  a.residual_out = y;
  refused(rms_norm, a, ErrorCode::kShape, {"rms_norm", "residual has shape"});
  x.data<bf16>()[16 * 3] = numerics::to_bf16(INFINITY);
  refused(rms_norm, good, ErrorCode::kNonFinite, {"rms_norm", "row 3", "not finite"});
}

TEST_F(OpErrors, GemmNamesTheArgument) {
  Tensor c = f32({4, 6}), a = bf({4, 32}), b = bf({6, 32}), bias = bf({6});
  GemmArgs good;
  good.c = c;
  good.a = a;
  good.b = b;
  good.bias = bias;
  good.segments = {32, 0, 0};
  gemm(ctx_, good);
  GemmArgs args = good;
  Tensor other = bf({6, 31});
  args.b = other;
  refused(gemm, args, ErrorCode::kShape, {"gemm", "b has shape [6, 31]", "[6, 32]"});
  args = good;
  args.segments = {16, 8, 0};
  refused(gemm, args, ErrorCode::kShape, {"gemm", "segments", "32"});
  args = good;
  Tensor long_bias = bf({7});
  args.bias = long_bias;
  refused(gemm, args, ErrorCode::kShape, {"gemm", "bias"});
  args = good;
  Tensor ints(DType::kI32, {4, 6});
  args.c = ints;
  refused(gemm, args, ErrorCode::kDtype, {"gemm", "c is"});
  args = good;
  Tensor wide = f32({6, 32});
  args.b = wide;  // a is bf16
  refused(gemm, args, ErrorCode::kDtype, {"gemm", "b is F32", "BF16"});
  Tensor narrow = bf({5, 32});
  PackedWeight packed;
  pack_weight(ctx_, {&packed, narrow});
  args = good;
  args.packed_b = &packed;
  if (packed.owner) refused(gemm, args, ErrorCode::kShape, {"gemm", "packed", "[5, 32]"});
}

TEST_F(OpErrors, GemmBackwardWeightChecksItsGroups) {
  Tensor dw = f32({6, 8}), chain = f32({6, 8}), dy = bf({20, 6}), x = bf({20, 8});
  for (const std::vector<std::int64_t>& ends : {std::vector<std::int64_t>{21}, {12, 8}, {-1}}) {
    GemmBackwardWeightArgs args{dw, chain, dy, x,
                                view(ends.data(), {static_cast<std::int64_t>(ends.size())})};
    refused(gemm_backward_weight, args, ErrorCode::kInvalidArgument,
            {"gemm_backward_weight", "group_ends"});
  }
}

TEST_F(OpErrors, OffsetsMustRiseFromZeroToTheTokens) {
  Tensor dbias = f32({6}), dy = bf({20, 6});
  for (const std::vector<std::int32_t>& offsets :
       {std::vector<std::int32_t>{1, 20}, {0, 19}, {0, 21}, {0, 12, 8, 20}, {0}}) {
    const Tensor cu = i32_tensor(offsets);
    refused(bias_backward, BiasBackwardArgs{dbias, dy, cu}, ErrorCode::kInvalidArgument,
            {"bias_backward", "cu_seqlens"});
  }
}

TEST_F(OpErrors, RopeNamesThePosition) {
  Tensor x = bf({2, 2, 8}), y = bf({2, 2, 8}), cos = f32({16, 4}), sin = f32({16, 4});
  for (std::int32_t position : {-1, 16}) {
    const Tensor positions = i32_tensor({0, position});
    refused(rope, RopeArgs{y, x, cos, sin, positions}, ErrorCode::kInvalidArgument,
            {"rope", "token 1", "position " + std::to_string(position), "16"});
  }
  Tensor odd = bf({2, 2, 7});
  const Tensor positions = i32_tensor({0, 1});
  refused(rope, RopeArgs{odd, odd, cos, sin, positions}, ErrorCode::kShape, {"rope", "odd"});
}

TEST_F(OpErrors, ElementwiseOperatorsNameTheArgument) {
  Tensor a = bf({4, 6}), b = bf({4, 5});
  refused(residual_add, ResidualAddArgs{a, a, b}, ErrorCode::kShape,
          {"residual_add", "b", "[4, 5]"});
  refused(swiglu, SwigluArgs{a, a, b}, ErrorCode::kShape, {"swiglu", "u", "[4, 5]"});
  refused(swiglu_backward, SwigluBackwardArgs{a, b, a, a, a}, ErrorCode::kShape,
          {"swiglu_backward", "du", "[4, 5]"});
}

struct AttentionData {
  Tensor y{DType::kBF16, {5, 4, 16}}, q{DType::kBF16, {5, 4, 16}};
  Tensor k{DType::kBF16, {32, 2, 16}}, v{DType::kBF16, {32, 2, 16}};
  Tensor cu = cu_seqlens({2, 3}), kv_lens = i32_tensor({9, 3});
  Tensor block_table;
  AttentionArgs args;

  AttentionData() : block_table(DType::kI32, {2, 2}) {
    const std::int32_t pages[] = {3, 0, 1, -1};
    std::copy_n(pages, 4, block_table.data<std::int32_t>());
    args.y = y;
    args.q = q;
    args.kv = {k, v, block_table, {}, 8};
    args.cu_seqlens_q = cu;
    args.kv_lens = kv_lens;
  }
};

TEST_F(OpErrors, AttentionNeverReadsOutsideTheCache) {
  AttentionData d;
  attention(ctx_, d.args);
  std::int32_t* page = d.block_table.data<std::int32_t>();
  for (std::int32_t wrong : {-1, 4, std::numeric_limits<std::int32_t>::max()}) {
    page[1] = wrong;
    refused(attention, d.args, ErrorCode::kInvalidArgument,
            {"attention", "sequence 0", "page " + std::to_string(wrong), "4"});
  }
  page[1] = 0;
  d.kv_lens.data<std::int32_t>()[0] = 17;
  refused(attention, d.args, ErrorCode::kInvalidArgument, {"sequence 0", "3 pages", "2"});
  d.kv_lens.data<std::int32_t>()[0] = 1;
  refused(attention, d.args, ErrorCode::kInvalidArgument, {"2 queries", "1 keys"});
  d.kv_lens.data<std::int32_t>()[0] = 9;
  d.args.kv.page_size = 12;
  refused(attention, d.args, ErrorCode::kInvalidArgument, {"page_size 12"});

  const Tensor start = i32_tensor({0, 30});
  d.args.kv = {d.k, d.v, {}, start, 0};
  refused(attention, d.args, ErrorCode::kInvalidArgument, {"sequence 1", "[30, 33)", "32"});
}

TEST_F(OpErrors, AttentionNamesHeadsThatDoNotDivide) {
  AttentionData d;
  Tensor k(DType::kBF16, {32, 3, 16});
  d.args.kv.k = d.args.kv.v = k;
  refused(attention, d.args, ErrorCode::kShape, {"attention", "4 query heads", "3 KV heads"});
  Tensor none(DType::kBF16, {32, 0, 16});
  d.args.kv.k = d.args.kv.v = none;
  refused(attention, d.args, ErrorCode::kShape, {"attention", "0 KV heads"});
}

TEST_F(OpErrors, ATargetOutsideTheVocabularyIsTheSameErrorEverywhere) {
  const SamplingParams params;
  for (Mode mode : {Mode::kStrict, Mode::kAuto, Mode::kOff}) {
    Context ctx({}, all_ops(mode), 1);
    ctx.set_node(-1, "lm_head");
    Tensor logits = f32({2, 5}), logp = f32({2}), g = f32({2}), d = bf({2, 16});
    for (std::int32_t id : {-1, 5, -99, std::numeric_limits<std::int32_t>::min()}) {
      const Tensor targets = i32_tensor({4, id});
      const std::vector<std::string> named{"lm_head: logprob", "token 1",
                                           "target " + std::to_string(id), "[0, 5)"};
      expect_error(ErrorCode::kInvalidArgument, named, [&] {
        logprob(ctx, {logp, {}, logits, targets, &params, 1});
      });
      expect_error(ErrorCode::kInvalidArgument, named, [&] {
        logprob_backward(ctx, {d, logits, targets, g, {}, &params, 1});
      });
    }
    // ignore_index is not looked at, whatever the row holds.
    logits.data<float>()[0] = NAN;
    const Tensor ignored = i32_tensor({kIgnoreIndex, 1});
    logprob(ctx, {logp, {}, logits, ignored, &params, 1});
    EXPECT_EQ(logp.data<float>()[0], 0.0f);
    EXPECT_LT(logp.data<float>()[1], 0.0f);
  }
}

TEST_F(OpErrors, LogprobNamesTheRowThatHasNoProbability) {
  const SamplingParams params;
  Tensor logits = f32({3, 5}), logp = f32({3});
  const Tensor targets = i32_tensor({0, 1, 2});
  const auto row_2 = [&](std::vector<float> row) {
    std::copy_n(row.data(), 5, logits.data<float>() + 10);
    refused(logprob, LogprobArgs{logp, {}, logits, targets, &params, 1}, ErrorCode::kNonFinite,
            {"logprob", "row 2"});
  };
  row_2({0, 0, NAN, 0, 0});
  row_2({0, INFINITY, 0, 0, 0});
  row_2({0x1p31f, 0, 0, 0, 0});
  row_2({0, 0, -0x1p31f, 0, 0});                              // the target is masked
  row_2({-0x1p31f, -0x1p31f, -0x1p31f, -0x1p31f, -0x1p31f});  // nothing takes part
}

TEST_F(OpErrors, SamplingParametersAreOneOrOnePerRow) {
  Tensor logits = f32({3, 5}), logp = f32({3});
  const Tensor targets = i32_tensor({0, 1, 2});
  const std::vector<SamplingParams> params(3);
  for (std::int64_t count : {0, 2, 4}) {
    refused(logprob, LogprobArgs{logp, {}, logits, targets, params.data(), count},
            ErrorCode::kInvalidArgument, {"logprob", std::to_string(count), "3 rows"});
  }
  refused(logprob, LogprobArgs{logp, {}, logits, targets, nullptr, 1}, ErrorCode::kInvalidArgument,
          {"logprob", "3 rows"});
  Tensor ids(DType::kI32, {3});
  refused(sample, SampleArgs{ids, logits, params.data(), nullptr}, ErrorCode::kInvalidArgument,
          {"sample", "keys"});
}

TEST_F(OpErrors, LossAndOptimizerRefuseWhatIsNotFinite) {
  Tensor g = f32({2}), logp = f32_tensor({-1, 500}), old = f32({2}),
         advantage = f32_tensor({1, -1});
  Tensor weight = f32_tensor({1, 1});
  GrpoLossArgs args;
  args.g = g;
  args.logp = logp;
  args.old = old;
  args.advantage = advantage;
  args.weight = weight;
  refused(grpo_loss, args, ErrorCode::kNonFinite, {"grpo_loss", "row 1"});
  weight.data<float>()[1] = 0;  // masked before the exponential
  grpo_loss(ctx_, args);
  EXPECT_EQ(g.data<float>()[1], 0.0f);
  args.kl_type = Kl::kK1;
  refused(grpo_loss, args, ErrorCode::kShape, {"grpo_loss", "ref"});

  Tensor gradient = f32_tensor({1, NAN});
  const ConstTensorView view = gradient;
  float norm = 0;
  refused(grad_norm, GradNormArgs{&norm, &view, 1}, ErrorCode::kNonFinite, {"grad_norm"});
}

TEST_F(OpErrors, RowOperatorsTakeF32AndAnyStrideButOneTypePerCall) {
  Tensor a(DType::kF32, {3, 8}), b(DType::kF32, {3, 8}), y(DType::kF32, {3, 8});
  residual_add(ctx_, {y, a, b});
  TensorView narrow = y;
  narrow.layout = Layout{2, 3};
  narrow.layout.stride = {8, 2, 0, 0};
  residual_add(ctx_, {narrow, narrow, narrow});
  Tensor half(DType::kBF16, {3, 8}), ids(DType::kI32, {3, 8});
  refused(residual_add, ResidualAddArgs{y, a, half}, ErrorCode::kDtype, {"b is BF16", "F32"});
  refused(residual_add, ResidualAddArgs{half, a, b}, ErrorCode::kDtype, {"y is BF16", "F32"});
  refused(residual_add, ResidualAddArgs{ids, ids, ids}, ErrorCode::kDtype,
          {"a is I32", "BF16 or F32"});
}

TEST_F(OpErrors, OnlyProfilePortableHasProductsOfF32) {
  Contract contract;
  contract.profile = Profile::kSm90;
  Context sm90(contract, all_ops(Mode::kStrict), 1);
  const Tensor a = f32({3, 8}), b = f32({4, 8});
  Tensor c = f32({3, 4});
  GemmArgs args;
  args.c = c;
  args.a = a;
  args.b = b;
  args.segments = {8, 0, 0};
  gemm(ctx_, args);
  expect_error(ErrorCode::kDtype, {"gemm", "a is F32", "BF16 in profile sm90"},
               [&] { gemm(sm90, args); });
}

TEST(Context, RefusesModesAndProfilesThatAreNotThere) {
  Contract contract;
  contract.profile = Profile::kSm90;
  expect_error(ErrorCode::kNotAvailable, {"sm90", "does not run it"},
               [&] { Context(contract, all_ops(Mode::kStrict), 1, &production_kernels()); });
  Context(contract, all_ops(Mode::kStrict), 1);  // the CPU backend runs every profile
  contract = {};
  contract.kv_block = 17;
  expect_error(ErrorCode::kInvalidArgument, {"kv_block"},
               [&] { Context(contract, all_ops(Mode::kStrict), 1); });
  Modes modes = all_ops(Mode::kOff);
  modes[static_cast<int>(Op::gemm)] = Mode::kAudit;
  expect_error(ErrorCode::kInvalidArgument, {"gemm", "audit", "production", "another backend"},
               [&] { Context({}, modes, 1, &production_kernels()); });
  expect_error(ErrorCode::kInvalidArgument, {"rms_nrm", "rms_norm"}, [] { parse_op("rms_nrm"); });
  expect_error(ErrorCode::kInvalidArgument, {"fast", "strict, audit, auto or off"},
               [] { parse_mode("fast"); });
  for (int i = 0; i < kNumOps; ++i) {
    EXPECT_EQ(parse_op(to_string(static_cast<Op>(i))), static_cast<Op>(i));
  }
}

TEST(Context, ProvenanceCountsCallsByShapeClass) {
  Context ctx({}, all_ops(Mode::kStrict), 1);
  Tensor a(DType::kBF16, {5, 6}), b(DType::kBF16, {8, 6}), c(DType::kBF16, {9, 6});
  for (Tensor* t : {&a, &b, &c}) residual_add(ctx, {*t, *t, *t});
  const auto calls = ctx.provenance().calls();
  ASSERT_EQ(calls.size(), 2u);
  EXPECT_EQ(calls[0].first.shape_class, "<=8x6");
  EXPECT_EQ(calls[0].second.count, 2);
  EXPECT_EQ(calls[1].first.shape_class, "<=16x6");
  EXPECT_EQ(calls[0].first.backend, cpu_kernels().backend);
  EXPECT_EQ(calls[0].first.mode, Mode::kStrict);
}

}  // namespace
}  // namespace rlk::test
