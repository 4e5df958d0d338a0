// The CPU products against the reference, byte for byte, for every instruction set of this machine.
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <vector>

#include "rlk/kernels/kernel_table.h"
#include "rlk/numerics/bf16.h"
#include "tests/kernels/test_data.h"

namespace rlk {
namespace {

using test::Kind;
using test::random_tensor;
using test::same_bits;
using test::TestExec;

std::vector<Isa> isas() {
  std::vector<Isa> found;
  for (Isa isa : kAllIsas) {
    if (available(isa)) found.push_back(isa);
  }
  return found;
}

struct Options {
  DType dtype = DType::kF32;
  bool packed = false;
  bool bias = false;
  bool leaf_tree = false;
  std::array<std::int64_t, 3> segments{0, 0, 0};
};

// c starts as NaN, so that an element that is not written is seen.
Tensor run(const KernelTable& kernels, Exec& exec, const ConstTensorView& a,
           const ConstTensorView& b, const ConstTensorView& bias, const Options& options) {
  Tensor c(options.dtype, {a.shape(0), b.shape(0)});
  std::memset(c.view().data, 0xff, c.size_bytes());
  PackedWeight packed;
  GemmArgs args;
  args.c = c;
  args.a = a;
  args.b = b;
  if (options.packed) {
    kernels.pack_weight(exec, {&packed, b});
    args.packed_b = &packed;
  }
  if (options.bias) args.bias = bias;
  args.leaf_tree = options.leaf_tree;
  args.segments = options.segments;
  if (options.segments[0] == 0) args.segments = {a.shape(1), 0, 0};
  kernels.gemm(exec, args);
  return c;
}

Kind kind_of(std::int64_t seed) { return test::kAllKinds[seed % std::ssize(test::kAllKinds)]; }

TEST(Gemm, EqualsTheReferenceForOddShapes) {
  TestExec exec;
  std::int64_t seed = 0;
  for (std::int64_t m : {1, 2, 8, 9, 33, 129}) {
    for (std::int64_t n : {1, 17, 64, 97}) {
      for (std::int64_t k : {0, 1, 16, 75, 300}) {
        ++seed;
        const Tensor a = random_tensor(DType::kBF16, {m, k}, seed, kind_of(seed));
        const Tensor b = random_tensor(DType::kBF16, {n, k}, seed + 1000, kind_of(seed));
        const Tensor bias = random_tensor(DType::kBF16, {n}, seed + 2000, kind_of(seed));
        Options options;
        options.dtype = seed % 2 ? DType::kF32 : DType::kBF16;
        options.bias = seed % 3 == 0;
        const Tensor expected = run(reference_kernels(), exec, a, b, bias, options);
        for (Isa isa : isas()) {
          for (bool packed : {false, true}) {
            options.packed = packed;
            EXPECT_TRUE(same_bits(expected, run(cpu_kernels(isa), exec, a, b, bias, options)))
                << to_string(isa) << " " << m << "x" << n << "x" << k << " packed " << packed;
          }
        }
      }
    }
  }
}

TEST(Gemm, EqualsTheReferenceOverSeveralBlocksOfRowsAndColumns) {
  const Tensor a = random_tensor(DType::kBF16, {600, 40}, 1, Kind::kMixed);
  const Tensor b = random_tensor(DType::kBF16, {700, 40}, 2, Kind::kMixed);
  for (int threads : {1, 2}) {
    TestExec exec({}, threads);
    Options options;
    const Tensor expected = run(reference_kernels(), exec, a, b, {}, options);
    for (Isa isa : isas()) {
      for (bool packed : {false, true}) {
        options.packed = packed;
        EXPECT_TRUE(same_bits(expected, run(cpu_kernels(isa), exec, a, b, {}, options)))
            << to_string(isa) << " packed " << packed;
      }
    }
  }
}

TEST(Gemm, LeavesAnEmptyProductAlone) {
  TestExec exec;
  for (Isa isa : isas()) {
    const Tensor a(DType::kBF16, {0, 64});
    const Tensor b(DType::kBF16, {32, 64});
    EXPECT_EQ(run(cpu_kernels(isa), exec, a, b, {}, {}).size(), 0);
  }
}

TEST(Gemm, EqualsTheReferenceForAnyStrides) {
  TestExec exec;
  const Tensor a_wide = random_tensor(DType::kBF16, {45, 3 * 100}, 1, Kind::kWide);
  const Tensor b_wide = random_tensor(DType::kBF16, {100, 2 * 70}, 2, Kind::kCancelling);
  ConstTensorView every_third = a_wide.view();
  every_third.layout.shape[1] = 100;
  every_third.layout.stride[1] = 3;
  ConstTensorView every_second = transposed(b_wide.view());
  every_second.layout.shape[0] = 70;
  every_second.layout.stride[0] = 2;
  const Tensor a_tall = random_tensor(DType::kBF16, {100, 45}, 3, Kind::kWide);
  const ConstTensorView as[] = {columns(a_wide.view(), 100, 200), every_third,
                                transposed(a_tall.view())};
  const ConstTensorView bs[] = {transposed(columns(b_wide.view(), 30, 100)), every_second};
  for (const ConstTensorView& a : as) {
    for (const ConstTensorView& b : bs) {
      Options options;
      const Tensor expected = run(reference_kernels(), exec, a, b, {}, options);
      for (Isa isa : isas()) {
        for (bool packed : {false, true}) {
          options.packed = packed;
          EXPECT_TRUE(same_bits(expected, run(cpu_kernels(isa), exec, a, b, {}, options)))
              << to_string(isa) << " packed " << packed;
        }
      }
    }
  }
}

TEST(Gemm, WritesOnlyItsColumnsOfAWiderMatrix) {
  TestExec exec;
  const Tensor a = random_tensor(DType::kBF16, {20, 64}, 1);
  const Tensor b = random_tensor(DType::kBF16, {33, 64}, 2);
  for (Isa isa : isas()) {
    Tensor expected(DType::kBF16, {20, 50});
    Tensor c(DType::kBF16, {20, 50});
    GemmArgs args;
    args.a = a;
    args.b = b;
    args.c = columns(expected.view(), 5, 38);
    reference_kernels().gemm(exec, args);
    args.c = columns(c.view(), 5, 38);
    cpu_kernels(isa).gemm(exec, args);
    EXPECT_TRUE(same_bits(expected, c)) << to_string(isa);
  }
}

TEST(Gemm, EqualsTheReferenceForLeafTreesOverSegments) {
  std::int64_t seed = 0;
  for (int leaves : {1, 2, 4, 8}) {
    Contract contract;
    contract.leaves = leaves;
    TestExec exec(contract, 2);
    for (const std::array<std::int64_t, 3>& segments : {std::array<std::int64_t, 3>{64, 0, 0},
                                                        {7, 0, 0},
                                                        {1100, 0, 0},
                                                        {64, 32, 32},
                                                        {200, 17, 33},
                                                        {96, 0, 96},
                                                        {2200, 300, 300}}) {
      const std::int64_t k = segments[0] + segments[1] + segments[2];
      for (std::int64_t m : {1, 15, 40}) {
        ++seed;
        const Tensor a = random_tensor(DType::kBF16, {m, k}, seed, kind_of(seed));
        const Tensor b = random_tensor(DType::kBF16, {49, k}, seed + 1000, kind_of(seed));
        const Tensor bias = random_tensor(DType::kBF16, {49}, seed);
        Options options;
        options.dtype = seed % 2 ? DType::kF32 : DType::kBF16;
        options.bias = seed % 3 == 0;
        options.leaf_tree = true;
        options.segments = segments;
        const Tensor expected = run(reference_kernels(), exec, a, b, bias, options);
        for (Isa isa : isas()) {
          options.packed = seed % 4 < 2;
          EXPECT_TRUE(same_bits(expected, run(cpu_kernels(isa), exec, a, b, bias, options)))
              << to_string(isa) << " leaves " << leaves << " m " << m << " k " << k;
        }
      }
    }
  }
}

TEST(Gemm, ReusesThePackedMemoryOfTheSameWeight) {
  TestExec exec;
  const Tensor first = random_tensor(DType::kBF16, {40, 64}, 1);
  const Tensor second = random_tensor(DType::kBF16, {40, 64}, 2);
  const Tensor a = random_tensor(DType::kBF16, {3, 64}, 3);
  for (Isa isa : isas()) {
    const KernelTable& kernels = cpu_kernels(isa);
    PackedWeight packed;
    kernels.pack_weight(exec, {&packed, first});
    const void* memory = packed.data.get();
    kernels.pack_weight(exec, {&packed, second});
    EXPECT_EQ(packed.data.get(), memory);
    Tensor c(DType::kF32, {3, 40});
    GemmArgs args;
    args.c = c;
    args.a = a;
    args.b = second;
    args.packed_b = &packed;
    kernels.gemm(exec, args);
    EXPECT_TRUE(same_bits(run(reference_kernels(), exec, a, second, {}, {}), c));
  }
}

TEST(Gemm, IgnoresAWeightThatAnotherBackendPacked) {
  TestExec exec;
  const Tensor a = random_tensor(DType::kBF16, {3, 64}, 1);
  const Tensor b = random_tensor(DType::kBF16, {40, 64}, 2);
  const Tensor expected = run(reference_kernels(), exec, a, b, {}, {});
  for (Isa packer : isas()) {
    PackedWeight packed;
    cpu_kernels(packer).pack_weight(exec, {&packed, b});
    for (Isa isa : isas()) {
      Tensor c(DType::kF32, {3, 40});
      GemmArgs args;
      args.c = c;
      args.a = a;
      args.b = b;
      args.packed_b = &packed;
      cpu_kernels(isa).gemm(exec, args);
      EXPECT_TRUE(same_bits(expected, c)) << to_string(packer) << " " << to_string(isa);
    }
  }
}

// The same rows in batches of every size, from 1 to 4 threads, packed or not.
TEST(GemmInvariance, GivesARowTheSameBitsInAnyBatchOnAnyThreads) {
  const Tensor a = random_tensor(DType::kBF16, {129, 320}, 1, Kind::kCancelling);
  const Tensor b = random_tensor(DType::kBF16, {300, 320}, 2, Kind::kWide);
  TestExec one;
  for (bool tree : {false, true}) {
    Options options;
    options.leaf_tree = tree;
    const Tensor expected = run(reference_kernels(), one, a, b, {}, options);
    for (int threads : {1, 2, 3, 4}) {
      TestExec exec({}, threads);
      for (Isa isa : isas()) {
        for (std::int64_t m : {1, 2, 7, 16, 29, 64, 129}) {
          options.packed = (m + threads) % 2 == 0;
          Tensor c(DType::kF32, {129, 300});
          for (std::int64_t begin = 0; begin < 129; begin += m) {
            const std::int64_t end = std::min<std::int64_t>(begin + m, 129);
            const Tensor part =
                run(cpu_kernels(isa), exec, rows(a.view(), begin, end), b, {}, options);
            std::memcpy(c.data<float>() + begin * 300, part.data<float>(), part.size_bytes());
          }
          ASSERT_TRUE(same_bits(expected, c))
              << to_string(isa) << " threads " << threads << " m " << m << " tree " << tree;
        }
      }
    }
  }
}

float product(const Tensor& a, const Tensor& b, std::int64_t m, std::int64_t n, std::int64_t k,
              float acc) {
  const std::int64_t size = a.shape(1);
  return std::fma(test::value(a, m * size + k), test::value(b, n * size + k), acc);
}

TEST(GemmTwin, FallingKGivesOtherBits) {
  TestExec exec;
  const Tensor a = random_tensor(DType::kBF16, {5, 320}, 1, Kind::kCancelling);
  const Tensor b = random_tensor(DType::kBF16, {40, 320}, 2, Kind::kWide);
  Tensor falling(DType::kF32, {5, 40});
  for (std::int64_t i = 0; i < falling.size(); ++i) {
    float acc = 0.0f;
    for (std::int64_t k = 320; k-- > 0;) acc = product(a, b, i / 40, i % 40, k, acc);
    falling.data<float>()[i] = acc + 0.0f;
  }
  EXPECT_FALSE(same_bits(run(cpu_kernels(), exec, a, b, {}, {}), falling));
}

TEST(GemmTwin, SumsOfTwoChunksGiveOtherBits) {
  TestExec exec;
  const Tensor a = random_tensor(DType::kBF16, {5, 320}, 1, Kind::kCancelling);
  const Tensor b = random_tensor(DType::kBF16, {40, 320}, 2, Kind::kWide);
  Tensor chunks(DType::kF32, {5, 40});
  for (std::int64_t i = 0; i < chunks.size(); ++i) {
    float first = 0.0f;
    float second = 0.0f;
    for (std::int64_t k = 0; k < 160; ++k) first = product(a, b, i / 40, i % 40, k, first);
    for (std::int64_t k = 160; k < 320; ++k) second = product(a, b, i / 40, i % 40, k, second);
    chunks.data<float>()[i] = first + second;
  }
  EXPECT_FALSE(same_bits(run(cpu_kernels(), exec, a, b, {}, {}), chunks));
  // ... which is the leaf tree with two leaves.
  Contract contract;
  contract.leaves = 2;
  TestExec two(contract);
  Options options;
  options.leaf_tree = true;
  EXPECT_TRUE(same_bits(run(cpu_kernels(), two, a, b, {}, options), chunks));
}

TEST(GemmTwin, AnotherLeafCountOrOtherSegmentsGiveOtherBits) {
  const Tensor a = random_tensor(DType::kBF16, {5, 320}, 1, Kind::kCancelling);
  const Tensor b = random_tensor(DType::kBF16, {40, 320}, 2, Kind::kWide);
  Options options;
  options.leaf_tree = true;
  std::vector<Tensor> seen;
  for (int leaves : {1, 2, 4, 8}) {
    Contract contract;
    contract.leaves = leaves;
    TestExec exec(contract);
    options.segments = {320, 0, 0};
    seen.push_back(run(cpu_kernels(), exec, a, b, {}, options));
    if (leaves == 1) continue;
    options.segments = {160, 80, 80};
    seen.push_back(run(cpu_kernels(), exec, a, b, {}, options));
  }
  for (std::size_t i = 0; i < seen.size(); ++i) {
    for (std::size_t j = 0; j < i; ++j) EXPECT_FALSE(same_bits(seen[i], seen[j])) << i << " " << j;
  }
}

struct Gradient {
  Tensor dw;
  Tensor chain;
};

// Runs rows [begin, end) of the batch as one call.
void run_gradient(const KernelTable& kernels, Exec& exec, const Tensor& dy, const Tensor& x,
                  std::int64_t begin, std::int64_t end, const std::vector<std::int64_t>& group_ends,
                  Gradient& gradient) {
  std::vector<std::int64_t> local;
  for (std::int64_t g : group_ends) {
    if (g > begin && g <= end) local.push_back(g - begin);
  }
  GemmBackwardWeightArgs args;
  args.dw = gradient.dw;
  args.chain = gradient.chain;
  args.dy = rows(dy.view(), begin, end);
  args.x = rows(x.view(), begin, end);
  if (!local.empty()) args.group_ends = view(local.data(), {std::ssize(local)});
  kernels.gemm_backward_weight(exec, args);
}

Gradient start_gradient(std::int64_t n, std::int64_t k, Kind kind) {
  return {random_tensor(DType::kF32, {n, k}, 7, kind), random_tensor(DType::kF32, {n, k}, 8, kind)};
}

TEST(GemmBackwardWeight, EqualsTheReferenceAcrossGroupEnds) {
  TestExec one;
  std::int64_t seed = 0;
  for (std::int64_t tokens : {0, 1, 30, 333}) {
    for (auto [n, k] : {std::array<std::int64_t, 2>{1, 1}, {64, 192}, {35, 65}, {130, 7}}) {
      ++seed;
      const Kind kind = kind_of(seed);
      const Tensor dy = random_tensor(DType::kBF16, {tokens, n}, seed, kind);
      const Tensor x = random_tensor(DType::kBF16, {tokens, k}, seed + 1000, kind);
      for (const std::vector<std::int64_t>& ends :
           {std::vector<std::int64_t>{}, {1}, {17, 20, 270}, {5, tokens}, {5, 5, 17, 17, 17}}) {
        if (!ends.empty() && (ends.back() > tokens || ends.front() > tokens)) continue;
        if (ends.size() == 2 && tokens <= 5) continue;
        Gradient expected = start_gradient(n, k, kind);
        run_gradient(reference_kernels(), one, dy, x, 0, tokens, ends, expected);
        for (Isa isa : isas()) {
          for (int threads : {1, 3}) {
            TestExec exec({}, threads);
            Gradient gradient = start_gradient(n, k, kind);
            run_gradient(cpu_kernels(isa), exec, dy, x, 0, tokens, ends, gradient);
            EXPECT_TRUE(same_bits(expected.dw, gradient.dw))
                << to_string(isa) << " " << tokens << " " << n << " " << k;
            EXPECT_TRUE(same_bits(expected.chain, gradient.chain))
                << to_string(isa) << " " << tokens << " " << n << " " << k;
          }
        }
      }
    }
  }
}

TEST(GemmBackwardWeightInvariance, GivesTheSameBitsForAnyMicroBatches) {
  const std::vector<std::int64_t> ends{100, 290};
  const Tensor dy = random_tensor(DType::kBF16, {333, 50}, 1, Kind::kCancelling);
  const Tensor x = random_tensor(DType::kBF16, {333, 70}, 2, Kind::kWide);
  TestExec one;
  Gradient expected = start_gradient(50, 70, Kind::kNormal);
  run_gradient(reference_kernels(), one, dy, x, 0, 333, ends, expected);
  for (Isa isa : isas()) {
    for (int threads : {1, 2, 4}) {
      for (std::int64_t step : {1, 10, 100, 290, 333}) {
        TestExec exec({}, threads);
        Gradient gradient = start_gradient(50, 70, Kind::kNormal);
        for (std::int64_t begin = 0; begin < 333; begin += step) {
          run_gradient(cpu_kernels(isa), exec, dy, x, begin,
                       std::min<std::int64_t>(begin + step, 333), ends, gradient);
        }
        EXPECT_TRUE(same_bits(expected.dw, gradient.dw)) << to_string(isa) << " " << step;
        EXPECT_TRUE(same_bits(expected.chain, gradient.chain)) << to_string(isa) << " " << step;
      }
    }
  }
}

TEST(GemmBackwardWeightTwin, OtherGroupEndsGiveOtherBits) {
  const Tensor dy = random_tensor(DType::kBF16, {333, 50}, 1, Kind::kCancelling);
  const Tensor x = random_tensor(DType::kBF16, {333, 70}, 2, Kind::kWide);
  TestExec exec;
  const std::vector<std::vector<std::int64_t>> choices{{333}, {100, 333}, {50, 100, 333}};
  std::vector<Tensor> seen;
  for (const std::vector<std::int64_t>& ends : choices) {
    Gradient gradient = start_gradient(50, 70, Kind::kNormal);
    run_gradient(cpu_kernels(), exec, dy, x, 0, 333, ends, gradient);
    for (const Tensor& other : seen) EXPECT_FALSE(same_bits(other, gradient.dw));
    seen.push_back(gradient.dw);
  }
}

Tensor bias_gradient(const KernelTable& kernels, Exec& exec, const Tensor& dy,
                     const Tensor& cu_seqlens, std::uint64_t start_seed) {
  Tensor dbias = random_tensor(DType::kF32, {dy.shape(1)}, start_seed);
  BiasBackwardArgs args;
  args.dbias = dbias;
  args.dy = dy;
  args.cu_seqlens = cu_seqlens;
  kernels.bias_backward(exec, args);
  return dbias;
}

TEST(BiasBackward, EqualsTheReferenceForAnySamples) {
  TestExec one;
  std::int64_t seed = 0;
  for (std::int64_t n : {1, 7, 64, 301}) {
    for (const std::vector<std::int32_t>& lengths :
         {std::vector<std::int32_t>{0}, {1}, {64, 1, 65}, {200, 0, 3, 130}}) {
      ++seed;
      const Tensor cu = test::cu_seqlens(lengths);
      const std::int64_t tokens = cu.data<std::int32_t>()[lengths.size()];
      const Tensor dy = random_tensor(DType::kBF16, {tokens, n}, seed, kind_of(seed));
      const Tensor expected = bias_gradient(reference_kernels(), one, dy, cu, 5);
      for (Isa isa : isas()) {
        for (int threads : {1, 4}) {
          TestExec exec({}, threads);
          EXPECT_TRUE(same_bits(expected, bias_gradient(cpu_kernels(isa), exec, dy, cu, 5)))
              << to_string(isa) << " n " << n << " tokens " << tokens;
        }
      }
    }
  }
}

TEST(BiasBackwardInvariance, GivesTheSameBitsOnAnyThreads) {
  const Tensor dy = random_tensor(DType::kBF16, {700, 2000}, 1, Kind::kCancelling);
  const Tensor cu = test::cu_seqlens({100, 333, 267});
  TestExec one;
  const Tensor expected = bias_gradient(reference_kernels(), one, dy, cu, 5);
  for (Isa isa : isas()) {
    for (int threads : {1, 2, 3, 4}) {
      TestExec exec({}, threads);
      EXPECT_TRUE(same_bits(expected, bias_gradient(cpu_kernels(isa), exec, dy, cu, 5)));
    }
  }
}

TEST(BiasBackwardTwin, OtherSamplesOrBlocksGiveOtherBits) {
  const Tensor dy = random_tensor(DType::kBF16, {700, 200}, 1, Kind::kCancelling);
  TestExec exec;
  Contract contract;
  contract.token_block = 32;
  TestExec other(contract);
  const Tensor one_sample = test::cu_seqlens({700});
  const Tensor sums = bias_gradient(cpu_kernels(), exec, dy, one_sample, 5);
  EXPECT_FALSE(same_bits(sums, bias_gradient(cpu_kernels(), other, dy, one_sample, 5)));
  const Tensor samples = test::cu_seqlens({100, 333, 267});
  EXPECT_FALSE(same_bits(sums, bias_gradient(cpu_kernels(), exec, dy, samples, 5)));
}

}  // namespace
}  // namespace rlk
