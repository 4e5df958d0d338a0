// Matrix products and norms: the CPU kernels give the bytes of the reference for any shape, stride,
// packing, thread count and contract.
#include "tests/properties/draw.h"

namespace rlk::test {
namespace {

// c is the columns from `offset` of a wider matrix whose other bytes must stay.
Tensor product(const KernelTable& kernels, const Contract& contract, int threads, GemmArgs args,
               bool packed, DType dtype, std::int64_t offset) {
  TestExec exec(contract, threads);
  const std::int64_t n = args.b.shape(0);
  Tensor c(dtype, {args.a.shape(0), n + 2 * offset});
  if (c.size_bytes() > 0) std::memset(c.data<char>(), 0x5b, c.size_bytes());
  PackedWeight weight;
  if (packed) {
    kernels.pack_weight(exec, {&weight, args.b});
    args.packed_b = &weight;
  }
  args.c = columns(c.view(), offset, offset + n);
  kernels.gemm(exec, args);
  return c;
}

TEST(Properties, GemmGivesTheBytesOfTheReference) {
  EXPECT_TRUE(rc::check("gemm", [] {
    Contract contract;
    contract.leaves = static_cast<int>(draw_one<std::int64_t>({1, 2, 4, 8, 16}));
    GemmArgs args;
    args.leaf_tree = draw_bool();
    args.segments = {draw_size(0, 150), 0, 0};
    if (args.leaf_tree && draw_bool()) args.segments[1] = draw_size(0, 60);
    if (args.segments[1] > 0 && draw_bool()) args.segments[2] = draw_size(0, 60);
    const std::int64_t k = args.segments[0] + args.segments[1] + args.segments[2];
    const std::int64_t m = draw_size(0, 40), n = draw_size(1, 90);
    const Tensor a = draw_tensor({m, k}), b = draw_tensor({n, k}), bias = draw_tensor({n});
    const Strided2 a_gaps = with_gaps(a, draw(1, 3), draw(0, 5), draw_bool());
    const Strided2 b_gaps = with_gaps(b, draw(1, 3), draw(0, 5), draw_bool());
    args.a = draw_bool() ? ConstTensorView(a_gaps.view) : a.view();
    args.b = draw_bool() ? ConstTensorView(b_gaps.view) : b.view();
    if (draw_bool()) args.bias = bias;
    const DType dtype = draw_bool() ? DType::kF32 : DType::kBF16;
    const std::int64_t offset = draw(0, 3);
    assert_same(product(draw_cpu_kernels(), contract, static_cast<int>(draw(1, 4)), args,
                        draw_bool(), dtype, offset),
                product(reference_kernels(), contract, 1, args, false, dtype, offset), "c");
  }));
}

TEST(Properties, GemmBackwardWeightGivesTheBytesOfTheReferenceForAnyCuts) {
  EXPECT_TRUE(rc::check("gemm_backward_weight", [] {
    const std::int64_t tokens = draw_size(0, 90), n = draw_size(1, 40), k = draw_size(1, 70);
    const Tensor dy = draw_tensor({tokens, n}), x = draw_tensor({tokens, k});
    std::vector<std::int64_t> ends;  // group ends, rising
    for (std::int64_t t = 1; t <= tokens; ++t) {
      if (draw(0, 19) == 0) ends.push_back(t);
    }
    const auto run = [&](const KernelTable& kernels, int threads, std::int64_t chunk) {
      TestExec exec({}, threads);
      std::vector<Tensor> out{Tensor(DType::kF32, {n, k}), Tensor(DType::kF32, {n, k})};
      for (std::int64_t begin = 0; begin < tokens; begin += chunk) {
        const std::int64_t end = std::min(tokens, begin + chunk);
        std::vector<std::int64_t> local;
        for (std::int64_t e : ends) {
          if (e > begin && e <= end) local.push_back(e - begin);
        }
        kernels.gemm_backward_weight(
            exec, {out[0], out[1], rows(dy.view(), begin, end), rows(x.view(), begin, end),
                   view(std::as_const(local).data(), {std::ssize(local)})});
      }
      return out;
    };
    const auto wanted = run(reference_kernels(), 1, std::max<std::int64_t>(1, tokens));
    const auto found = run(draw_cpu_kernels(), static_cast<int>(draw(1, 4)), draw(1, 90));
    assert_same(found[0], wanted[0], "dw");
    assert_same(found[1], wanted[1], "chain");
  }));
}

TEST(Properties, RmsNormGivesTheBytesOfTheReference) {
  EXPECT_TRUE(rc::check("rms_norm", [] {
    Contract contract;
    contract.norm_lanes = static_cast<int>(draw_one<std::int64_t>({16, 32, 128, 256, 1024}));
    const std::int64_t tokens = draw_size(0, 12), heads = draw(1, 4), n = draw_size(1, 400);
    const Tensor x = draw_tensor({tokens, heads, n}), w = draw_tensor({n});
    const bool gaps = draw_bool(), in_place = draw_bool();
    const float eps = draw_bool() ? 1e-6f : 1e-5f;
    const OpCall call = [&](const KernelTable& kernels, Exec& exec) {
      Spaced in = spaced(x, 1), out = spaced(x, 1);
      Tensor y = x, q(DType::kF32, {tokens, heads});
      const TensorView to = gaps ? (in_place ? in.view : out.view) : y.view();
      const ConstTensorView from =
          gaps ? ConstTensorView(in.view) : (in_place ? ConstTensorView(y.view()) : x.view());
      kernels.rms_norm(exec, {to, q, from, w, eps});
      std::vector<Tensor> outputs;
      outputs.push_back(gaps ? (in_place ? in.storage : out.storage) : y);
      outputs.push_back(q);
      return outputs;
    };
    const Outcome wanted = outcome(call, reference_kernels(), contract);
    const Outcome found = outcome(call, draw_cpu_kernels(), contract, static_cast<int>(draw(1, 4)));
    RC_ASSERT(found.fault_row == wanted.fault_row);
    assert_same(found.outputs[0], wanted.outputs[0], "y");
    assert_same(found.outputs[1], wanted.outputs[1], "q");
  }));
}

TEST(Properties, RmsNormBackwardGivesTheBytesOfTheReference) {
  EXPECT_TRUE(rc::check("rms_norm_backward", [] {
    Contract contract;
    contract.norm_lanes = static_cast<int>(draw_one<std::int64_t>({16, 64, 256}));
    contract.token_block = static_cast<int>(draw_one<std::int64_t>({16, 64}));
    const std::int64_t heads = draw(1, 3), n = draw_size(1, 200);
    std::vector<std::int32_t> lengths;
    std::int64_t tokens = 0;
    for (std::int64_t i = draw(0, 3); i > 0; --i) {
      lengths.push_back(static_cast<std::int32_t>(draw_size(0, 40)));
      tokens += lengths.back();
    }
    const Tensor x = draw_tensor({tokens, heads, n}), dy = draw_tensor({tokens, heads, n});
    const Tensor w = draw_tensor({n}), cu = cu_seqlens(lengths);
    const OpCall call = [&](const KernelTable& kernels, Exec& exec) {
      Tensor dx(DType::kBF16, {tokens, heads, n}), dw(DType::kF32, {heads, n});
      Tensor q(DType::kF32, {tokens, heads}), y(DType::kBF16, {tokens, heads, n});
      kernels.rms_norm(exec, {y, q, x, w, 1e-6f});
      kernels.rms_norm_backward(exec, {dx, dy, x, w, q});
      kernels.rms_norm_backward_weight(exec, {dw, dy, x, q, cu});
      std::vector<Tensor> outputs;
      outputs.push_back(std::move(dx));
      outputs.push_back(std::move(dw));
      return outputs;
    };
    const Outcome wanted = outcome(call, reference_kernels(), contract);
    const Outcome found = outcome(call, draw_cpu_kernels(), contract, static_cast<int>(draw(1, 4)));
    assert_same(found.outputs[0], wanted.outputs[0], "dx");
    assert_same(found.outputs[1], wanted.outputs[1], "dw");
  }));
}

}  // namespace
}  // namespace rlk::test
