// The CPU kernels that work row by row against the reference, byte for byte, for every instruction
// set of this machine and several thread counts.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <numeric>
#include <string>
#include <vector>

#include "rlk/numerics/math.h"
#include "rlk/numerics/sums.h"
#include "tests/kernels/backends.h"

namespace rlk::test {
namespace {

using numerics::round_bf16;
using numerics::to_bf16;

const std::vector<std::int64_t> kSizes = {1, 7, 16, 31, 64, 96, 128, 255, 256, 300, 511, 1000};

constexpr DType kStorageTypes[] = {DType::kBF16, DType::kF32};

Tensor bf16_random(std::int64_t tokens, std::int64_t heads, std::int64_t n, std::uint64_t seed,
                   Kind kind) {
  return random_tensor(DType::kBF16, {tokens, heads, n}, seed, kind);
}

// The data of one case, in its storage type.
struct Case {
  DType dtype;
  Kind kind;
  std::int64_t tokens, n;

  Tensor random(std::int64_t heads, std::uint64_t seed, Kind other) const {
    return random_tensor(dtype, {tokens, heads, n}, seed, other);
  }
  Tensor random(std::int64_t heads, std::uint64_t seed) const { return random(heads, seed, kind); }
  Tensor vector(std::uint64_t seed) const { return random_tensor(dtype, {n}, seed); }
  std::string label(const char* op) const {
    return fmt::format("{} {} kind {} [{}, {}]", op, to_string(dtype), static_cast<int>(kind),
                       tokens, n);
  }
};

// Calls test(case) for small shapes of every kind and some that several threads share.
void for_each_shape(const std::function<void(const Case&)>& test) {
  for (const DType dtype : kStorageTypes) {
    for (const Kind kind : kAllKinds) {
      for (const std::int64_t n : kSizes) test({dtype, kind, 3, n});
    }
    test({dtype, Kind::kNormal, 0, 64});
    test({dtype, Kind::kMixed, 700, 64});
    test({dtype, Kind::kWide, 1501, 33});
    test({dtype, Kind::kCancelling, 40, 2560});
  }
}

OpCall norm_run(const TensorView& x, const Tensor& w, float eps = 1e-6f) {
  return [x, &w, eps](const KernelTable& kernels, Exec& exec) {
    std::vector<Tensor> out;
    out.push_back(Tensor(x.dtype, {x.shape(0), x.shape(1), x.shape(2)}));
    out.push_back(Tensor(DType::kF32, {x.shape(0), x.shape(1)}));
    kernels.rms_norm(exec, {out[0], out[1], x, w, eps});
    return out;
  };
}

TEST(RmsNormInvariance, EqualsTheReferenceOnEveryInstructionSetAndThreadCount) {
  for_each_shape([](const Case& c) {
    const Tensor w = c.vector(2);
    for (const std::int64_t heads : {1, 3}) {
      Spaced rows = spaced(c.random(heads, 1), 1);
      expect_the_reference_everywhere(norm_run(rows.view, w), c.label("rms_norm"));
    }
  });
}

TEST(RmsNormInvariance, EqualsTheReferenceForEveryLaneCountAndForSpacedNumbers) {
  for (const int lanes : {16, 32, 64, 128, 512, 1024}) {
    Contract contract;
    contract.norm_lanes = lanes;
    for (const std::int64_t n : {5, 64, 300, 2049}) {
      const Tensor x = bf16_random(4, 2, n, 1, Kind::kWide);
      const Tensor w = random_tensor(DType::kBF16, {n}, 2);
      for (const std::int64_t apart : {1, 3}) {
        const Spaced rows = spaced(x, apart);
        expect_the_reference_everywhere(norm_run(rows.view, w), "lanes " + std::to_string(lanes),
                                        contract, {1, 2});
      }
    }
  }
}

TEST(RmsNormInvariance, WithAResidualHasTheBitsOfTheTwoOperators) {
  for_each_shape([](const Case& c) {
    const Tensor w = c.vector(2);
    const Tensor x = c.random(2, 1, Kind::kNormal), residual = c.random(2, 3);
    const auto run = [&](bool fused) -> OpCall {
      return [&, fused](const KernelTable& kernels, Exec& exec) {
        std::vector<Tensor> out{Tensor(c.dtype, {c.tokens, 2, c.n}), residual,
                                Tensor(DType::kF32, {c.tokens, 2})};
        if (fused) {
          kernels.rms_norm(exec, {out[0], out[2], x, w, 1e-6f, out[1], out[1]});
        } else {
          const auto matrix = [&](TensorView v) {
            v.layout = Layout{c.tokens, 2 * c.n};
            return v;
          };
          Tensor added = x;
          kernels.residual_add(exec, {matrix(out[1]), matrix(out[1]), matrix(added)});
          kernels.rms_norm(exec, {out[0], out[2], out[1], w, 1e-6f});
        }
        return out;
      };
    };
    expect_the_reference_everywhere(run(true), c.label("rms_norm with residual"), {}, {1, 3});
    expect_same(outcome(run(true), cpu_kernels()), outcome(run(false), reference_kernels()),
                c.label("rms_norm with residual"));
  });
}

TEST(RmsNormTwin, AResidualThatIsNotRoundedGivesOtherBytes) {
  const Tensor x = bf16_random(50, 1, 300, 1, Kind::kNormal);
  const Tensor residual = bf16_random(50, 1, 300, 2, Kind::kNormal);
  const Tensor w = random_tensor(DType::kBF16, {300}, 3);
  Tensor y(DType::kBF16, {50, 1, 300}), sum(DType::kBF16, {50, 1, 300}), q(DType::kF32, {50, 1});
  TestExec exec;
  cpu_kernels().rms_norm(exec, {y, q, x, w, 1e-6f, residual, sum});
  Tensor unrounded(DType::kF32, {50});
  for (std::int64_t t = 0; t < 50; ++t) {
    const auto at = [&](std::int64_t k) {
      return value(x, t * 300 + k) + value(residual, t * 300 + k);
    };
    unrounded.data<float>()[t] =
        numerics::rsqrt(numerics::lane_sum(at, at, 300, 256) / 300.0f + 1e-6f);
  }
  EXPECT_NE(std::memcmp(unrounded.view().data, q.view().data, q.size_bytes()), 0);
}

TEST(RmsNorm, MayWriteOverItsInputAndReportsTheLowestBadRow) {
  Tensor x = bf16_random(300, 2, 100, 1, Kind::kNormal);
  *x.view().at<bf16>(211, 1, 99) = bf16{0x7f00};  // its square overflows
  *x.view().at<bf16>(250, 0, 0) = bf16{0x7f80};
  const Tensor w = random_tensor(DType::kBF16, {100}, 2);
  const OpCall run = [&](const KernelTable& kernels, Exec& exec) {
    std::vector<Tensor> out{x};
    kernels.rms_norm(exec, {out[0], {}, out[0], w, 1e-5f});
    return out;
  };
  EXPECT_EQ(outcome(run, reference_kernels()).fault_row, 211 * 2 + 1);
  expect_the_reference_everywhere(run, "in place");
}

TEST(RmsNormInvariance, InputGradientEqualsTheReference) {
  for_each_shape([](const Case& c) {
    const Tensor w = c.vector(2);
    for (const std::int64_t heads : {1, 3}) {
      const Tensor x = c.random(heads, 1, Kind::kNormal);
      const Tensor dy = c.random(heads, 3);
      const Tensor q = random_tensor(DType::kF32, {c.tokens, heads}, 4);
      Spaced rows = spaced(x, 1);
      const OpCall run = [&](const KernelTable& kernels, Exec& exec) {
        std::vector<Tensor> out{dy};  // written in place
        kernels.rms_norm_backward(exec, {out[0], out[0], rows.view, w, q});
        return out;
      };
      expect_the_reference_everywhere(run, c.label("rms_norm_backward"));
    }
  });
}

OpCall norm_weight_run(const Tensor& dw, const Tensor& dy, const Tensor& x, const Tensor& q,
                       const Tensor& cu) {
  return [&](const KernelTable& kernels, Exec& exec) {
    std::vector<Tensor> out{dw};
    kernels.rms_norm_backward_weight(exec, {out[0], dy, x, q, cu});
    return out;
  };
}

TEST(RmsNormInvariance, WeightGradientEqualsTheReference) {
  const std::vector<std::vector<std::int32_t>> batches = {
      {}, {1}, {64, 64}, {63, 0, 65, 200}, {700, 1, 330}};
  for (const auto& lengths : batches) {
    const std::int64_t tokens = std::accumulate(lengths.begin(), lengths.end(), 0);
    for (const std::int64_t n : {1, 16, 40, 64, 600}) {
      for (const std::int64_t heads : {1, 3}) {
        for (const Kind kind : {Kind::kCancelling, Kind::kWide, Kind::kMixed}) {
          const Case c{kind == Kind::kWide ? DType::kF32 : DType::kBF16, kind, tokens, n};
          const Tensor dw = random_tensor(DType::kF32, {heads, n}, 1, Kind::kWide);
          const Tensor dy = c.random(heads, 2);
          const Tensor x = c.random(heads, 3, Kind::kNormal);
          const Tensor q = random_tensor(DType::kF32, {tokens, heads}, 4);
          const Tensor cu = cu_seqlens(lengths);
          expect_the_reference_everywhere(norm_weight_run(dw, dy, x, q, cu),
                                          c.label("rms_norm_backward_weight"), {}, {1, 2, 4});
        }
      }
    }
  }
}

TEST(MergeHeadsInvariance, EqualsTheReferenceForAnyNumberOfHeadsAndLeaves) {
  for (const int leaves : {1, 2, 8, 64}) {
    Contract contract;
    contract.leaves = leaves;
    for (const std::int64_t heads : {1, 3, 8, 16, 33}) {
      for (const std::int64_t n : {1, 24, 64, 128}) {
        const Tensor partial = random_tensor(DType::kF32, {heads, n}, 1, Kind::kWide);
        const OpCall run = [&](const KernelTable& kernels, Exec& exec) {
          std::vector<Tensor> out;
          out.push_back(Tensor(DType::kF32, {n}));
          kernels.merge_heads(exec, {out[0], partial});
          return out;
        };
        expect_the_reference_everywhere(run, "merge_heads", contract, {1, 2});
      }
    }
  }
}

TEST(RmsNormTwin, AnotherLaneCountGivesOtherBytes) {
  Tensor x = bf16_random(50, 1, 1000, 1, Kind::kWide);
  const Tensor w = random_tensor(DType::kBF16, {1000}, 2);
  const Outcome right = outcome(norm_run(x.view(), w), reference_kernels());
  for (const Isa isa : isas()) {
    Contract other;
    other.norm_lanes = 128;
    const Outcome wrong = outcome(norm_run(x.view(), w), cpu_kernels(isa), other);
    EXPECT_FALSE(same_bytes(wrong.outputs[1], right.outputs[1])) << to_string(isa);
  }
}

// (In the lane sums fma changes nothing: a product of three bf16 is exact in f32.)
TEST(RmsNormTwin, TwoRoundingsInsteadOfFmaGiveOtherInputGradients) {
  const Tensor x = bf16_random(50, 1, 1000, 1, Kind::kNormal);
  const Tensor dy = bf16_random(50, 1, 1000, 2, Kind::kNormal);
  const Tensor w = random_tensor(DType::kBF16, {1000}, 3);
  const Tensor q = random_tensor(DType::kF32, {50, 1}, 4);
  Tensor wrong = dy;
  for (std::int64_t t = 0; t < 50; ++t) {
    const auto u = [&](std::int64_t k) { return value(dy, 1000 * t + k) * value(w, k); };
    const auto row = [&](std::int64_t k) { return value(x, 1000 * t + k); };
    const float s = value(q, t);
    const float z = ((s * s) * s) * (numerics::lane_sum(u, row, 1000, 256) / 1000.0f);
    for (std::int64_t k = 0; k < 1000; ++k) {
      wrong.data<bf16>()[1000 * t + k] = to_bf16(u(k) * s - row(k) * z);
    }
  }
  for (const Isa isa : isas()) {
    TestExec exec;
    Tensor dx(DType::kBF16, {50, 1, 1000});
    cpu_kernels(isa).rms_norm_backward(exec, {dx, dy, x, w, q});
    EXPECT_FALSE(same_bytes(dx, wrong));
  }
}

TEST(RmsNormTwin, AnotherTokenBlockGivesOtherBytes) {
  const Tensor dw(DType::kF32, {1, 64});
  const Tensor dy = bf16_random(500, 1, 64, 2, Kind::kWide);
  const Tensor x = bf16_random(500, 1, 64, 3, Kind::kNormal);
  const Tensor q = random_tensor(DType::kF32, {500, 1}, 4);
  const Tensor cu = cu_seqlens({130, 370});
  const Outcome right = outcome(norm_weight_run(dw, dy, x, q, cu), reference_kernels());
  for (const Isa isa : isas()) {
    Contract other;
    other.token_block = 32;
    EXPECT_FALSE(same_bytes(
        outcome(norm_weight_run(dw, dy, x, q, cu), cpu_kernels(isa), other, 2).outputs[0],
        right.outputs[0]));
    const Tensor joined = cu_seqlens({500});  // blocks that run over the end of a sample
    EXPECT_FALSE(
        same_bytes(outcome(norm_weight_run(dw, dy, x, q, joined), cpu_kernels(isa)).outputs[0],
                   right.outputs[0]));
  }
}

TEST(EmbeddingInvariance, EqualsTheReferenceAndReportsBadIds) {
  for (const std::int64_t n : {1, 31, 64, 300}) {
    for (const std::int64_t tokens : {0, 5, 3000}) {
      const DType dtype = n % 2 ? DType::kF32 : DType::kBF16;
      const Tensor table = random_tensor(dtype, {50, n}, 1, Kind::kMixed);
      std::vector<std::int32_t> ids(static_cast<std::size_t>(tokens));
      Rng rng(7);
      for (std::int32_t& id : ids) id = static_cast<std::int32_t>(rng.below(50));
      if (tokens > 10) {
        ids[2000] = 50;
        ids[2100] = -1;
      }
      const Tensor id_tensor = i32_tensor(ids);
      const OpCall run = [&](const KernelTable& kernels, Exec& exec) {
        std::vector<Tensor> out;
        out.push_back(Tensor(dtype, {tokens, n}));
        kernels.embedding(exec, {out[0], table, id_tensor});
        return out;
      };
      expect_the_reference_everywhere(run, "embedding");
      const Tensor dy = random_tensor(dtype, {tokens, n}, 2, Kind::kWide);
      const Tensor start = random_tensor(DType::kF32, {50, n}, 3);
      const OpCall backward = [&](const KernelTable& kernels, Exec& exec) {
        std::vector<Tensor> out{start};
        kernels.embedding_backward(exec, {out[0], dy, id_tensor});
        return out;
      };
      expect_the_reference_everywhere(backward, "embedding_backward");
    }
  }
}

TEST(EmbeddingTwin, AnotherTokenOrderGivesOtherBytes) {
  const Tensor dy = random_tensor(DType::kBF16, {100, 64}, 2, Kind::kWide);
  Tensor reversed(DType::kBF16, {100, 64});
  for (std::int64_t t = 0; t < 100; ++t) {
    std::memcpy(reversed.view().at<bf16>(t), dy.view().at<bf16>(99 - t), 128);
  }
  const Tensor ids = i32_tensor(std::vector<std::int32_t>(100, 1));
  const auto run = [&](const Tensor& from) -> OpCall {
    return [&](const KernelTable& kernels, Exec& exec) {
      std::vector<Tensor> out;
      out.push_back(Tensor(DType::kF32, {2, 64}));
      kernels.embedding_backward(exec, {out[0], from, ids});
      return out;
    };
  };
  for (const Isa isa : isas()) {
    EXPECT_FALSE(same_bytes(outcome(run(reversed), cpu_kernels(isa)).outputs[0],
                            outcome(run(dy), reference_kernels()).outputs[0]));
  }
}

TEST(CopyRowsInvariance, EqualsTheReferenceAndReportsTheSameRow) {
  for (const DType dtype : kStorageTypes) {
    for (const std::int64_t n : kSizes) {
      const Tensor x = random_tensor(dtype, {40, n}, 1, Kind::kCancelling);
      std::vector<std::int64_t> from, to;
      for (std::int64_t i = 0; i < 25; ++i) {
        from.push_back(i % 5 == 4 ? -1 : i * 7 % 40);
        to.push_back(i * 3 % 31);
      }
      for (const bool bounded : {false, true}) {
        expect_the_reference_everywhere(
            [&](const KernelTable& kernels, Exec& exec) {
              Tensor large = x, y(dtype, {31, n});
              if (dtype == DType::kF32) large.data<float>()[14 * n] = 0x1p56f;
              std::vector<Tensor> out;
              out.push_back(y);
              kernels.copy_rows(exec, {out[0], large, view(std::as_const(from).data(), {25}),
                                       view(std::as_const(to).data(), {25}), bounded});
              return out;
            },
            fmt::format("rows of {}, bounded {}", n, bounded), {}, {1, 3});
      }
    }
  }
}

// Rows that are taken as they stand, where `from` says otherwise.
TEST(CopyRowsTwin, AnotherOrderOfRowsGivesOtherBytes) {
  const Tensor x = random_tensor(DType::kBF16, {8, 16}, 1);
  const std::vector<std::int64_t> from{3, 1, 2, 0, 4, 5, 6, 7};
  Tensor right(DType::kBF16, {8, 16}), wrong = right;
  TestExec exec;
  cpu_kernels().copy_rows(exec, {right, x, view(from.data(), {8}), {}});
  cpu_kernels().copy_rows(exec, {wrong, x, {}, {}});
  EXPECT_FALSE(same_bytes(right, wrong));
}

TEST(ResidualAddInvariance, EqualsTheReferenceAlsoInPlaceAndWithSpacedRows) {
  for_each_shape([](const Case& c) {
    const Tensor a = c.random(1, 1);
    const Spaced b = spaced(c.random(1, 2), 1);
    const OpCall run = [&](const KernelTable& kernels, Exec& exec) {
      std::vector<Tensor> out{a};
      const TensorView y = as_matrix(out[0].view());
      kernels.residual_add(exec, {y, y, as_matrix(b.view)});
      return out;
    };
    expect_the_reference_everywhere(run, c.label("residual_add"));
  });
}

TEST(SwigluInvariance, EqualsTheReferenceForwardAndBackward) {
  for_each_shape([](const Case& c) {
    const Tensor g = c.random(1, 1);
    const Tensor u = c.random(1, 2, Kind::kNormal);
    const Tensor dy = c.random(1, 3);
    const OpCall run = [&](const KernelTable& kernels, Exec& exec) {
      std::vector<Tensor> out{g, g, u};
      const auto matrix = [](Tensor& t) { return as_matrix(t.view()); };
      kernels.swiglu(exec, {matrix(out[0]), matrix(out[1]), matrix(out[2])});
      Tensor incoming = dy;
      kernels.swiglu_backward(exec, {matrix(out[1]), matrix(out[2]), matrix(incoming),
                                     matrix(out[1]), matrix(out[2])});  // in place
      return out;
    };
    expect_the_reference_everywhere(run, c.label("swiglu"));
  });
}

TEST(SwigluInvariance, EqualsTheReferenceForEveryBf16Gate) {
  Tensor g(DType::kBF16, {1 << 16});
  for (std::int64_t i = 0; i < g.size(); ++i)
    g.data<bf16>()[i].bits = static_cast<std::uint16_t>(i);
  const Tensor u = random_tensor(DType::kBF16, {1 << 16}, 1);
  const OpCall run = [&](const KernelTable& kernels, Exec& exec) {
    std::vector<Tensor> out{g, g, u};
    const auto matrix = [](Tensor& t) { return view(t.data<bf16>(), {64, 1024}); };
    Tensor gate = g, up = u;
    kernels.swiglu(exec, {matrix(out[0]), matrix(gate), matrix(up)});
    kernels.swiglu_backward(exec,
                            {matrix(out[1]), matrix(out[2]), matrix(up), matrix(gate), matrix(up)});
    return out;
  };
  expect_the_reference_everywhere(run, "swiglu");
}

TEST(SwigluTwin, RoundingSiluToBf16FirstGivesOtherBytes) {
  const Tensor g = random_tensor(DType::kBF16, {1, 1000}, 1);
  const Tensor u = random_tensor(DType::kBF16, {1, 1000}, 2);
  Tensor wrong(DType::kBF16, {1, 1000});
  for (std::int64_t i = 0; i < 1000; ++i) {
    wrong.data<bf16>()[i] = to_bf16(round_bf16(numerics::silu(value(g, i))) * value(u, i));
  }
  for (const Isa isa : isas()) {
    Tensor y(DType::kBF16, {1, 1000});
    TestExec exec;
    cpu_kernels(isa).swiglu(exec, {y, g, u});
    EXPECT_FALSE(same_bytes(y, wrong));
  }
}

struct RopeCase {
  Tensor cos, sin, positions;
};

RopeCase rope_case(std::int64_t tokens, std::int64_t half) {
  RopeCase c{
      random_tensor(DType::kF32, {40, half}, 1), random_tensor(DType::kF32, {40, half}, 2), {}};
  for (std::int64_t i = 0; i < c.cos.size(); ++i) {
    const double angle = value(c.cos, i);
    c.cos.data<float>()[i] = static_cast<float>(std::cos(angle));
    c.sin.data<float>()[i] = static_cast<float>(std::sin(angle));
  }
  std::vector<std::int32_t> positions(static_cast<std::size_t>(tokens));
  Rng rng(3);
  for (std::int32_t& p : positions) p = static_cast<std::int32_t>(rng.below(40));
  c.positions = i32_tensor(positions);
  return c;
}

TEST(RopeInvariance, EqualsTheReferenceForwardAndBackwardAlsoInPlace) {
  for (const Kind kind : kAllKinds) {
    for (const std::int64_t d : {2, 6, 32, 50, 64, 128}) {
      for (const std::int64_t tokens : {0, 3, 300}) {
        const RopeCase c = rope_case(tokens, d / 2);
        for (const std::int64_t heads : {1, 3}) {
          const DType dtype = heads == 1 ? DType::kF32 : DType::kBF16;
          Tensor x = random_tensor(dtype, {tokens, heads, d}, 1, kind);
          if (tokens == 300 && dtype == DType::kBF16) {
            *x.view().at<bf16>(170, heads - 1, d - 1) = to_bf16(0x1p56f);
            *x.view().at<bf16>(171, 0, 0) = bf16{0x7fc0};
          } else if (tokens == 300) {
            *x.view().at<float>(170, heads - 1, d - 1) = 0x1p57f;
            *x.view().at<float>(171, 0, 0) = -std::nanf("1");  // stored as the one NaN
          }
          const Spaced rows = spaced(x, 1);
          const OpCall run = [&](const KernelTable& kernels, Exec& exec) {
            std::vector<Tensor> out{x, x};
            kernels.rope(exec, {out[0], rows.view, c.cos, c.sin, c.positions});
            kernels.rope_backward(exec, {out[1], out[1], c.cos, c.sin, c.positions});
            return out;
          };
          expect_the_reference_everywhere(run, "rope", {}, {1, 3});
        }
      }
    }
  }
}

// The last number below 2^56 and those that round up to it.
TEST(RopeInvariance, RefusesTheSameNumbersNear2To56) {
  const Tensor cos = f32_tensor({1.0f, 1.0f, 1.0f, 1.0f}),
               sin = f32_tensor({0.0f, 0.0f, 0x1p-9f, -0x1p-9f});
  const Tensor positions = i32_tensor({0, 1});
  for (const float x1 : {0x1.fcp55f, 0x1.fep55f, 0x1p56f, -0x1.fep55f}) {
    for (const float x2 : {0.0f, 0x1p47f, 0x1p48f, 0x1p55f, 0x1.fep55f}) {
      for (const DType dtype : kStorageTypes) {
        Tensor x(dtype, {2, 1, 4});
        for (std::int64_t i = 0; i < 8; ++i) {
          const float v = i % 4 < 2 ? x1 : x2;
          if (dtype == DType::kBF16) {
            x.data<bf16>()[i] = to_bf16(v);
          } else {
            x.data<float>()[i] = v;
          }
        }
        const OpCall run = [&](const KernelTable& kernels, Exec& exec) {
          std::vector<Tensor> out{x};
          kernels.rope(exec, {out[0], x, view(cos.data<float>(), {2, 2}),
                              view(sin.data<float>(), {2, 2}), positions});
          return out;
        };
        expect_the_reference_everywhere(run, fmt::format("rope of {} and {}", x1, x2), {}, {1});
      }
    }
  }
}

TEST(RopeTwin, TwoRoundingsInsteadOfFmaGiveOtherBytes) {
  const RopeCase c = rope_case(200, 32);
  const Tensor x = bf16_random(200, 1, 64, 1, Kind::kNormal);
  Tensor wrong = x;
  for (std::int64_t t = 0; t < 200; ++t) {
    const std::int64_t position = *c.positions.view().at<std::int32_t>(t);
    for (std::int64_t i = 0; i < 32; ++i) {
      const float x1 = value(x, t * 64 + i), x2 = value(x, t * 64 + 32 + i);
      const float cos = *c.cos.view().at<float>(position, i);
      const float sin = *c.sin.view().at<float>(position, i);
      // A table rounded to bf16, as some frameworks keep it.
      wrong.data<bf16>()[t * 64 + i] = to_bf16(x1 * round_bf16(cos) - x2 * round_bf16(sin));
      wrong.data<bf16>()[t * 64 + 32 + i] = to_bf16(x2 * round_bf16(cos) + x1 * round_bf16(sin));
    }
  }
  for (const Isa isa : isas()) {
    Tensor y(DType::kBF16, {200, 1, 64});
    TestExec exec;
    cpu_kernels(isa).rope(exec, {y, x, c.cos, c.sin, c.positions});
    EXPECT_FALSE(same_bytes(y, wrong));
  }
}

}  // namespace
}  // namespace rlk::test
