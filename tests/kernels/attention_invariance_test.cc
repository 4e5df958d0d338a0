// What must not reach a bit of attention, forward and backward, in both storage types, on every
// instruction set. The twins compute the same data in a wrong order and must differ.
#include <gtest/gtest.h>

#include "attention_data.h"

namespace rlk::test {
namespace {

struct Setting {
  Isa isa;
  DType storage;
};

std::vector<Setting> settings() {
  std::vector<Setting> all;
  for (const Isa isa : instruction_sets()) {
    for (const DType storage : {DType::kBF16, DType::kF32}) all.push_back({isa, storage});
  }
  return all;
}

std::string name_of(const testing::TestParamInfo<Setting>& info) {
  return std::string(to_string(info.param.isa)) + "_" + std::string(to_string(info.param.storage));
}

// The sequences `which` of a batch, in that order.
Batch pick(const Batch& b, const std::vector<std::size_t>& which) {
  Batch out{{}, b.heads, b.kv_heads, b.d, {}, {}, {}};
  for (const std::size_t s : which) out.lengths.push_back(b.lengths[s]);
  const std::int64_t n = out.num_tokens();
  out.q = Tensor(b.dtype(), {n, b.heads, b.d});
  out.k = Tensor(b.dtype(), {n, b.kv_heads, b.d});
  out.v = Tensor(b.dtype(), {n, b.kv_heads, b.d});
  std::int64_t to = 0;
  for (const std::size_t s : which) {
    const std::int64_t from =
        std::accumulate(b.lengths.begin(), b.lengths.begin() + static_cast<std::ptrdiff_t>(s), 0);
    for (std::int32_t i = 0; i < b.lengths[s]; ++i, ++to) {
      for (const auto& [x, y] : {std::pair{&out.q, &b.q}, {&out.k, &b.k}, {&out.v, &b.v}}) {
        std::memcpy(row_bytes_at(*x, to), row_bytes_at(*y, from + i),
                    static_cast<std::size_t>(x->layout().stride[0]) * size_of(b.dtype()));
      }
    }
  }
  return out;
}

// Rows [first, first + n) of b are the rows of a.
bool same_rows(const Tensor& a, const Tensor& b, std::int64_t first) {
  return std::memcmp(row_bytes_at(a, 0), row_bytes_at(b, first), a.size_bytes()) == 0;
}

// The last query of every sequence, alone: a decode step.
Output decode(const KernelTable& kernels, const Batch& b, const Pages& pages,
              const Contract& contract, int threads) {
  const auto n = static_cast<std::int64_t>(b.lengths.size());
  Tensor q(b.dtype(), {n, b.heads, b.d});
  std::int64_t last = -1;
  for (std::int64_t s = 0; s < n; ++s) {
    last += b.lengths[static_cast<std::size_t>(s)];
    std::memcpy(row_bytes_at(q, s), row_bytes_at(b.q, last),
                static_cast<std::size_t>(b.heads * b.d) * size_of(b.dtype()));
  }
  Output out{Tensor(b.dtype(), {n, b.heads, b.d}), Tensor(DType::kF32, {n, b.heads})};
  TestExec exec(contract, threads);
  const std::vector<std::int32_t> ones(b.lengths.size(), 1);
  kernels.attention(exec,
                    {out.y, out.lse, q, pages.view(), cu_seqlens(ones), i32_tensor(b.lengths)});
  EXPECT_EQ(exec.fault.row(), -1);
  return out;
}

class AttentionInvariance : public testing::TestWithParam<Setting> {
 protected:
  const KernelTable& kernels() const { return cpu_kernels(GetParam().isa); }
  Batch make(std::vector<std::int32_t> lengths, std::int64_t heads, std::int64_t kv_heads,
             std::int64_t d) const {
    return make_batch(std::move(lengths), heads, kv_heads, d, 1.0, GetParam().storage);
  }
  const Contract contract_ = attention_contract(16, 48);
};

INSTANTIATE_TEST_SUITE_P(All, AttentionInvariance, testing::ValuesIn(settings()), name_of);

TEST_P(AttentionInvariance, BatchesOf1To257SequencesGiveTheBitsOfOneSequenceAlone) {
  std::vector<std::int32_t> lengths;
  for (int i = 0; i < 257; ++i) lengths.push_back(1 + i * 7 % 60);
  const Batch all = make(lengths, 2, 1, 8);
  const Output together = run_packed(kernels(), all, contract_, 2);
  std::vector<std::size_t> which;
  for (const std::size_t size : {1, 2, 3, 16, 33, 128, 256, 257}) {
    while (which.size() < size) which.push_back(which.size());
    const Batch part = pick(all, which);
    const Output out = run_packed(kernels(), part, contract_);
    EXPECT_TRUE(same_rows(out.y, together.y, 0)) << size;
    EXPECT_TRUE(same_rows(out.lse, together.lse, 0)) << size;
  }
  std::int64_t first = 0;
  for (std::size_t s = 0; s < 257; ++s) {
    if (s % 32 == 5) {
      const Output alone = run_packed(kernels(), pick(all, {s}), contract_);
      EXPECT_TRUE(same_rows(alone.y, together.y, first)) << s;
    }
    first += lengths[s];
  }
}

TEST_P(AttentionInvariance, PackingOrderAndNeighboursDoNotMatter) {
  const Batch all = make({37, 5, 70, 16}, 4, 2, 32);
  const Output expected = run_packed(kernels(), all, contract_);
  const std::int64_t begin[] = {0, 37, 42, 112};
  const std::vector<std::size_t> order = {2, 0, 2, 3, 1};  // one of them twice
  const Output out = run_packed(kernels(), pick(all, order), contract_, 3);
  std::int64_t at = 0;
  for (const std::size_t s : order) {
    const Output alone = run_packed(kernels(), pick(all, {s}), contract_);
    EXPECT_TRUE(same_rows(alone.y, expected.y, begin[s])) << s;
    EXPECT_TRUE(same_rows(alone.y, out.y, at)) << s;
    EXPECT_TRUE(same_rows(alone.lse, out.lse, at)) << s;
    at += all.lengths[s];
  }
}

TEST_P(AttentionInvariance, ChunksAndPagesOfAnySizeGiveTheBitsOfOnePrefill) {
  const Batch b = make({350, 21}, 4, 2, 16);
  const Output expected = run_packed(kernels(), b, contract_);
  const std::int32_t chunks[] = {1, 7, 64, 333, 1 << 20};
  int i = 0;
  for (const std::int64_t page_size : {8, 16, 32, 64, 128, 256}) {
    const std::int32_t chunk = chunks[i++ % 5];
    SCOPED_TRACE(testing::Message() << "pages of " << page_size << ", chunks of " << chunk);
    expect_same(run_chunks(kernels(), b, make_pages(b, page_size, 0.0f), chunk, contract_),
                expected);
  }
}

// What a prefix cache leaves: the first tokens are there, the queries start inside a block.
TEST_P(AttentionInvariance, APrefixOfAnyLengthGivesTheBitsOfTheWholePrefill) {
  const Batch b = make({75}, 4, 2, 32);
  const Output expected = run_packed(kernels(), b, contract_);
  const Pages pages = make_pages(b, 16, 0.0f);
  for (const std::int64_t prefix : {1, 15, 16, 17, 32, 48, 74}) {
    const auto queries = static_cast<std::int32_t>(75 - prefix);
    Output out{Tensor(b.dtype(), {queries, b.heads, b.d}), Tensor(DType::kF32, {queries, b.heads})};
    TestExec exec(contract_);
    kernels().attention(exec, {out.y, out.lse, rows(b.q.view(), prefix, 75), pages.view(),
                               cu_seqlens({queries}), i32_tensor({75})});
    EXPECT_TRUE(same_rows(out.y, expected.y, prefix)) << prefix;
    EXPECT_TRUE(same_rows(out.lse, expected.lse, prefix)) << prefix;
  }
}

// One long sequence has too few tiles for all threads: splits are computed side by side.
TEST_P(AttentionInvariance, DecodeOnAnyNumberOfThreadsGivesTheSameBits) {
  for (const std::int64_t group : {1, 2, 3, 8, 16}) {
    const Batch b = make({500, 130}, group * 2, 2, 24);
    const Pages pages = make_pages(b, 16, 0.0f);
    const Output expected = decode(reference_kernels(), b, pages, contract_, 1);
    for (int threads = 1; threads <= 8; ++threads) {
      SCOPED_TRACE(testing::Message() << group << " heads per KV head, threads " << threads);
      expect_same(decode(kernels(), b, pages, contract_, threads), expected);
    }
  }
}

TEST_P(AttentionInvariance, PrefillOnAnyNumberOfThreadsGivesTheSameBits) {
  const Batch b = make({150, 3, 220}, 4, 2, 16);
  const Output expected = run_packed(kernels(), b, contract_);
  for (int threads = 2; threads <= 8; ++threads) {
    expect_same(run_packed(kernels(), b, contract_, threads), expected);
  }
}

// Splits of another length, as if each thread cut the keys by their number.
TEST(AttentionTwin, SplitsThatFollowTheThreadsGiveOtherBits) {
  for (const DType storage : {DType::kBF16, DType::kF32}) {
    const Batch b = make_batch({500}, 2, 2, 24, 0.02, storage);
    const Pages pages = make_pages(b, 16, 0.0f);
    const Output expected = decode(cpu_kernels(), b, pages, attention_contract(16, 48), 2);
    const Output halves = decode(cpu_kernels(), b, pages, attention_contract(16, 256), 2);
    EXPECT_FALSE(same_bits(halves.lse, expected.lse) && same_bits(halves.y, expected.y));
  }
}

// Terms rounded to bf16 before they meet the values, as in a call with BF16 storage: the same
// numbers in f32 storage must not be rounded.
TEST(AttentionTwin, TermsRoundedToBf16GiveOtherBitsInF32) {
  const Batch narrow = make_batch({200}, 2, 1, 32, 0.02);
  Batch wide = make_batch({200}, 2, 1, 32, 0.02, DType::kF32);
  for (const auto& [to, from] :
       {std::pair{&wide.q, &narrow.q}, {&wide.k, &narrow.k}, {&wide.v, &narrow.v}}) {
    for (std::int64_t i = 0; i < to->size(); ++i) to->data<float>()[i] = value(*from, i);
  }
  const Output a = run_packed(cpu_kernels(), narrow, Contract{});
  const Output b = run_packed(cpu_kernels(), wide, Contract{});
  EXPECT_TRUE(same_bits(a.lse, b.lse));  // scores and l are the same numbers
  bool differs = false;
  for (std::int64_t i = 0; i < a.y.size(); ++i) {
    differs = differs || numerics::round_bf16(value(b.y, i)) != value(a.y, i);
  }
  EXPECT_TRUE(differs);
}

TEST(CpuAttentionF32, EqualsTheReferenceForEveryInstructionSetAndShape) {
  struct Case {
    std::vector<std::int32_t> lengths;
    std::int64_t heads, kv_heads, d;
    int kv_block, kv_split;
  };
  const Case cases[] = {
      {{1}, 1, 1, 64, 128, 1024},      {{2, 1, 3}, 4, 2, 16, 128, 1024},
      {{15, 0, 17}, 6, 2, 12, 16, 16}, {{127, 128, 129}, 2, 1, 34, 128, 1024},
      {{70}, 7, 1, 128, 16, 64},       {{67}, 5, 5, 96, 32, 32},
      {{49}, 2, 2, 256, 16, 32},       {{130}, 16, 1, 10, 32, 96},
  };
  for (const Case& c : cases) {
    const Batch b = make_batch(c.lengths, c.heads, c.kv_heads, c.d, 1.0, DType::kF32);
    const Contract contract = attention_contract(c.kv_block, c.kv_split);
    const Output expected = run_packed(reference_kernels(), b, contract);
    for (const Isa isa : instruction_sets()) {
      SCOPED_TRACE(testing::Message() << to_string(isa) << " heads " << c.heads << ":" << c.kv_heads
                                      << " d " << c.d << " block " << c.kv_block);
      expect_same(run_packed(cpu_kernels(isa), b, contract), expected);
    }
  }
}

// Few queries (read in place) and many (widened), fused q, k, v, in memory at an odd address.
TEST(CpuAttention, EqualsTheReferenceOnSlicesAtOddAddressesInBothStorageTypes) {
  constexpr std::int64_t kHeads = 6, kKvHeads = 2, kD = 40, kN = 300, kWidth = 10 * kD + 3;
  for (const DType storage : {DType::kBF16, DType::kF32}) {
    Tensor fused = random_tensor(storage, {kN * kWidth + 1}, 3);
    const auto part = [&](std::int64_t head, std::int64_t heads) {
      TensorView x{element(fused, 1 + head * kD), storage, Layout({kN, heads, kD})};
      x.layout.stride = {kWidth, kD, 1, 0};
      return x;
    };
    const Tensor kv_start = i32_tensor({0});
    for (const std::int32_t queries : {1, 5, 100}) {
      const auto run = [&](const KernelTable& kernels) {
        Output out{Tensor(storage, {queries, kHeads, kD}), Tensor(DType::kF32, {queries, kHeads})};
        TestExec exec(attention_contract(128, 256), 2);
        kernels.attention(
            exec, {out.y,
                   out.lse,
                   rows(part(0, kHeads), kN - queries, kN),
                   {part(kHeads, kKvHeads), part(kHeads + kKvHeads, kKvHeads), {}, kv_start, 0},
                   cu_seqlens({queries}),
                   i32_tensor({kN})});
        EXPECT_EQ(exec.fault.row(), -1);
        return out;
      };
      const Output expected = run(reference_kernels());
      for (const Isa isa : instruction_sets()) {
        SCOPED_TRACE(testing::Message() << to_string(isa) << " queries " << queries);
        expect_same(run(cpu_kernels(isa)), expected);
      }
    }
  }
}

}  // namespace
}  // namespace rlk::test
