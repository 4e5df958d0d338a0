// Attention problems for the tests of the vectorised kernels: data, pages and calls.
#pragma once

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "rlk/kernels/kernel_table.h"
#include "test_data.h"

namespace rlk::test {

inline std::vector<Isa> instruction_sets() {
  std::vector<Isa> isas;
  for (const Isa isa : {Isa::kScalar, Isa::kAvx2, Isa::kAvx512}) {
    if (available(isa)) isas.push_back(isa);
  }
  return isas;
}

inline Contract attention_contract(int kv_block, int kv_split) {
  Contract contract;
  contract.kv_block = kv_block;
  contract.kv_split = kv_split;
  return contract;
}

// A packed batch of whole sequences.
struct Batch {
  std::vector<std::int32_t> lengths;
  std::int64_t heads, kv_heads, d;
  Tensor q, k, v;

  std::int64_t num_tokens() const {
    return std::accumulate(lengths.begin(), lengths.end(), std::int64_t{0});
  }
};

// Scores of about q_scale, and values that cancel from key to key, so that a wrong order or
// rounding of the sums over keys shows even after the result is rounded to bf16.
inline Batch make_batch(std::vector<std::int32_t> lengths, std::int64_t heads,
                        std::int64_t kv_heads, std::int64_t d, double q_scale = 1.0) {
  Batch b{std::move(lengths), heads, kv_heads, d, {}, {}, {}};
  const std::int64_t n = b.num_tokens();
  b.q = random_tensor(DType::kBF16, {n, heads, d}, 1, Kind::kNormal, q_scale);
  b.k = random_tensor(DType::kBF16, {n, kv_heads, d}, 2);
  b.v = Tensor(DType::kBF16, {n, kv_heads, d});
  const Tensor by_key = random_tensor(DType::kBF16, {kv_heads, d, n}, 3, Kind::kCancelling);
  for (std::int64_t i = 0; i < by_key.size(); ++i) {
    *b.v.view().at<bf16>(i % n, i / n / d, i / n % d) = by_key.data<bf16>()[i];
  }
  return b;
}

struct Output {
  Tensor y, lse;
};

inline void expect_same(const Output& a, const Output& b) {
  EXPECT_TRUE(same_bits(a.y, b.y));
  EXPECT_TRUE(same_bits(a.lse, b.lse));
}

// Every position is a query. Keys and values lie packed.
inline Output run_packed(const KernelTable& kernels, const Batch& b, const Contract& contract,
                         int threads = 1) {
  Output out{Tensor(DType::kBF16, {b.num_tokens(), b.heads, b.d}),
             Tensor(DType::kF32, {b.num_tokens(), b.heads})};
  TestExec exec(contract, threads);
  const Tensor offsets = cu_seqlens(b.lengths);
  kernels.attention(exec, {out.y,
                           out.lse,
                           b.q,
                           {b.k, b.v, {}, rows(offsets.view(), 0, 1), 0},
                           offsets,
                           i32_tensor(b.lengths)});
  EXPECT_EQ(exec.fault.row(), -1);
  return out;
}

}  // namespace rlk::test
