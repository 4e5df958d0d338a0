// Products of profiles cdna2 and cdna3: the kernels give the reference's bytes at small and odd
// shapes, whichever of them a shape goes to.
#include <algorithm>
#include <bit>
#include <optional>
#include <utility>
#include <vector>

#include "rlk/kernels/gpu/cdna/gemm.h"
#include "rlk/kernels/gpu/gpu.h"
#include "tests/gpu/gpu_test.h"

namespace rlk {
namespace {

using test::Kind;
using test::random_tensor;
using test::same_bits;
using test::TestExec;

constexpr Profile kProfiles[] = {Profile::kCdna3, Profile::kCdna2};

// Runs body(kernels, contract) on the emulator of each profile's chip.
template <typename Body>
void for_each_profile(const Body& body, std::uint64_t seed = 0) {
  for (const Profile profile : kProfiles) {
    SCOPED_TRACE(profile == Profile::kCdna3 ? "cdna3" : "cdna2");
    const emulation::Scope scope({.wave = 64, .seed = seed, .profile = profile});
    Contract contract;
    contract.profile = profile;
    body(on_host_memory(gpu_kernels(profile)), contract);
  }
}

struct Shape {
  std::int64_t m, n, k;
  bool leaf_tree = false;
  std::array<std::int64_t, 3> segments{0, 0, 0};
  bool b_is_transposed = false;  // as for an input gradient
  DType out = DType::kBF16;
  bool bias = false;
  std::optional<gpu::cdna::Tiles> tiles = {};  // not those that the shape would get
  Kind kind = Kind::kMixed;
};

// c with gaps between rows, in a larger tensor whose other numbers must stay.
Tensor product(const KernelTable& kernels, const Contract& contract, const Shape& s,
               std::int64_t gap = 0) {
  const Tensor a = random_tensor(DType::kBF16, {s.m, s.k}, 1, s.kind);
  const Tensor b = s.b_is_transposed ? random_tensor(DType::kBF16, {s.k, s.n}, 2, s.kind)
                                     : random_tensor(DType::kBF16, {s.n, s.k}, 2, s.kind);
  const Tensor bias = random_tensor(DType::kBF16, {s.n}, 3);
  Tensor c = random_tensor(s.out, {s.m, s.n + gap}, 4);
  GemmArgs args;
  args.c = columns(c.view(), 0, s.n);
  args.a = a;
  args.b = b;
  if (s.b_is_transposed) {
    std::swap(args.b.layout.shape[0], args.b.layout.shape[1]);
    std::swap(args.b.layout.stride[0], args.b.layout.stride[1]);
  }
  if (s.bias) args.bias = bias;
  args.leaf_tree = s.leaf_tree;
  args.segments = s.segments[0] == 0 ? std::array<std::int64_t, 3>{s.k, 0, 0} : s.segments;
  TestExec exec(contract);
  if (s.tiles && &kernels != &reference_kernels()) {
    const emulation::Scope scope(
        {.wave = 64, .profile = contract.profile, .kernels_may_touch_host = true});
    device::Queue queue;
    exec.exec.gpu = &queue;
    gpu::cdna::Product described;
    EXPECT_TRUE(gpu::cdna::describe(exec, args, &described));
    gpu::cdna::gemm_many_rows(exec, described, *s.tiles);
  } else {
    kernels.gemm(exec, args);
  }
  return c;
}

void expect_reference(const Shape& s, int leaves = 8) {
  for_each_profile([&](const KernelTable& kernels, Contract contract) {
    contract.leaves = leaves;
    const std::int64_t gap = contract.profile == Profile::kCdna3 ? 0 : 3;
    EXPECT_TRUE(same_bits(product(kernels, contract, s, gap),
                          product(reference_kernels(), contract, s, gap)))
        << s.m << " x " << s.n << " x " << s.k << " gap " << gap;
  });
}

TEST(CdnaGemm, FewRowsGiveTheReferencesBytes) {
  expect_reference({.m = 1, .n = 20, .k = 72});
  expect_reference({.m = 5, .n = 16, .k = 600, .out = DType::kF32, .bias = true});
  expect_reference({.m = 17, .n = 33, .k = 200, .leaf_tree = true, .bias = true});
  expect_reference({.m = 40, .n = 24, .k = 264, .leaf_tree = true, .out = DType::kF32}, 4);
  expect_reference({.m = 3, .n = 18, .k = 416, .leaf_tree = true, .segments = {264, 88, 64}});
}

TEST(CdnaGemm, ManyRowsGiveTheReferencesBytes) {
  expect_reference({.m = 65, .n = 20, .k = 72, .out = DType::kF32, .bias = true});
  expect_reference({.m = 130, .n = 132, .k = 40});
  expect_reference({.m = 70, .n = 36, .k = 344, .leaf_tree = true, .out = DType::kF32});
  expect_reference({.m = 66, .n = 20, .k = 312, .leaf_tree = true, .segments = {168, 72, 72}}, 4);
}

// Not those that the shapes would get.
TEST(CdnaGemm, OtherTilesGiveTheReferencesBytes) {
  using gpu::cdna::Tiles;
  expect_reference({.m = 260, .n = 132, .k = 40, .tiles = Tiles::kTall});
  expect_reference({.m = 20, .n = 20, .k = 72, .tiles = Tiles::kLarge});
  expect_reference({.m = 20, .n = 72, .k = 72, .b_is_transposed = true, .tiles = Tiles::kLarge});
  expect_reference({.m = 70, .n = 20, .k = 344, .leaf_tree = true, .tiles = Tiles::kLarge});
  expect_reference({.m = 20,
                    .n = 40,
                    .k = 344,
                    .leaf_tree = true,
                    .b_is_transposed = true,
                    .tiles = Tiles::kLarge});
}

TEST(CdnaGemm, InputGradientsGiveTheReferencesBytes) {
  expect_reference({.m = 66, .n = 72, .k = 104, .b_is_transposed = true, .out = DType::kF32});
  expect_reference({.m = 3, .n = 136, .k = 72, .b_is_transposed = true});
  expect_reference({.m = 67,
                    .n = 40,
                    .k = 344,
                    .leaf_tree = true,
                    .segments = {200, 72, 72},
                    .b_is_transposed = true});
}

TEST(CdnaGemm, OddShapesGiveTheReferencesBytes) {
  for (const std::int64_t k : {1, 3, 4, 5, 9, 15, 17, 33, 47}) {
    expect_reference({.m = 3, .n = 19, .k = k});
  }
  expect_reference({.m = 18, .n = 5, .k = 47, .b_is_transposed = true});
  expect_reference({.m = 18, .n = 70, .k = 333, .leaf_tree = true, .out = DType::kF32}, 32);
  expect_reference({.m = 5, .n = 21, .k = 75, .leaf_tree = true, .segments = {35, 19, 21}}, 2);
}

// The same numbers with neighbouring groups of the instruction exchanged.
TEST(CdnaGemmTwin, OtherOrdersOfGroupsAndLeavesGiveOtherBytes) {
  for_each_profile([](const KernelTable& kernels, const Contract& contract) {
    const std::int64_t m = 20, n = 20, k = 256;
    const int width = contract.profile == Profile::kCdna3 ? 8 : 4;
    const Tensor a = random_tensor(DType::kBF16, {m, k}, 1, Kind::kCancelling);
    const Tensor b = random_tensor(DType::kBF16, {n, k}, 2);
    const auto run = [&](const auto& from, bool leaf_tree) {
      Tensor x(DType::kBF16, {m, k}), y(DType::kBF16, {n, k}), c(DType::kF32, {m, n});
      for (std::int64_t i = 0; i < k; ++i) {
        for (std::int64_t r = 0; r < m; ++r)
          x.data<bf16>()[r * k + i] = *a.view().at<bf16>(r, from(i));
        for (std::int64_t r = 0; r < n; ++r)
          y.data<bf16>()[r * k + i] = *b.view().at<bf16>(r, from(i));
      }
      GemmArgs args;
      args.c = c;
      args.a = x;
      args.b = y;
      args.leaf_tree = leaf_tree;
      args.segments = {k, 0, 0};
      TestExec exec(contract);
      kernels.gemm(exec, args);
      return c;
    };
    const auto same = [](std::int64_t i) { return i; };
    const auto groups = [&](std::int64_t i) { return i ^ width; };
    const auto leaves = [](std::int64_t i) {  // of 32 values, 1 and 2 exchanged
      return i / 32 == 1 || i / 32 == 2 ? 96 - i / 32 * 64 + i : i;
    };
    EXPECT_FALSE(same_bits(run(same, false), run(groups, false)));
    EXPECT_FALSE(same_bits(run(same, true), run(leaves, true)));
    EXPECT_FALSE(same_bits(run(same, true), run(same, false)));
  });
}

struct Gradient {
  Tensor dw, chain;
};

struct Tokens {
  std::int64_t n, k;
  std::vector<std::int32_t> lengths;
  std::vector<std::int64_t> group_ends;
  Kind kind = Kind::kMixed;
  std::int64_t gap = 0;  // between rows
};

Gradient weight_gradient(const KernelTable& kernels, const Contract& contract, const Tokens& t) {
  const Tensor samples = test::cu_seqlens(t.lengths);
  const std::int64_t num_tokens = *samples.view().at<std::int32_t>(samples.size() - 1);
  const Tensor dy = random_tensor(DType::kBF16, {num_tokens, t.n + t.gap}, 1, t.kind);
  const Tensor x = random_tensor(DType::kBF16, {num_tokens, t.k + t.gap}, 2, t.kind);
  Gradient out{random_tensor(DType::kF32, {t.n, t.k}, 3),
               random_tensor(DType::kF32, {t.n, t.k}, 4)};
  std::vector<std::int64_t> group_ends = t.group_ends;
  GemmBackwardWeightArgs args;
  args.dw = out.dw;
  args.chain = out.chain;
  args.dy = columns(dy.view(), 0, t.n);
  args.x = columns(x.view(), 0, t.k);
  args.group_ends = view(group_ends.data(), {static_cast<std::int64_t>(group_ends.size())});
  args.cu_seqlens = samples;
  TestExec exec(contract);
  kernels.gemm_backward_weight(exec, args);
  return out;
}

void expect_reference(const Tokens& t) {
  for_each_profile([&](const KernelTable& kernels, const Contract& contract) {
    const Gradient ours = weight_gradient(kernels, contract, t);
    const Gradient right = weight_gradient(reference_kernels(), contract, t);
    EXPECT_TRUE(same_bits(ours.dw, right.dw));
    EXPECT_TRUE(same_bits(ours.chain, right.chain));
  });
}

TEST(CdnaGemm, WeightGradientsGiveTheReferencesBytes) {
  expect_reference(Tokens{24, 40, {37, 0, 5, 64, 1, 33}, {0, 42, 42, 100, 140}});
  expect_reference(Tokens{136, 8, {50}, {}});
  expect_reference(Tokens{8, 136, {3, 4, 12, 2}, {7}, Kind::kSubnormal, 8});
  expect_reference(Tokens{9, 21, {37, 0, 5, 20}, {0, 42, 42}});
  expect_reference(Tokens{20, 36, {19, 7}, {19}, Kind::kCancelling, 3});
}

// A sum that is -0 behind a group: 2^-126, then a little less, which leaves a negative subnormal.
// Groups of padding behind it must not make +0 of it.
Gradient negative_zero(const KernelTable& kernels, const Contract& contract, std::int64_t n,
                       std::int64_t num_tokens, std::int64_t group_end) {
  Tensor dy(DType::kBF16, {num_tokens, n}), x(DType::kBF16, {num_tokens, n});
  const auto set = [&](std::int64_t t, float left, float right) {
    for (std::int64_t i = 0; i < n; ++i) {
      dy.data<bf16>()[t * n + i] = numerics::to_bf16(left);
      x.data<bf16>()[t * n + i] = numerics::to_bf16(right);
    }
  };
  set(0, 0x1p-63f, 0x1p-63f);
  set(4, -0x1.02p-63f, 0x1p-63f);
  Gradient out{Tensor(DType::kF32, {n, n}), Tensor(DType::kF32, {n, n})};
  std::fill_n(out.dw.data<float>(), n * n, -0.0f);
  std::int64_t group_ends[] = {group_end};
  GemmBackwardWeightArgs args;
  args.dw = out.dw;
  args.chain = out.chain;
  args.dy = dy;
  args.x = x;
  args.group_ends = view(group_ends, {group_end == 0 ? 0 : 1});
  TestExec exec(contract);
  kernels.gemm_backward_weight(exec, args);
  return out;
}

TEST(CdnaGemm, PaddingDoesNotTouchANegativeZero) {
  for_each_profile([](const KernelTable& kernels, const Contract& contract) {
    for (const std::int64_t n : {8, 9}) {  // whole tiles, any shape
      for (const std::int64_t group_end : {0, 8}) {
        const Gradient ours = negative_zero(kernels, contract, n, 8, group_end);
        const Gradient right = negative_zero(reference_kernels(), contract, n, 8, group_end);
        EXPECT_TRUE(same_bits(ours.dw, right.dw));
        EXPECT_TRUE(same_bits(ours.chain, right.chain));
      }
    }
  });
}

TEST(CdnaGemmTwin, AGroupOfZerosMakesPositiveZeroOfANegativeOne) {
  const emulation::Scope scope({.wave = 64, .profile = Profile::kCdna2});
  Contract contract;
  contract.profile = Profile::kCdna2;
  const KernelTable& kernels = on_host_memory(gpu_kernels(Profile::kCdna2));
  const float exact = negative_zero(kernels, contract, 8, 8, 0).chain.data<float>()[0];
  const float padded = negative_zero(kernels, contract, 8, 16, 0).chain.data<float>()[0];
  EXPECT_EQ(std::bit_cast<std::uint32_t>(exact), 0x80000000u);
  EXPECT_EQ(std::bit_cast<std::uint32_t>(padded), 0u);
}

TEST(CdnaGemmInvariance, OrderOfBlocksAndThreadsDoesNotShow) {
  const Shape shape{.m = 130, .n = 70, .k = 40, .out = DType::kF32};
  const Tokens tokens{24, 40, {37, 5, 64}, {42, 60}};
  for_each_profile([&](const KernelTable& kernels, const Contract& contract) {
    const Tensor c = product(kernels, contract, shape);
    const Gradient g = weight_gradient(kernels, contract, tokens);
    const emulation::Scope scope({.wave = 64, .seed = 7, .profile = contract.profile});
    EXPECT_TRUE(same_bits(product(kernels, contract, shape), c));
    EXPECT_TRUE(same_bits(weight_gradient(kernels, contract, tokens).dw, g.dw));
  });
}

// dW from parts of the tokens, as linear_logp_backward takes it.
TEST(CdnaGemmInvariance, WindowsOfTokensGiveTheWholesBytes) {
  constexpr std::int64_t kTokens = 71, kReach = 15;
  const Tensor samples = test::cu_seqlens({5, 16, 0, 33, 17});
  for_each_profile([&](const KernelTable&, const Contract& contract) {
    const emulation::Scope scope(
        {.wave = 64, .profile = contract.profile, .kernels_may_touch_host = true});
    for (const std::int64_t n : {8, 9}) {  // whole tiles, any shape
      const Tensor dy = random_tensor(DType::kBF16, {kTokens, n}, 1, Kind::kCancelling);
      const Tensor x = random_tensor(DType::kBF16, {kTokens, n}, 2);
      const auto run = [&](std::int64_t size) {
        Gradient out{Tensor(DType::kF32, {n, n}), random_tensor(DType::kF32, {n, n}, 3)};
        std::int64_t group_ends[] = {0, 21, 60};
        device::Queue queue;
        TestExec exec(contract);
        exec.exec.gpu = &queue;
        for (std::int64_t begin = 0; begin < kTokens; begin += size) {
          const std::int64_t end = std::min(begin + size, kTokens);
          const std::int64_t last = std::min(end + kReach, kTokens);
          GemmBackwardWeightArgs args;
          args.dw = out.dw;
          args.chain = out.chain;
          args.dy = rows(dy.view(), begin, last);
          args.x = rows(x.view(), begin, last);
          args.group_ends = view(group_ends, {3});
          args.cu_seqlens = samples;
          gpu::cdna::gemm_backward_weight_in_window(exec, args, {begin, end, kTokens});
        }
        return out;
      };
      const Gradient whole = run(kTokens);
      for (const std::int64_t size : {3, 16, 40}) {
        const Gradient parts = run(size);
        EXPECT_TRUE(same_bits(parts.dw, whole.dw)) << n << ", windows of " << size;
        EXPECT_TRUE(same_bits(parts.chain, whole.chain)) << n << ", windows of " << size;
      }
    }
  });
}

TEST(CdnaGemmInvariance, TilesOfEveryOrderAreTakenOnce) {
  for (const int dies : {1, 8}) {
    for (const auto& [tiles_m, tiles_n] : {std::pair(1, 1), {3, 5}, {17, 2}, {8, 9}, {23, 31}}) {
      const gpu::cdna::TileOrder order{{tiles_m, tiles_n}, dies};
      std::vector<int> taken(static_cast<std::size_t>(tiles_m * tiles_n));
      for (int block = 0; block < tiles_m * tiles_n; ++block) {
        const auto place = order.place(block);
        ASSERT_TRUE(place.row >= 0 && place.row < tiles_m);
        ASSERT_TRUE(place.column >= 0 && place.column < tiles_n);
        ++taken[static_cast<std::size_t>(place.row * tiles_n + place.column)];
      }
      EXPECT_EQ(std::count(taken.begin(), taken.end(), 1), tiles_m * tiles_n);
    }
  }
}

}  // namespace
}  // namespace rlk
