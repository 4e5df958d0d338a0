// Vectorised attention backward: the bytes of the reference on every instruction set, the same bits
// for any plan, and gradients close to differences in double.
#include <gtest/gtest.h>

#include <cmath>

#include "attention_data.h"
#include "reference_gradient.h"
#include "rlk/numerics/math.h"
#include "rlk/numerics/sums.h"

namespace rlk::test {
namespace {

using numerics::to_f32;

struct Gradients {
  Tensor dq, dk, dv;
};

Tensor make_dy(const Batch& b) {
  return random_tensor(b.dtype(), {b.num_tokens(), b.heads, b.d}, 9, Kind::kCancelling);
}

Gradients run_backward(const KernelTable& kernels, const Batch& b, const Output& forward,
                       const Tensor& dy, const Contract& contract, int threads = 1) {
  const std::int64_t n = b.num_tokens();
  Gradients g{Tensor(b.dtype(), {n, b.heads, b.d}), Tensor(b.dtype(), {n, b.kv_heads, b.d}),
              Tensor(b.dtype(), {n, b.kv_heads, b.d})};
  TestExec exec(contract, threads);
  kernels.attention_backward(
      exec, {g.dq, g.dk, g.dv, dy, forward.y, b.q, b.k, b.v, forward.lse, cu_seqlens(b.lengths)});
  EXPECT_EQ(exec.fault.row(), -1);
  return g;
}

Gradients run_both(const KernelTable& kernels, const Batch& b, const Contract& contract,
                   int threads = 1) {
  return run_backward(kernels, b, run_packed(kernels, b, contract), make_dy(b), contract, threads);
}

void expect_same(const Gradients& a, const Gradients& b) {
  EXPECT_TRUE(same_bits(a.dq, b.dq));
  EXPECT_TRUE(same_bits(a.dk, b.dk));
  EXPECT_TRUE(same_bits(a.dv, b.dv));
}

Contract with_leaves(int leaves, int norm_lanes = 256) {
  Contract contract;
  contract.leaves = leaves;
  contract.norm_lanes = norm_lanes;
  return contract;
}

TEST(CpuAttentionBackward, EqualsTheReferenceForEveryInstructionSetAndShape) {
  struct Case {
    std::vector<std::int32_t> lengths;
    std::int64_t heads, kv_heads, d;
    int leaves, norm_lanes;
  };
  const Case cases[] = {
      {{1}, 1, 1, 64, 8, 256},
      {{2, 1, 3}, 4, 2, 16, 8, 256},       // four parts of two heads: two are empty
      {{15, 0, 16, 17}, 7, 1, 8, 8, 256},  // eight parts of seven heads
      {{15, 16, 17}, 6, 2, 12, 4, 16},
      {{95, 96, 97}, 2, 1, 16, 2, 256},
      {{130}, 3, 1, 32, 1, 256},
      {{40}, 2, 2, 80, 8, 64},
      {{33}, 8, 8, 128, 8, 256},
      {{21}, 5, 1, 256, 16, 128},
      {{200}, 1, 1, 8, 8, 256},
  };
  for (const Case& c : cases) {
    const Batch b = make_batch(c.lengths, c.heads, c.kv_heads, c.d);
    const Contract contract = with_leaves(c.leaves, c.norm_lanes);
    const Output forward = run_packed(cpu_kernels(), b, contract);
    const Tensor dy = make_dy(b);
    const Gradients expected = run_backward(reference_kernels(), b, forward, dy, contract);
    for (const Isa isa : instruction_sets()) {
      SCOPED_TRACE(testing::Message() << to_string(isa) << " heads " << c.heads << ":" << c.kv_heads
                                      << " d " << c.d << " leaves " << c.leaves);
      expect_same(run_backward(cpu_kernels(isa), b, forward, dy, contract), expected);
    }
  }
}

TEST(CpuAttentionBackward, EqualsTheReferenceInF32Storage) {
  struct Case {
    std::vector<std::int32_t> lengths;
    std::int64_t heads, kv_heads, d;
    int leaves;
  };
  const Case cases[] = {{{1}, 1, 1, 64, 8},  {{15, 0, 17}, 7, 1, 10, 8}, {{130}, 3, 1, 32, 1},
                        {{40}, 2, 2, 80, 8}, {{21, 2}, 5, 1, 256, 8},    {{33}, 16, 1, 16, 4}};
  for (const Case& c : cases) {
    const Batch b = make_batch(c.lengths, c.heads, c.kv_heads, c.d, 1.0, DType::kF32);
    const Contract contract = with_leaves(c.leaves);
    const Output forward = run_packed(reference_kernels(), b, contract);
    const Tensor dy = make_dy(b);
    const Gradients expected = run_backward(reference_kernels(), b, forward, dy, contract);
    for (const Isa isa : instruction_sets()) {
      for (const int threads : {1, 3}) {
        SCOPED_TRACE(testing::Message() << to_string(isa) << " heads " << c.heads << " d " << c.d);
        expect_same(run_backward(cpu_kernels(isa), b, forward, dy, contract, threads), expected);
      }
    }
  }
}

// Scratch grows with the tokens, not with their square.
TEST(CpuAttentionBackward, ScratchIsLinearInTheLengthOfASequence) {
  for (const int threads : {1, 2}) {
    const auto scratch = [&](std::int32_t n) {
      const Batch b = make_batch({n}, 2, 1, 32);
      const Output forward = run_packed(cpu_kernels(), b, Contract{}, threads);
      TestExec exec({}, threads);
      Gradients g{Tensor(b.q), Tensor(b.k), Tensor(b.v)};
      cpu_kernels().attention_backward(exec, {g.dq, g.dk, g.dv, b.q, forward.y, b.q, b.k, b.v,
                                              forward.lse, cu_seqlens(b.lengths)});
      return static_cast<double>(exec.workspace.size_bytes());
    };
    const double half = scratch(2048);
    const double full = scratch(4096);
    EXPECT_LE(full, 2.2 * half) << "threads " << threads;
    EXPECT_LT(full, 2.0 * 4096.0 * 4096.0) << "threads " << threads;  // half an f32 S x S tensor
  }
}

TEST(CpuAttentionBackward, EqualsTheReferenceOnStridedViews) {
  constexpr std::int64_t kN = 50, kHeads = 4, kKvHeads = 2, kD = 32;
  const Contract contract;
  const Tensor qkv =
      random_tensor(DType::kBF16, {kN, (kHeads + 2 * kKvHeads) * kD}, 3, Kind::kNormal);
  const auto part = [&](auto&& t, std::int64_t begin, std::int64_t heads) {
    return split_heads(columns(t.view(), begin * kD, (begin + heads) * kD), heads);
  };
  Batch b = make_batch({kN}, kHeads, kKvHeads, kD);
  const Output forward = run_packed(cpu_kernels(), b, contract);
  const Tensor dy = make_dy(b);
  const auto run = [&](const KernelTable& kernels) {
    Tensor dqkv(DType::kBF16, {kN, (kHeads + 2 * kKvHeads) * kD});
    TestExec exec(contract);
    kernels.attention_backward(
        exec, {part(dqkv, 0, kHeads), part(dqkv, kHeads, kKvHeads),
               part(dqkv, kHeads + kKvHeads, kKvHeads), dy, forward.y, part(qkv, 0, kHeads),
               part(qkv, kHeads, kKvHeads), part(qkv, kHeads + kKvHeads, kKvHeads), forward.lse,
               cu_seqlens(b.lengths)});
    return dqkv;
  };
  const Tensor expected = run(reference_kernels());
  for (const Isa isa : instruction_sets()) {
    EXPECT_TRUE(same_bits(run(cpu_kernels(isa)), expected)) << to_string(isa);
  }
}

// dy . attention(q, k, v) in double, one sequence.
double weighted_output(const Values& q, const Values& k, const Values& v, const Values& dy,
                       std::int64_t n, std::int64_t heads, std::int64_t kv_heads, std::int64_t d) {
  const auto at = [d](const Values& x, std::int64_t row, std::int64_t e) {
    return x[static_cast<std::size_t>(row * d + e)];
  };
  double sum = 0.0;
  for (std::int64_t t = 0; t < n; ++t) {
    for (std::int64_t h = 0; h < heads; ++h) {
      double total = 0.0, weighted = 0.0;
      for (std::int64_t j = 0; j <= t; ++j) {
        double s = 0.0, g = 0.0;
        const std::int64_t kv_row = j * kv_heads + h * kv_heads / heads;
        for (std::int64_t e = 0; e < d; ++e) {
          s += at(q, t * heads + h, e) * at(k, kv_row, e);
          g += at(dy, t * heads + h, e) * at(v, kv_row, e);
        }
        const double p = std::exp(s / std::sqrt(static_cast<double>(d)));
        total += p;
        weighted += p * g;
      }
      sum += weighted / total;
    }
  }
  return sum;
}

TEST(CpuAttentionBackward, IsCloseToDifferencesInDouble) {
  constexpr std::int64_t kN = 9, kHeads = 4, kKvHeads = 2, kD = 8;
  Batch b = make_batch({kN}, kHeads, kKvHeads, kD);
  b.v = random_tensor(DType::kBF16, {kN, kKvHeads, kD}, 5);
  const Tensor dy = random_tensor(DType::kBF16, {kN, kHeads, kD}, 6);
  const Contract contract;
  const Gradients g =
      run_backward(cpu_kernels(), b, run_packed(cpu_kernels(), b, contract), dy, contract);
  const Values q = values(b.q), k = values(b.k), v = values(b.v), w = values(dy);
  const auto loss = [&](const Values& x, const Values& y, const Values& z) {
    return weighted_output(x, y, z, w, kN, kHeads, kKvHeads, kD);
  };
  expect_close(g.dq, numeric_gradient([&](const Values& x) { return loss(x, k, v); }, q), 0.03);
  expect_close(g.dk, numeric_gradient([&](const Values& x) { return loss(q, x, v); }, k), 0.03);
  expect_close(g.dv, numeric_gradient([&](const Values& x) { return loss(q, k, x); }, v), 0.03);
}

class CpuAttentionBackwardInvariance : public testing::TestWithParam<Isa> {
 protected:
  const KernelTable& kernels() const { return cpu_kernels(GetParam()); }
};

INSTANTIATE_TEST_SUITE_P(All, CpuAttentionBackwardInvariance, testing::ValuesIn(instruction_sets()),
                         [](const auto& info) { return std::string(to_string(info.param)); });

// One long sequence with one KV head is cut in ranges for several threads, and is not for one.
TEST_P(CpuAttentionBackwardInvariance, AnyNumberOfThreadsAndAnyPlanGiveTheSameBits) {
  for (const std::vector<std::int32_t>& lengths :
       {std::vector<std::int32_t>{410}, {30, 2, 17, 250, 1}}) {
    const Batch b = make_batch(lengths, 3, 1, 8);
    const Gradients expected = run_both(kernels(), b, {});
    for (const int threads : {2, 3, 4}) {
      SCOPED_TRACE(threads);
      expect_same(run_both(kernels(), b, {}, threads), expected);
    }
  }
}

TEST_P(CpuAttentionBackwardInvariance, PackingOrderAndNeighboursDoNotMatter) {
  const Batch b = make_batch({60, 7, 100}, 4, 2, 16);
  const Output forward = run_packed(kernels(), b, {});
  const Tensor dy = make_dy(b);
  const Gradients expected = run_backward(kernels(), b, forward, dy, {});

  const std::size_t order[] = {2, 0, 1};
  const std::int64_t first[] = {0, 60, 67};
  // Rows of x in the other packing order.
  const auto reorder = [&](const Tensor& x) {
    Tensor out(x.dtype(), {x.shape(0), x.shape(1), x.layout().rank == 3 ? x.shape(2) : 1});
    const std::size_t row_bytes = x.size_bytes() / static_cast<std::size_t>(x.shape(0));
    char* to = out.data<char>();
    for (const std::size_t s : order) {
      const std::size_t bytes = static_cast<std::size_t>(b.lengths[s]) * row_bytes;
      std::memcpy(to, x.data<char>() + static_cast<std::size_t>(first[s]) * row_bytes, bytes);
      to += bytes;
    }
    return out;
  };
  const Batch other{{100, 60, 7}, 4, 2, 16, reorder(b.q), reorder(b.k), reorder(b.v)};
  const Output other_forward{reorder(forward.y), reorder(forward.lse)};
  const Gradients g = run_backward(kernels(), other, other_forward, reorder(dy), {});
  expect_same(g, {reorder(expected.dq), reorder(expected.dk), reorder(expected.dv)});
}

// What a kernel might do instead of the contract.
struct Wrong {
  bool queries_backwards = false;  // dk, dv from the last query
  bool keys_backwards = false;     // dq from the last key
  bool one_chain = false;          // no parts
  bool heads_inside = false;       // dk, dv: positions outside, heads inside
  bool exact_p = false;            // p in dv not rounded
  bool exact_ds = false;           // ds not rounded
};

// A second text of contract section 6, one sequence and one KV head.
Gradients literal_backward(const Batch& b, const Output& forward, const Tensor& dy,
                           const Contract& contract, const Wrong& wrong) {
  const std::int64_t n = b.lengths[0], heads = b.heads, d = b.d;
  const auto at = [d](const Tensor& x, std::int64_t row) {
    return numerics::Strided{x.data<bf16>() + row * d};
  };
  const float c = static_cast<float>(1.4426950408889634 / std::sqrt(static_cast<double>(d)));
  const float c2 = static_cast<float>(1.0 / std::sqrt(static_cast<double>(d)));
  const auto pairs = static_cast<std::size_t>(heads * n * n);
  std::vector<float> p(pairs), ds(pairs);  // [heads, query, key]
  for (std::int64_t i = 0; i < n * heads; ++i) {
    const float sum = numerics::lane_sum(at(dy, i), at(forward.y, i), d, contract.norm_lanes);
    for (std::int64_t j = 0; j <= i / heads; ++j) {
      const float s = numerics::dot_chain(at(b.q, i), at(b.k, j), d);
      const float dp = numerics::dot_chain(at(dy, i), at(b.v, j), d);
      const float e = numerics::exp2p(std::fma(s, c, -forward.lse.data<float>()[i]));
      const auto to = static_cast<std::size_t>((i % heads * n + i / heads) * n + j);
      const float g = e * (dp - sum);
      p[to] = wrong.exact_p ? e : numerics::round_bf16(e);
      ds[to] = wrong.exact_ds ? g : numerics::round_bf16(g);
    }
  }
  Gradients out{Tensor(DType::kBF16, {n, heads, d}), Tensor(DType::kBF16, {n, 1, d}),
                Tensor(DType::kBF16, {n, 1, d})};
  const int parts = wrong.one_chain ? 1 : contract.leaves;
  for (std::int64_t x = 0; x < d; ++x) {
    for (std::int64_t i = 0; i < n * heads; ++i) {
      float acc = 0.0f;
      for (std::int64_t jj = 0; jj <= i / heads; ++jj) {
        const std::int64_t j = wrong.keys_backwards ? i / heads - jj : jj;
        const auto from = static_cast<std::size_t>((i % heads * n + i / heads) * n + j);
        acc = std::fma(ds[from], at(b.k, j)(x), acc);
      }
      out.dq.data<bf16>()[i * d + x] = numerics::to_bf16(c2 * (acc + 0.0f));
    }
    for (std::int64_t j = 0; j < n; ++j) {
      std::vector<float> dk(static_cast<std::size_t>(parts)), dv(dk);
      for (int part = 0; part < parts; ++part) {
        std::vector<std::pair<std::int64_t, std::int64_t>> order;  // (head, query)
        for (std::int64_t h = part * heads / parts; h < (part + 1) * heads / parts; ++h) {
          for (std::int64_t i = j; i < n; ++i) {
            order.emplace_back(h, wrong.queries_backwards ? n - 1 - (i - j) : i);
          }
        }
        if (wrong.heads_inside) {
          std::stable_sort(order.begin(), order.end(),
                           [](const auto& l, const auto& r) { return l.second < r.second; });
        }
        float& k = dk[static_cast<std::size_t>(part)];
        float& v = dv[static_cast<std::size_t>(part)];
        for (const auto& [h, i] : order) {
          const auto from = static_cast<std::size_t>((h * n + i) * n + j);
          k = std::fma(ds[from], at(b.q, i * heads + h)(x), k);
          v = std::fma(p[from], at(dy, i * heads + h)(x), v);
        }
      }
      out.dk.data<bf16>()[j * d + x] =
          numerics::to_bf16(c2 * numerics::neighbour_tree(dk.data(), parts));
      out.dv.data<bf16>()[j * d + x] =
          numerics::to_bf16(numerics::neighbour_tree(dv.data(), parts));
    }
  }
  return out;
}

class CpuAttentionBackwardTwin : public testing::Test {
 protected:
  CpuAttentionBackwardTwin() {
    // Heads 1 and 3 repeat heads 0 and 2 with the opposite dy, so that all of dk and dv that is
    // left is what the roundings of their chains do not undo.
    const auto copy_head = [](Tensor& x, std::int64_t token, std::int64_t head, bool negate) {
      for (std::int64_t e = 0; e < 32; ++e) {
        const float from = to_f32(*x.view().at<bf16>(token, head, e));
        *x.view().at<bf16>(token, head + 1, e) = numerics::to_bf16(negate ? -from : from);
      }
    };
    for (std::int64_t t = 0; t < 120; ++t) {
      for (const std::int64_t head : {0, 2}) {
        copy_head(batch_.q, t, head, false);
        copy_head(dy_, t, head, true);
      }
    }
    // To the last query the keys of the second half are those of the first with the other sign, so
    // that the same holds for its dq.
    for (std::int64_t i = 0; i < 60 * 32; ++i) {
      bf16* k = batch_.k.data<bf16>() + i;
      k[60 * 32] = numerics::to_bf16(-to_f32(*k));
      batch_.v.data<bf16>()[i + 60 * 32] = batch_.v.data<bf16>()[i];
    }
    std::fill_n(batch_.q.view().at<bf16>(119), 4 * 32, bf16{});
    forward_ = run_packed(cpu_kernels(), batch_, contract_);
    expected_ = run_backward(cpu_kernels(), batch_, forward_, dy_, contract_);
  }

  Gradients literal(const Wrong& wrong) const {
    return literal_backward(batch_, forward_, dy_, contract_, wrong);
  }

  const Contract contract_ = with_leaves(2);
  Batch batch_ = make_batch({120}, 4, 1, 32, 0.02);
  Tensor dy_ = random_tensor(DType::kBF16, {120, 4, 32}, 4);
  Output forward_;
  Gradients expected_;
};

TEST_F(CpuAttentionBackwardTwin, TheSecondTextOfTheContractGivesTheSameBits) {
  expect_same(literal({}), expected_);
}

TEST_F(CpuAttentionBackwardTwin, EveryWrongOrderOrRoundingGivesOtherBits) {
  EXPECT_FALSE(same_bits(literal({.queries_backwards = true}).dk, expected_.dk));
  EXPECT_FALSE(same_bits(literal({.queries_backwards = true}).dv, expected_.dv));
  EXPECT_FALSE(same_bits(literal({.keys_backwards = true}).dq, expected_.dq));
  EXPECT_FALSE(same_bits(literal({.one_chain = true}).dk, expected_.dk));
  EXPECT_FALSE(same_bits(literal({.heads_inside = true}).dv, expected_.dv));
  EXPECT_FALSE(same_bits(literal({.exact_p = true}).dv, expected_.dv));
  EXPECT_FALSE(same_bits(literal({.exact_ds = true}).dq, expected_.dq));
}

TEST_F(CpuAttentionBackwardTwin, AnotherNumberOfLeavesGivesOtherBits) {
  EXPECT_FALSE(same_bits(run_backward(cpu_kernels(), batch_, forward_, dy_, with_leaves(4)).dk,
                         expected_.dk));
}

}  // namespace
}  // namespace rlk::test
