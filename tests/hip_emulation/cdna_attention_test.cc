// Attention of profiles cdna2 and cdna3: each kernel gives the reference's bytes at small and odd
// shapes, whatever the pages, the chunks and the order of threads.
#include <tuple>

#include "rlk/kernels/gpu/cdna/attention.h"
#include "rlk/kernels/gpu/cdna/table.h"
#include "rlk/kernels/gpu/gpu.h"
#include "tests/gpu/gpu_test.h"

namespace rlk {
namespace {

using test::Batch;
using test::expect_same;
using test::Kind;
using test::make_batch;
using test::Output;
using test::random_tensor;
using test::same_bits;
using test::TestExec;

constexpr Profile kProfiles[] = {Profile::kCdna3, Profile::kCdna2};

// Runs body(kernels, contract) on the emulator of each profile's chip.
template <typename Body>
void for_each_profile(const Body& body, int kv_split = 256, std::uint64_t seed = 0) {
  for (const Profile profile : kProfiles) {
    SCOPED_TRACE(profile == Profile::kCdna3 ? "cdna3" : "cdna2");
    const emulation::Scope scope(
        {.wave = 64, .seed = seed, .profile = profile, .kernels_may_touch_host = true});
    Contract contract = test::attention_contract(128, kv_split);
    contract.profile = profile;
    body(on_host_memory(gpu_kernels(profile)), contract);
  }
}

template <bool (*kernel)(Exec&, const AttentionArgs&)>
void attention_by(Exec& exec, const AttentionArgs& args) {
  device::Queue queue;
  queue.clear_fault();
  Exec with_queue{exec.pool, exec.workspace, exec.contract, exec.fault, &queue};
  EXPECT_TRUE(kernel(with_queue, args));
  const std::int64_t row = queue.read_fault();
  if (row >= 0) exec.fault.report(row);
}
bool attention_any(Exec& exec, const AttentionArgs& args) {
  gpu::cdna::attention_any(exec, args);
  return true;
}

// A table of one kernel, which is given host memory.
template <bool (*kernel)(Exec&, const AttentionArgs&)>
KernelTable only() {
  KernelTable table;
  table.attention = &attention_by<kernel>;
  return table;
}
const KernelTable kOneKernel[] = {only<gpu::cdna::attention_prefill>(),
                                  only<gpu::cdna::attention_decode>(), only<attention_any>()};

TEST(CdnaAttentionInvariance, EachKernelGivesTheReferencesBytes) {
  for (const auto& [heads, kv_heads, d] : {std::tuple(3, 1, 64), std::tuple(2, 2, 128)}) {
    const Batch b = make_batch({130, 3, 0, 1}, heads, kv_heads, d, 3.0);
    for_each_profile([&](const KernelTable& kernels, const Contract& contract) {
      const Output right = run_packed(reference_kernels(), b, contract);
      expect_same(run_packed(kernels, b, contract), right);
      for (const KernelTable& kernel : kOneKernel) {
        expect_same(run_packed(kernel, b, contract), right);
      }
    });
  }
}

// All sequences with one query more, up to `queries` at the end.
Output run_last(const KernelTable& kernels, const Batch& b, const test::Pages* pages,
                std::int32_t queries, const Contract& contract) {
  std::vector<std::int32_t> counts, starts;
  std::vector<std::int64_t> tokens;
  std::int32_t first = 0;
  for (const std::int32_t length : b.lengths) {
    counts.push_back(std::min(length, queries));
    starts.push_back(first);
    for (std::int32_t i = counts.back(); i > 0; --i) tokens.push_back(first + length - i);
    first += length;
  }
  const auto n = static_cast<std::int64_t>(tokens.size());
  Tensor q(b.dtype(), {n, b.heads, b.d});
  Output out{Tensor(b.dtype(), {n, b.heads, b.d}), Tensor(DType::kF32, {n, b.heads})};
  for (std::int64_t i = 0; i < n; ++i) {
    std::memcpy(test::row_bytes_at(q, i),
                test::row_bytes_at(b.q, tokens[static_cast<std::size_t>(i)]),
                static_cast<std::size_t>(b.heads * b.d) * size_of(b.dtype()));
  }
  const Tensor kv_start = test::i32_tensor(starts);
  TestExec exec(contract);
  kernels.attention(exec, {out.y, out.lse, q,
                           pages != nullptr ? pages->view() : KvView{b.k, b.v, {}, kv_start, 0},
                           test::cu_seqlens(counts), test::i32_tensor(b.lengths)});
  EXPECT_EQ(exec.fault.row(), -1);
  return out;
}

// Lengths around ends of blocks and splits; pages larger and smaller than an item, or odd.
TEST(CdnaAttentionInvariance, PagesAndSplitsDoNotShow) {
  const Batch b = make_batch({129, 256, 5}, 4, 2, 64, 3.0);
  for_each_profile(
      [&](const KernelTable& kernels, const Contract& contract) {
        for (const std::int32_t queries : {1, 3}) {
          const Output right = run_last(reference_kernels(), b, nullptr, queries, contract);
          expect_same(run_last(kernels, b, nullptr, queries, contract), right);
          for (const std::int64_t page_size : {1, 4, 48, 256}) {
            const test::Pages pages = test::make_pages(b, page_size, 1e30f);
            expect_same(run_last(kernels, b, &pages, queries, contract), right);
            if (page_size % 4 != 0 || queries == 1) continue;
            expect_same(run_last(kOneKernel[0], b, &pages, queries, contract), right);
          }
        }
      },
      128);
}

TEST(CdnaAttentionInvariance, ChunksGiveTheBytesOfAWholeSequence) {
  const Batch b = make_batch({170}, 1, 1, 128, 3.0);
  const test::Pages pages = test::make_pages(b, 16, 1e30f);
  for_each_profile(
      [&](const KernelTable& kernels, const Contract& contract) {
        const Output right = run_packed(reference_kernels(), b, contract);
        expect_same(run_packed(kernels, b, contract), right);
        expect_same(run_chunks(kernels, b, pages, 130, contract), right);
      },
      128);
}

// Where groups of padding come behind sums that are subnormal or zeros of either sign: profile
// cdna2 flushes what a group is given.
TEST(CdnaAttentionInvariance, SubnormalSumsAreTheReferences) {
  for (const std::int64_t d : {64, 20}) {
    Batch b = make_batch({133, 18}, 2, 1, d, 20.0);  // sharp: o is scaled by tiny numbers
    b.v = random_tensor(DType::kBF16, {151, 1, d}, 4, Kind::kSubnormal);
    for (std::int64_t i = 0; i < b.v.size(); i += 3) b.v.data<bf16>()[i].bits = 0x8001;
    for_each_profile(
        [&](const KernelTable& kernels, const Contract& contract) {
          const Output right = run_packed(reference_kernels(), b, contract);
          expect_same(run_packed(kernels, b, contract), right);
          if (d == 20) return;
          for (const KernelTable& kernel : kOneKernel) {
            expect_same(run_packed(kernel, b, contract), right);
          }
        },
        128);
  }
}

std::int64_t fault_of(const KernelTable& kernels, const Batch& b, std::int32_t keys,
                      const Contract& contract) {
  Output out{Tensor(b.dtype(), {b.num_tokens(), b.heads, b.d}),
             Tensor(DType::kF32, {b.num_tokens(), b.heads})};
  TestExec exec(contract);
  const Tensor offsets = test::cu_seqlens(b.lengths);
  const Tensor start = test::i32_tensor({0});
  kernels.attention(
      exec, {out.y, out.lse, b.q, {b.k, b.v, {}, start, 0}, offsets, test::i32_tensor({keys})});
  return exec.fault.row();
}

TEST(CdnaAttentionInvariance, QueriesWithoutKeysAndScoresOutOfRangeAreReported) {
  Batch b = make_batch({20}, 2, 1, 64);
  for_each_profile([&](const KernelTable& kernels, const Contract& contract) {
    EXPECT_EQ(fault_of(kernels, b, 20, contract), -1);
    for (const KernelTable& kernel : kOneKernel) EXPECT_EQ(fault_of(kernel, b, 17, contract), 0);
  });
  for (std::int64_t i = 0; i < 64; ++i) {
    b.q.data<bf16>()[(7 * 2 + 1) * 64 + i] = numerics::to_bf16(0x1p40f);
    b.k.data<bf16>()[i] = numerics::to_bf16(0x1p20f);
  }
  for_each_profile([&](const KernelTable&, const Contract& contract) {
    for (const KernelTable& kernel : kOneKernel) EXPECT_EQ(fault_of(kernel, b, 20, contract), 15);
  });
}

struct Gradients {
  Tensor dq, dk, dv;
};

Tensor random_dy(const Batch& b, Kind kind = Kind::kCancelling) {
  return random_tensor(DType::kBF16, {b.num_tokens(), b.heads, b.d}, 9, kind);
}
Gradients gradients(const KernelTable& kernels, const Batch& b, const Tensor& dy,
                    const Contract& contract) {
  const Output forward = run_packed(reference_kernels(), b, contract);
  Gradients out{Tensor(DType::kBF16, {b.num_tokens(), b.heads, b.d}),
                Tensor(DType::kBF16, {b.num_tokens(), b.kv_heads, b.d}),
                Tensor(DType::kBF16, {b.num_tokens(), b.kv_heads, b.d})};
  TestExec exec(contract);
  kernels.attention_backward(exec, {out.dq, out.dk, out.dv, dy, forward.y, b.q, b.k, b.v,
                                    forward.lse, test::cu_seqlens(b.lengths)});
  return out;
}
void expect_same(const Gradients& a, const Gradients& b) {
  EXPECT_TRUE(same_bits(a.dq, b.dq));
  EXPECT_TRUE(same_bits(a.dk, b.dk));
  EXPECT_TRUE(same_bits(a.dv, b.dv));
}

TEST(CdnaAttentionInvariance, GradientsAreTheReferences) {
  struct Shape {
    std::int64_t heads, d;
    int leaves;
  };
  for (const Shape& shape : {Shape{2, 64, 1}, Shape{2, 128, 2}, Shape{1, 36, 1}}) {
    const Batch b = make_batch({131, 1, 0, 20}, shape.heads, 1, shape.d);
    for_each_profile([&](const KernelTable& kernels, Contract contract) {
      contract.leaves = shape.leaves;
      const Tensor dy = random_dy(b);
      expect_same(gradients(kernels, b, dy, contract),
                  gradients(reference_kernels(), b, dy, contract));
    });
  }
}

TEST(CdnaAttentionInvariance, GradientsOfSubnormalNumbersAreTheReferences) {
  Batch b = make_batch({70}, 2, 1, 64, 3.0);
  b.k = random_tensor(DType::kBF16, {70, 1, 64}, 5, Kind::kSubnormal);
  const Tensor dy = random_dy(b, Kind::kSubnormal);
  for_each_profile([&](const KernelTable& kernels, const Contract& contract) {
    expect_same(gradients(kernels, b, dy, contract),
                gradients(reference_kernels(), b, dy, contract));
  });
}

TEST(CdnaAttentionInvariance, OrderOfBlocksAndThreadsDoesNotShow) {
  const Batch b = make_batch({40, 131}, 1, 1, 64, 3.0);
  for (const std::uint64_t seed : {7, 8}) {
    for_each_profile(
        [&](const KernelTable& kernels, const Contract& contract) {
          const Output right = run_packed(reference_kernels(), b, contract);
          expect_same(run_packed(kernels, b, contract), right);
          expect_same(run_packed(kOneKernel[1], b, contract), right);
          const Tensor dy = random_dy(b);
          expect_same(gradients(kernels, b, dy, contract),
                      gradients(reference_kernels(), b, dy, contract));
        },
        128, seed);
  }
}

TEST(CdnaAttention, StorageF32IsRefused) {
  const Batch b = make_batch({5}, 2, 1, 64, 1.0, DType::kF32);
  const Tensor lse(DType::kF32, {5, 2});
  for_each_profile([&](const KernelTable& kernels, const Contract& contract) {
    EXPECT_THROW(run_packed(kernels, b, contract), Error);
    Gradients out{Tensor(DType::kF32, {5, 2, 64}), Tensor(DType::kF32, {5, 1, 64}),
                  Tensor(DType::kF32, {5, 1, 64})};
    TestExec exec(contract);
    EXPECT_THROW(kernels.attention_backward(exec, {out.dq, out.dk, out.dv, b.q, b.q, b.q, b.k, b.v,
                                                   lse, test::cu_seqlens(b.lengths)}),
                 Error);
  });
}

// Keys that all queries see, with neighbouring groups of the instruction exchanged: the same
// numbers in another order. Each group begins with a large number, which the next one's takes away.
TEST(CdnaAttentionTwin, OtherOrdersOfKeysGiveOtherBytes) {
  for_each_profile([](const KernelTable& kernels, const Contract& contract) {
    const std::int64_t width = contract.profile == Profile::kCdna3 ? 8 : 4;
    const auto batch = [&] {
      Batch b = make_batch({128}, 2, 1, 64, 0.0);  // all weights are equal
      for (std::int64_t i = 0; i < 128 * 64; i += width * 64) {
        const float large = i / 64 / width % 2 == 0 ? 0x1p24f : -0x1p24f;
        std::fill_n(b.v.data<bf16>() + i, 64, numerics::to_bf16(large));
      }
      return b;
    };
    const Batch b = batch();
    Batch other = batch();
    for (std::int64_t i = 0; i < 96; ++i) {
      const std::int64_t from = i ^ width;
      std::memcpy(test::row_bytes_at(other.k, i), test::row_bytes_at(b.k, from), 128);
      std::memcpy(test::row_bytes_at(other.v, i), test::row_bytes_at(b.v, from), 128);
    }
    EXPECT_FALSE(same_bits(run_last(kernels, b, nullptr, 32, contract).y,
                           run_last(kernels, other, nullptr, 32, contract).y));
  });
}

TEST(CdnaAttentionTwin, OtherSplitsGiveOtherBytes) {
  const Batch b = make_batch({300}, 4, 1, 64, 3.0);
  for_each_profile(
      [&](const KernelTable& kernels, const Contract& contract) {
        Contract whole = contract;
        whole.kv_split = 512;
        EXPECT_FALSE(same_bits(run_last(kernels, b, nullptr, 3, contract).lse,
                               run_last(kernels, b, nullptr, 3, whole).lse));
      },
      128);
}

// Heads whose gradients nearly cancel, added one after the other or by a tree.
TEST(CdnaAttentionTwin, OtherLeavesGiveOtherBytes) {
  Batch b = make_batch({40}, 4, 1, 64);
  Tensor dy = random_dy(b, Kind::kNormal);
  const auto heads = [](Tensor& t, std::int64_t token, std::int64_t head) {
    return t.data<bf16>() + (token * 4 + head) * 64;
  };
  for (std::int64_t t = 0; t < 40; ++t) {
    for (std::int64_t h = 1; h < 4; ++h) {
      for (std::int64_t x = 0; x < 64; ++x) {
        heads(b.q, t, h)[x] = heads(b.q, t, 0)[x];
        const float sign = h % 2 == 0 ? 1.0f : -1.0f - 0x1p-7f;
        heads(dy, t, h)[x] = numerics::to_bf16(sign * numerics::to_f32(heads(dy, t, 0)[x]));
      }
    }
  }
  for_each_profile([&](const KernelTable& kernels, const Contract& contract) {
    Contract one = contract;
    one.leaves = 1;
    EXPECT_FALSE(
        same_bits(gradients(kernels, b, dy, contract).dv, gradients(kernels, b, dy, one).dv));
  });
}

}  // namespace
}  // namespace rlk
