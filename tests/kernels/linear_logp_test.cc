// linear_logp and its gradient: the reference's bytes for every instruction set, thread count,
// batch and way to the rows' sums; twins with another order.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "reference_gradient.h"
#include "rlk/numerics/log_sum_exp.h"
#include "tests/kernels/backends.h"

namespace rlk::test {
namespace {

struct Case {
  Tensor hidden, head, targets, g, g_entropy;
  std::int64_t vocab_size = 0;
  std::vector<SamplingParams> params{SamplingParams{}};
  std::vector<std::int64_t> ends;
  std::vector<std::int32_t> cu_seqlens;

  std::int64_t rows() const { return hidden.shape(0); }
  ConstTensorView group_ends() const { return view(ends.data(), {std::ssize(ends)}); }
};

Case make_case(std::int64_t rows, std::int64_t hidden_size, std::int64_t vocab_size,
               std::int64_t vocab_padded, DType storage = DType::kBF16) {
  constexpr std::uint64_t seed = 1;
  Case c;
  c.hidden = random_tensor(storage, {rows, hidden_size}, seed, Kind::kCancelling, 0.05);
  c.head = random_tensor(storage, {vocab_padded, hidden_size}, seed + 1);
  for (std::int64_t j = vocab_size; j < vocab_padded; ++j) {
    const auto row_bytes = static_cast<std::size_t>(hidden_size) * size_of(storage);
    std::memset(c.head.data<char>() + static_cast<std::size_t>(j) * row_bytes, 0, row_bytes);
  }
  c.vocab_size = vocab_size;
  Rng rng(seed + 2);
  std::vector<std::int32_t> targets;
  for (std::int64_t t = 0; t < rows; ++t) {
    targets.push_back(t % 9 == 8 ? kIgnoreIndex : static_cast<std::int32_t>(rng.below(vocab_size)));
  }
  c.targets = i32_tensor(targets);
  c.g = random_tensor(DType::kF32, {rows}, seed + 3);
  c.g_entropy = random_tensor(DType::kF32, {rows}, seed + 4, Kind::kNormal, 0.1);
  for (std::int64_t t = 2; t < rows; t += 5) c.g.data<float>()[t] = 0.0f;
  c.ends = {rows / 2, rows};
  return c;
}

struct Options {
  bool entropy = true;
  bool state = true;
  bool packed = true;
};

// [logp, entropy, d_hidden, dw, chain]
// Numbers of a row of `hidden` are `apart` from each other.
std::vector<Tensor> run(const KernelTable& kernels, Exec& exec, const Case& c,
                        const Options& options, std::int64_t apart = 1) {
  const std::int64_t rows = c.rows(), n = c.hidden.shape(1) / apart;
  std::vector<Tensor> out;
  for (int i = 0; i < 2; ++i) out.push_back(Tensor(DType::kF32, {rows}));
  out.push_back(Tensor(c.hidden.dtype(), {rows, n}));
  for (int i = 0; i < 2; ++i) {
    out.push_back(random_tensor(DType::kF32, {c.head.shape(0), n}, 90 + static_cast<unsigned>(i)));
  }
  Tensor words(DType::kI32, {rows, kLogprobStateWords});
  PackedWeight forward, backward;
  LinearLogpBackwardArgs b;
  LinearLogpArgs& a = b.forward;
  a.logp = out[0];
  if (options.entropy) a.entropy = out[1];
  a.hidden = c.hidden;
  a.hidden.layout.shape[1] = n;
  a.hidden.layout.stride[1] = apart;
  a.head = c.head;
  a.vocab_size = c.vocab_size;
  if (options.packed && kernels.pack_weight) {
    ConstTensorView transposed = c.head;
    std::swap(transposed.layout.shape[0], transposed.layout.shape[1]);
    std::swap(transposed.layout.stride[0], transposed.layout.stride[1]);
    kernels.pack_weight(exec, {&forward, rlk::rows(ConstTensorView(c.head), 0, c.vocab_size)});
    kernels.pack_weight(exec, {&backward, transposed});
    a.packed_forward = &forward;
    a.packed_backward = &backward;
  }
  a.targets = c.targets;
  a.params = c.params.data();
  a.num_params = std::ssize(c.params);
  if (options.state) a.state = words;
  kernels.linear_logp(exec, a);
  b.d_hidden = out[2];
  b.dw = out[3];
  b.chain = out[4];
  b.group_ends = c.group_ends();
  if (!c.cu_seqlens.empty()) b.cu_seqlens = view(c.cu_seqlens.data(), {std::ssize(c.cu_seqlens)});
  b.g = c.g;
  if (options.entropy) b.g_entropy = c.g_entropy;
  kernels.linear_logp_backward(exec, b);
  for (float* x : {out[4].data<float>()}) {  // the open sum may hold either zero
    for (std::int64_t i = 0; i < out[4].size(); ++i) x[i] = x[i] == 0.0f ? 0.0f : x[i];
  }
  return out;
}

OpCall call(const Case& c, const Options& options = {}) {
  return [&c, options](const KernelTable& kernels, Exec& exec) {
    return run(kernels, exec, c, options);
  };
}

TEST(LinearLogpInvariance, EqualsTheReferenceAtEveryBoundaryOfItsBlocks) {
  struct Size {
    std::int64_t rows, hidden, vocab, padded;
  };
  for (const Size& s : {Size{1, 33, 300, 384},
                        {3, 16, 1025, 1152},
                        {257, 8, 70, 128},
                        {20, 270, 129, 256},
                        {5, 12, 2304, 2304}}) {
    const Case c = make_case(s.rows, s.hidden, s.vocab, s.padded);
    expect_the_reference_everywhere(
        call(c), fmt::format("[{}, {}] x {}", s.rows, s.hidden, s.vocab), {}, {1, 3});
  }
}

TEST(LinearLogpInvariance, EqualsTheReferenceInF32) {
  struct Size {
    std::int64_t rows, hidden, vocab, padded;
  };
  for (const Size& s : {Size{1, 33, 300, 384}, {257, 24, 70, 128}, {60, 270, 300, 384}}) {
    const Case c = make_case(s.rows, s.hidden, s.vocab, s.padded, DType::kF32);
    for (const bool packed : {false, true}) {
      expect_the_reference_everywhere(
          call(c, {.packed = packed}),
          fmt::format("[{}, {}] x {} packed {}", s.rows, s.hidden, s.vocab, packed), {}, {1, 3});
    }
  }
}

// Tiles of whole rows hold 34 of these; a chain of dW goes on from tile to tile.
TEST(LinearLogpInvariance, TilesOfRowsCutTheChainsOfOtherProfilesBetweenGroups) {
  Case c = make_case(70, 1, 200'000, 200'064);
  c.params[0].min_p = 1e-30f;
  c.cu_seqlens = {0, 5, 61, 70};
  Contract contract;
  contract.profile = Profile::kCdna2;
  const OpCall rows = call(c, {.entropy = false, .packed = false});
  expect_same(outcome(rows, cpu_kernels(), contract, 2),
              outcome(rows, reference_kernels(), contract), "cdna2");
}

TEST(LinearLogpInvariance, StateAndPackedWeightsChangeNoBit) {
  Case c = make_case(40, 24, 700, 768);
  c.params.assign(40, {});
  for (std::size_t t = 0; t < 40; ++t) {
    if (t % 3 == 1) c.params[t].min_p = 1e-6f;
    if (t % 3 == 2) c.params[t].temperature = 0.7f;
  }
  for (const bool entropy : {false, true}) {
    for (const bool state : {false, true}) {
      for (const bool packed : {false, true}) {
        expect_the_reference_everywhere(call(c, {entropy, state, packed}), "options", {}, {2});
      }
    }
  }
}

TEST(LinearLogpInvariance, LeavesAreThoseOfTheContract) {
  const Case c = make_case(6, 16, 300, 320);
  for (const int leaves : {1, 2, 8, 32}) {
    Contract contract;
    contract.leaves = leaves;
    expect_the_reference_everywhere(call(c), fmt::format("{} leaves", leaves), contract, {2});
  }
}

// Rows alone, in other neighbourhoods, reversed, and in batches of 1 to 257.
TEST(LinearLogpInvariance, ARowDependsOnNothingButItself) {
  const Case all = make_case(257, 16, 500, 512);
  const Outcome expected = outcome(call(all), cpu_kernels(), {}, 2);
  const auto rows_of = [&](const std::vector<std::int64_t>& order) {
    Case c = make_case(std::ssize(order), 16, 500, 512);
    c.head = all.head;
    for (std::size_t i = 0; i < order.size(); ++i) {
      const auto from = order[i];
      const auto to = static_cast<std::int64_t>(i);
      std::copy_n(all.hidden.data<bf16>() + 16 * from, 16, c.hidden.data<bf16>() + 16 * to);
      c.targets.data<std::int32_t>()[to] = all.targets.data<std::int32_t>()[from];
      c.g.data<float>()[to] = all.g.data<float>()[from];
      c.g_entropy.data<float>()[to] = all.g_entropy.data<float>()[from];
    }
    const Outcome got = outcome(call(c), cpu_kernels(), {}, 3);
    for (std::size_t i = 0; i < order.size(); ++i) {
      const auto to = static_cast<std::int64_t>(i);
      for (int k = 0; k < 2; ++k) {
        ASSERT_EQ(std::memcmp(got.outputs[k].data<float>() + to,
                              expected.outputs[k].data<float>() + order[i], 4),
                  0);
      }
      ASSERT_EQ(std::memcmp(got.outputs[2].data<bf16>() + 16 * to,
                            expected.outputs[2].data<bf16>() + 16 * order[i], 32),
                0);
    }
  };
  for (const std::int64_t n : {1, 2, 15, 16, 17, 255, 256, 257}) {
    std::vector<std::int64_t> order;
    for (std::int64_t i = 0; i < n; ++i) order.push_back(n % 2 ? 256 - i : (i * 19 + 7) % 257);
    rows_of(order);
  }
}

TEST(LinearLogpInvariance, PaddedColumnsAndThreadsChangeNoBit) {
  const Case c = make_case(50, 24, 500, 512);
  const Outcome expected = outcome(call(c), cpu_kernels());
  for (int threads = 2; threads <= 8; ++threads) {
    expect_same(outcome(call(c), cpu_kernels(), {}, threads), expected,
                fmt::format("{} threads", threads));
  }
  const Case wider = make_case(50, 24, 500, 640);
  const Outcome padded = outcome(call(wider), cpu_kernels());
  EXPECT_TRUE(same_bytes(padded.outputs[0], expected.outputs[0]));
  EXPECT_TRUE(same_bytes(padded.outputs[1], expected.outputs[1]));
}

// The vocabulary in shards of any size, whose states are merged in any order.
TEST(LinearLogpInvariance, ShardsOfTheVocabularyMergeInAnyOrder) {
  const std::int64_t vocab = 700, n = 24;
  const Case c = make_case(20, n, vocab, 768);
  const Outcome right = outcome(call(c), cpu_kernels(), {}, 2);
  Rng rng(5);
  for (int round = 0; round < 4; ++round) {
    std::vector<std::int64_t> cuts{0, vocab};
    for (int i = 0; i < 3 * round; ++i) cuts.push_back(rng.below(vocab));
    std::sort(cuts.begin(), cuts.end());
    std::vector<std::vector<numerics::EntropySumExp>> shards;  // [shard][row]
    Tensor z_target(DType::kF32, {20});
    for (std::size_t i = 0; i + 1 < cuts.size(); ++i) {
      const std::int64_t begin = cuts[i], size = cuts[i + 1] - begin;
      TestExec exec;
      Tensor logits(DType::kF32, {20, size});
      GemmArgs product;
      product.c = logits;
      product.a = c.hidden;
      product.b = rlk::rows(ConstTensorView(c.head), begin, begin + size);
      product.segments = {n, 0, 0};
      cpu_kernels().gemm(exec, product);
      shards.emplace_back(20);
      for (std::int64_t t = 0; t < 20; ++t) {
        for (std::int64_t j = 0; j < size; ++j) {
          const float z = logits.data<float>()[t * size + j];
          shards.back()[static_cast<std::size_t>(t)].add(z);
          if (c.targets.data<std::int32_t>()[t] == begin + j) z_target.data<float>()[t] = z;
        }
      }
    }
    for (std::size_t i = shards.size() - 1; i > 0; --i) {
      std::swap(shards[i], shards[static_cast<std::size_t>(rng.below(std::ssize(shards)))]);
    }
    for (std::int64_t t = 0; t < 20; ++t) {
      if (c.targets.data<std::int32_t>()[t] == kIgnoreIndex) continue;
      numerics::EntropySumExp all;
      for (const auto& shard : shards) all.merge(shard[static_cast<std::size_t>(t)]);
      const numerics::LogSumExpEnd end(all.sum);
      EXPECT_EQ(end.logp(value(z_target, t)), value(right.outputs[0], t));
      EXPECT_EQ(static_cast<float>(end.entropy(all)), value(right.outputs[1], t));
    }
  }
}

// One chain over the vocabulary in place of the leaf tree; tokens last to first in dW.
TEST(LinearLogpTwin, AnotherOrderGivesOtherGradients) {
  Case c = make_case(50, 24, 500, 512);
  // dz of a row nearly cancels, and a constant part of the head with it.
  for (std::int64_t i = 0; i < 500 * 24; ++i) {
    bf16& x = c.head.data<bf16>()[i];
    x = numerics::to_bf16(numerics::to_f32(x) + 64.0f);
  }
  const Outcome right = outcome(call(c), cpu_kernels());
  Contract one_leaf;
  one_leaf.leaves = 1;
  const Outcome chain = outcome(call(c), cpu_kernels(), one_leaf);
  EXPECT_TRUE(same_bytes(chain.outputs[0], right.outputs[0]));
  EXPECT_FALSE(same_bytes(chain.outputs[2], right.outputs[2]));
  Case backwards = c;
  for (std::int64_t t = 0; t < 50; ++t) {
    const std::int64_t from = 49 - t;
    std::copy_n(c.hidden.data<bf16>() + 24 * from, 24, backwards.hidden.data<bf16>() + 24 * t);
    backwards.targets.data<std::int32_t>()[t] = c.targets.data<std::int32_t>()[from];
    backwards.g.data<float>()[t] = c.g.data<float>()[from];
    backwards.g_entropy.data<float>()[t] = c.g_entropy.data<float>()[from];
  }
  EXPECT_FALSE(same_bytes(outcome(call(backwards), cpu_kernels()).outputs[3], right.outputs[3]));
}

TEST(LinearLogpTwin, LogitsRoundedToBf16GiveOtherLogprobs) {
  const Case c = make_case(50, 24, 500, 512);
  const Outcome right = outcome(call(c), cpu_kernels());
  TestExec exec;
  Tensor logits(DType::kF32, {50, 500}), logp(DType::kF32, {50});
  GemmArgs product;
  product.c = logits;
  product.a = c.hidden;
  product.b = rlk::rows(ConstTensorView(c.head), 0, 500);
  product.segments = {24, 0, 0};
  cpu_kernels().gemm(exec, product);
  for (std::int64_t i = 0; i < logits.size(); ++i) {
    logits.data<float>()[i] = numerics::round_bf16(logits.data<float>()[i]);
  }
  cpu_kernels().logprob(exec, {logp, {}, logits, c.targets, c.params.data(), 1});
  EXPECT_FALSE(same_bytes(logp, right.outputs[0]));
}

TEST(LinearLogp, ReportsTheRowOfTheCall) {
  Case c = make_case(300, 8, 40, 128);
  c.hidden.data<bf16>()[8 * 299 + 3] = bf16{0x7f80};
  for (std::int64_t t = 290; t < 300; ++t) c.targets.data<std::int32_t>()[t] = 5;
  for (const Isa isa : isas()) EXPECT_EQ(outcome(call(c), cpu_kernels(isa)).fault_row, 299);
  EXPECT_EQ(outcome(call(c), reference_kernels()).fault_row, 299);
  EXPECT_EQ(outcome(call(c), production_kernels()).fault_row, 299);
}

// Many logits, and many open sums of d_hidden; dense rows and, by whole rows, others.
TEST(LinearLogp, ExtraMemoryStaysBelowItsBound) {
  for (const DType storage : {DType::kBF16, DType::kF32}) {
    const Case many_columns = make_case(300, 16, 70000, 70016, storage);
    Case apart = many_columns;
    apart.hidden = random_tensor(storage, {300, 2 * 16}, 1);
    const Case many_rows = make_case(1200, 2000, 100, 128, storage);
    for (const Case* c : std::initializer_list<const Case*>{&many_columns, &apart, &many_rows}) {
      TestExec exec({}, 2);
      run(cpu_kernels(), exec, *c, {.entropy = false, .packed = false}, c == &apart ? 2 : 1);
      EXPECT_LT(exec.workspace.size_bytes(), static_cast<std::size_t>(kLinearLogpBytes));
    }
  }
}

}  // namespace
}  // namespace rlk::test
