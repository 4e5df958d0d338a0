// Vectorised attention: the bytes of the reference on every instruction set, and all that must not
// reach a bit. Twins compute the same data in a wrong order or rounding and must differ.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "attention_data.h"
#include "rlk/numerics/math.h"
#include "rlk/numerics/sums.h"

namespace rlk::test {
namespace {

TEST(CpuAttention, EqualsTheReferenceForEveryInstructionSetAndShape) {
  struct Case {
    std::vector<std::int32_t> lengths;
    std::int64_t heads, kv_heads, d;
    int kv_block, kv_split;
  };
  const Case cases[] = {
      {{1}, 1, 1, 64, 128, 1024},
      {{2, 1, 3}, 4, 2, 16, 128, 1024},
      {{15, 16, 17}, 4, 2, 8, 128, 1024},
      {{15, 16, 17}, 6, 2, 12, 16, 16},
      {{127, 128, 129}, 2, 1, 32, 128, 1024},
      {{10, 0, 7, 33}, 8, 1, 16, 128, 1024},
      {{70}, 7, 1, 128, 16, 64},
      {{67}, 5, 5, 96, 32, 32},
      {{65, 66}, 3, 1, 80, 48, 48},
      {{49}, 2, 2, 256, 16, 32},
      {{200}, 8, 2, 40, 32, 96},
      {{290}, 1, 1, 8, 16, 32},
  };
  for (const Case& c : cases) {
    const Batch b = make_batch(c.lengths, c.heads, c.kv_heads, c.d);
    const Contract contract = attention_contract(c.kv_block, c.kv_split);
    const Output expected = run_packed(reference_kernels(), b, contract);
    for (const Isa isa : instruction_sets()) {
      SCOPED_TRACE(testing::Message() << to_string(isa) << " heads " << c.heads << ":" << c.kv_heads
                                      << " d " << c.d << " block " << c.kv_block);
      expect_same(run_packed(cpu_kernels(isa), b, contract), expected);
    }
  }
}

TEST(CpuAttention, EqualsTheReferenceOnEveryKindOfData) {
  for (const Kind kind : kAllKinds) {
    // Scores stay below 2^22 for every kind: the size of q and k is cut, their shape is not.
    Batch b = make_batch({60}, 4, 2, 16);
    const double scale = kind == Kind::kWide || kind == Kind::kMixed ? 0x1p-15 : 1.0;
    b.q = random_tensor(DType::kBF16, {60, 4, 16}, 11, kind, scale);
    b.k = random_tensor(DType::kBF16, {60, 2, 16}, 12, kind, scale);
    b.v = random_tensor(DType::kBF16, {60, 2, 16}, 13, kind);
    const Contract contract = attention_contract(16, 32);
    const Output expected = run_packed(reference_kernels(), b, contract);
    for (const Isa isa : instruction_sets()) {
      SCOPED_TRACE(testing::Message() << to_string(isa) << " kind " << static_cast<int>(kind));
      expect_same(run_packed(cpu_kernels(isa), b, contract), expected);
    }
  }
}

// The last queries of a long sequence, across blocks and splits of the default contract; q, k, v
// lie in one fused tensor and y in a wider one.
TEST(CpuAttention, EqualsTheReferenceOnStridedViewsOfALongSequence) {
  constexpr std::int64_t kHeads = 4, kKvHeads = 2, kD = 64, kTotal = 1100;
  for (const std::int64_t queries : {1, 3, 90}) {
    const Tensor qkv =
        random_tensor(DType::kBF16, {kTotal, (kHeads + 2 * kKvHeads) * kD}, 3, Kind::kNormal);
    const auto part = [&](std::int64_t begin, std::int64_t heads) {
      return split_heads(columns(qkv.view(), begin * kD, (begin + heads) * kD), heads);
    };
    const auto run = [&](const KernelTable& kernels) {
      Tensor y(DType::kBF16, {queries, 2 * kHeads * kD});
      Tensor lse(DType::kF32, {queries, kHeads});
      TestExec exec;
      const Tensor kv_start = i32_tensor({0});
      kernels.attention(
          exec, {split_heads(columns(y.view(), kD, (kHeads + 1) * kD), kHeads),
                 lse,
                 rows(part(0, kHeads), kTotal - queries, kTotal),
                 {part(kHeads, kKvHeads), part(kHeads + kKvHeads, kKvHeads), {}, kv_start, 0},
                 cu_seqlens({static_cast<std::int32_t>(queries)}),
                 i32_tensor({kTotal})});
      EXPECT_EQ(exec.fault.row(), -1);
      return Output{std::move(y), std::move(lse)};
    };
    const Output expected = run(reference_kernels());
    for (const Isa isa : instruction_sets()) {
      SCOPED_TRACE(testing::Message() << to_string(isa) << " queries " << queries);
      expect_same(run(cpu_kernels(isa)), expected);
    }
  }
}

TEST(CpuAttention, ReportsTheFirstRowWhoseScoresLeaveTheRange) {
  for (const Isa isa : instruction_sets()) {
    for (const float bad : {0x1p40f, std::numeric_limits<float>::quiet_NaN()}) {
      Batch b = make_batch({20}, 4, 2, 16);
      for (const std::int64_t token : {9, 5, 17}) {
        *b.q.view().at<bf16>(token, 2, 3) = numerics::to_bf16(bad);
      }
      TestExec exec;
      Tensor y(DType::kBF16, {20, 4, 16});
      const Tensor offsets = cu_seqlens(b.lengths);
      cpu_kernels(isa).attention(exec, {y,
                                        {},
                                        b.q,
                                        {b.k, b.v, {}, rows(offsets.view(), 0, 1), 0},
                                        offsets,
                                        i32_tensor(b.lengths)});
      EXPECT_EQ(exec.fault.row(), 5 * 4 + 2) << to_string(isa) << " " << bad;
    }
  }
}

TEST(CpuAttention, ReportsAQueryWithoutAVisibleKeyAndStillComputesTheOthers) {
  const Batch b = make_batch({20}, 2, 1, 16);
  for (const Isa isa : instruction_sets()) {
    const auto run = [&](const KernelTable& kernels) {
      TestExec exec;
      Output out{Tensor(DType::kBF16, {20, 2, 16}), Tensor(DType::kF32, {20, 2})};
      const Tensor offsets = cu_seqlens(b.lengths);
      kernels.attention(exec, {out.y,
                               out.lse,
                               b.q,
                               {b.k, b.v, {}, rows(offsets.view(), 0, 1), 0},
                               offsets,
                               i32_tensor({17})});
      EXPECT_EQ(exec.fault.row(), 0);
      return out;
    };
    expect_same(run(cpu_kernels(isa)), run(reference_kernels()));
  }
}

class CpuAttentionInvariance : public testing::TestWithParam<Isa> {
 protected:
  const KernelTable& kernels() const { return cpu_kernels(GetParam()); }
  // Five blocks and two splits in the longest sequence.
  const Contract contract_ = attention_contract(16, 48);
  const Batch batch_ = make_batch({37, 5, 70, 16}, 4, 2, 32);
};

INSTANTIATE_TEST_SUITE_P(All, CpuAttentionInvariance, testing::ValuesIn(instruction_sets()),
                         [](const auto& info) { return std::string(to_string(info.param)); });

TEST_P(CpuAttentionInvariance, PagesOfAnySizeAndOrderGiveTheBitsOfPackedKeys) {
  const Output expected = run_packed(kernels(), batch_, contract_);
  for (const std::int64_t page_size : {8, 16, 64}) {
    SCOPED_TRACE(page_size);
    expect_same(
        run_chunks(kernels(), batch_, make_pages(batch_, page_size, 0.0f), 1 << 20, contract_),
        expected);
  }
}

TEST_P(CpuAttentionInvariance, DecodeAndChunksOfAnySizeGiveTheBitsOfOnePrefill) {
  const Output expected = run_packed(kernels(), batch_, contract_);
  const Pages pages = make_pages(batch_, 8, 0.0f);
  for (const std::int32_t chunk : {1, 2, 7, 64}) {
    SCOPED_TRACE(chunk);
    expect_same(run_chunks(kernels(), batch_, pages, chunk, contract_, 2), expected);
  }
}

TEST_P(CpuAttentionInvariance, UnfilledSlotsMayHoldAnything) {
  const Output expected = run_packed(kernels(), batch_, contract_);
  for (const float garbage :
       {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity(), -3e38f}) {
    for (const std::int32_t chunk : {1, 1 << 20}) {
      SCOPED_TRACE(testing::Message() << garbage << " chunk " << chunk);
      expect_same(run_chunks(kernels(), batch_, make_pages(batch_, 16, garbage), chunk, contract_),
                  expected);
    }
  }
}

// A chunk whose keys are written but whose later keys are not yet: the rest of the page is NaN.
TEST_P(CpuAttentionInvariance, KeysAfterTheLastQueryAreNotLookedAt) {
  const Output expected = run_packed(kernels(), batch_, contract_);
  const std::int64_t row_size = batch_.kv_heads * batch_.d;
  for (const std::int32_t kv_len : {1, 5, 15, 16, 17, 37}) {
    Batch cut = batch_;
    cut.lengths = {kv_len};
    for (Tensor* x : {&cut.k, &cut.v}) {
      std::fill_n(x->data<bf16>() + kv_len * row_size, x->size() - kv_len * row_size, bf16{0x7fc0});
    }
    cut.q = Tensor(DType::kBF16, {kv_len, batch_.heads, batch_.d});
    std::memcpy(cut.q.data<bf16>(), batch_.q.data<bf16>(), cut.q.size_bytes());
    const Output out = run_packed(kernels(), cut, contract_);
    EXPECT_EQ(std::memcmp(out.y.data<bf16>(), expected.y.data<bf16>(), out.y.size_bytes()), 0);
  }
}

TEST_P(CpuAttentionInvariance, NeighboursInTheBatchDoNotMatter) {
  const Output together = run_packed(kernels(), batch_, contract_);
  std::int64_t first = 0;
  for (const std::int32_t length : batch_.lengths) {
    Batch alone = make_batch({length}, batch_.heads, batch_.kv_heads, batch_.d);
    const auto copy = [&](Tensor& to, const Tensor& from, std::int64_t heads) {
      std::memcpy(to.data<bf16>(), from.view().at<bf16>(first),
                  static_cast<std::size_t>(length * heads * batch_.d) * sizeof(bf16));
    };
    copy(alone.q, batch_.q, batch_.heads);
    copy(alone.k, batch_.k, batch_.kv_heads);
    copy(alone.v, batch_.v, batch_.kv_heads);
    const Output out = run_packed(kernels(), alone, contract_);
    EXPECT_EQ(
        std::memcmp(out.y.data<bf16>(), together.y.view().at<bf16>(first), out.y.size_bytes()), 0);
    EXPECT_EQ(std::memcmp(out.lse.data<float>(), together.lse.view().at<float>(first),
                          out.lse.size_bytes()),
              0);
    first += length;
  }
}

TEST_P(CpuAttentionInvariance, AnyNumberOfThreadsGivesTheSameBits) {
  const Batch b = make_batch({150, 3, 220}, 4, 2, 16);
  const Output expected = run_packed(kernels(), b, contract_);
  for (const int threads : {2, 3, 4}) {
    expect_same(run_packed(kernels(), b, contract_, threads), expected);
  }
}

// What a kernel might do instead of the contract.
struct Wrong {
  bool fold_backwards = false;  // splits merged from the last to the first
  bool rounded_in_l = false;    // bf16(e) in l
  bool exact_in_o = false;      // e in o
  bool one_lane = false;        // l summed key by key
  bool keys_backwards = false;  // o summed from the last key of a block
  bool rescale_at_end = false;  // two passes: m of the whole split first, no a
};

// A second text of contract section 4, one head, all positions queries.
Output literal_attention(const Batch& b, const Contract& contract, const Wrong& wrong) {
  const std::int64_t n = b.lengths[0];
  const std::int64_t d = b.d;
  const float c = static_cast<float>(1.4426950408889634 / std::sqrt(static_cast<double>(d)));
  Output out{Tensor(DType::kBF16, {n, 1, d}), Tensor(DType::kF32, {n, 1})};
  struct State {
    float m, l;
    std::vector<float> o;
  };
  for (std::int64_t t = 0; t < n; ++t) {
    std::vector<State> splits;
    std::vector<float> s;
    for (std::int64_t j = 0; j <= t; ++j) {
      float acc = 0.0f;
      for (std::int64_t x = 0; x < d; ++x) {
        acc = std::fma(value(b.q, t * d + x), value(b.k, j * d + x), acc);
      }
      s.push_back(acc + 0.0f);
    }
    for (std::int64_t split = 0; split <= t; split += contract.kv_split) {
      const std::int64_t split_end = std::min<std::int64_t>(split + contract.kv_split, t + 1);
      State state{-numerics::kInfinity, 0.0f, std::vector<float>(static_cast<std::size_t>(d))};
      if (wrong.rescale_at_end) {
        state.m = c * *std::max_element(s.begin() + split, s.begin() + split_end);
      }
      float lane[16] = {};
      for (std::int64_t block = split; block < split_end; block += contract.kv_block) {
        const std::int64_t end = std::min<std::int64_t>(block + contract.kv_block, split_end);
        const float m =
            std::max(state.m, c * *std::max_element(s.begin() + block, s.begin() + end));
        const float a = numerics::exp2p(state.m - m);
        state.m = m;
        for (float& l : lane) l *= a;
        for (float& o : state.o) o *= a;
        for (std::int64_t i = block; i < end; ++i) {
          const std::int64_t j = wrong.keys_backwards ? end - 1 - (i - block) : i;
          const float e = numerics::exp2p(std::fma(s[static_cast<std::size_t>(j)], c, -m));
          float& l = lane[wrong.one_lane ? 0 : (i - block) % 16];
          const float el = numerics::exp2p(std::fma(s[static_cast<std::size_t>(i)], c, -m));
          l = l + (wrong.rounded_in_l ? numerics::round_bf16(el) : el);
          const float eo = wrong.exact_in_o ? e : numerics::round_bf16(e);
          for (std::int64_t x = 0; x < d; ++x) {
            float& o = state.o[static_cast<std::size_t>(x)];
            o = std::fma(eo, value(b.v, j * d + x), o);
          }
        }
      }
      state.l = numerics::neighbour_tree(lane, 16);
      splits.push_back(std::move(state));
    }
    if (wrong.fold_backwards) std::reverse(splits.begin(), splits.end());
    State total = splits[0];
    for (std::size_t i = 1; i < splits.size(); ++i) {
      const float m = std::max(total.m, splits[i].m);
      const float a1 = numerics::exp2p(total.m - m);
      const float a2 = numerics::exp2p(splits[i].m - m);
      total.m = m;
      total.l = std::fma(total.l, a1, splits[i].l * a2);
      for (std::size_t x = 0; x < total.o.size(); ++x) {
        total.o[x] = std::fma(total.o[x], a1, splits[i].o[x] * a2);
      }
    }
    for (std::int64_t x = 0; x < d; ++x) {
      *out.y.view().at<bf16>(t, 0, x) =
          numerics::to_bf16(total.o[static_cast<std::size_t>(x)] / total.l + 0.0f);
    }
    *out.lse.view().at<float>(t) = std::fma(numerics::log(total.l), numerics::kLog2E, total.m);
  }
  return out;
}

class CpuAttentionTwin : public testing::Test {
 protected:
  const Contract contract_ = attention_contract(16, 48);
  const Batch batch_ = make_batch({200}, 1, 1, 32, 0.02);  // terms near 1: their sums cancel
  const Output expected_ = run_packed(cpu_kernels(), batch_, contract_);

  bool differs(const Output& out) const {
    return !same_bits(out.y, expected_.y) || !same_bits(out.lse, expected_.lse);
  }
};

TEST_F(CpuAttentionTwin, TheSecondTextOfTheContractGivesTheSameBits) {
  expect_same(literal_attention(batch_, contract_, {}), expected_);
}

TEST_F(CpuAttentionTwin, AnotherBlockOrSplitGivesOtherBits) {
  EXPECT_TRUE(differs(run_packed(cpu_kernels(), batch_, attention_contract(48, 48))));
  EXPECT_TRUE(differs(run_packed(cpu_kernels(), batch_, attention_contract(16, 96))));
}

TEST_F(CpuAttentionTwin, EveryWrongOrderOrRoundingGivesOtherBits) {
  EXPECT_TRUE(differs(literal_attention(batch_, contract_, {.fold_backwards = true})));
  EXPECT_TRUE(differs(literal_attention(batch_, contract_, {.rounded_in_l = true})));
  EXPECT_TRUE(differs(literal_attention(batch_, contract_, {.exact_in_o = true})));
  EXPECT_TRUE(differs(literal_attention(batch_, contract_, {.one_lane = true})));
  EXPECT_TRUE(differs(literal_attention(batch_, contract_, {.keys_backwards = true})));
  EXPECT_TRUE(differs(literal_attention(batch_, contract_, {.rescale_at_end = true})));
}

// Blocks counted from the first key of a chunk instead of from position 0.
TEST_F(CpuAttentionTwin, BlocksThatFollowTheChunkGiveOtherBits) {
  Batch shifted = batch_;
  constexpr std::int64_t kShift = 9;
  shifted.lengths = {200 - kShift};
  for (auto [to, from] :
       {std::pair{&shifted.q, &batch_.q}, {&shifted.k, &batch_.k}, {&shifted.v, &batch_.v}}) {
    *to = Tensor(DType::kBF16, {200 - kShift, 1, 32});
    std::memcpy(to->data<bf16>(), from->view().at<bf16>(kShift), to->size_bytes());
  }
  // The same keys in blocks that start at 0 and in blocks that start at kShift: a softmax of all
  // keys but the first nine, whose sums are cut elsewhere.
  const Output at_zero = run_packed(cpu_kernels(), shifted, contract_);
  const Output uncut = run_packed(cpu_kernels(), shifted, attention_contract(208, 208));
  EXPECT_FALSE(same_bits(at_zero.lse, uncut.lse));
}

}  // namespace
}  // namespace rlk::test
