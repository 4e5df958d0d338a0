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
  for (const Isa isa : kAllIsas) {
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

// Element i in storage order.
inline char* element(Tensor& t, std::int64_t i) {
  return static_cast<char*>(t.view().data) + static_cast<std::size_t>(i) * size_of(t.dtype());
}
inline const char* element(const Tensor& t, std::int64_t i) {
  return static_cast<const char*>(t.view().data) + static_cast<std::size_t>(i) * size_of(t.dtype());
}
// Row i of the first dimension.
template <typename AnyTensor>
auto row_bytes_at(AnyTensor& t, std::int64_t i) {
  return element(t, i * t.layout().stride[0]);
}
inline void fill(Tensor& t, float x) {
  for (std::int64_t i = 0; i < t.size(); ++i) {
    if (t.dtype() == DType::kF32)
      t.data<float>()[i] = x;
    else
      t.data<bf16>()[i] = numerics::to_bf16(x);
  }
}

// A packed batch of whole sequences.
struct Batch {
  std::vector<std::int32_t> lengths;
  std::int64_t heads, kv_heads, d;
  Tensor q, k, v;

  DType dtype() const { return q.dtype(); }
  std::int64_t num_tokens() const {
    return std::accumulate(lengths.begin(), lengths.end(), std::int64_t{0});
  }
};

// Scores of about q_scale, and values that cancel from key to key, so that a wrong order or
// rounding of the sums over keys shows even after the result is rounded to bf16.
inline Batch make_batch(std::vector<std::int32_t> lengths, std::int64_t heads,
                        std::int64_t kv_heads, std::int64_t d, double q_scale = 1.0,
                        DType dtype = DType::kBF16) {
  Batch b{std::move(lengths), heads, kv_heads, d, {}, {}, {}};
  const std::int64_t n = b.num_tokens();
  b.q = random_tensor(dtype, {n, heads, d}, 1, Kind::kNormal, q_scale);
  b.k = random_tensor(dtype, {n, kv_heads, d}, 2);
  b.v = Tensor(dtype, {n, kv_heads, d});
  const Tensor by_key = random_tensor(dtype, {kv_heads, d, n}, 3, Kind::kCancelling);
  for (std::int64_t i = 0; i < by_key.size(); ++i) {
    const std::int64_t at = (i % n * kv_heads + i / n / d) * d + i / n % d;
    std::memcpy(element(b.v, at), element(by_key, i), size_of(dtype));
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
  Output out{Tensor(b.dtype(), {b.num_tokens(), b.heads, b.d}),
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

// A KV cache in pages of `page_size` in shuffled order; whatever holds no key is `garbage`.
struct Pages {
  std::int64_t page_size;
  std::int64_t max_pages;
  Tensor k, v, table;

  KvView view() const { return {k, v, table, {}, page_size}; }
};

inline Pages make_pages(const Batch& b, std::int64_t page_size, float garbage) {
  const std::int32_t longest = *std::max_element(b.lengths.begin(), b.lengths.end());
  const std::int64_t max_pages = (longest + page_size - 1) / page_size;
  const auto num_seqs = static_cast<std::int64_t>(b.lengths.size());
  std::vector<std::int32_t> order(static_cast<std::size_t>(num_seqs * max_pages));
  std::iota(order.begin(), order.end(), 1);
  Rng rng(7);
  for (std::size_t i = order.size(); i > 1; --i) {
    std::swap(order[i - 1], order[static_cast<std::size_t>(rng.below(static_cast<int>(i)))]);
  }
  const std::int64_t slots = (num_seqs * max_pages + 1) * page_size;
  Pages pages{page_size, max_pages, Tensor(b.dtype(), {slots, b.kv_heads, b.d}),
              Tensor(b.dtype(), {slots, b.kv_heads, b.d}),
              Tensor(DType::kI32, {num_seqs, max_pages})};
  fill(pages.k, garbage);
  fill(pages.v, garbage);
  std::copy(order.begin(), order.end(), pages.table.data<std::int32_t>());
  std::int64_t token = 0;
  const std::size_t row_bytes = static_cast<std::size_t>(b.kv_heads * b.d) * size_of(b.dtype());
  for (std::int64_t s = 0; s < num_seqs; ++s) {
    for (std::int64_t p = 0; p < b.lengths[static_cast<std::size_t>(s)]; ++p, ++token) {
      const std::int64_t page = order[static_cast<std::size_t>(s * max_pages + p / page_size)];
      const std::int64_t slot = page * page_size + p % page_size;
      std::memcpy(row_bytes_at(pages.k, slot), row_bytes_at(b.k, token), row_bytes);
      std::memcpy(row_bytes_at(pages.v, slot), row_bytes_at(b.v, token), row_bytes);
    }
  }
  return pages;
}

// Every sequence in steps of `chunk` queries, all sequences that have some left in one call. Keys
// after the chunk already lie in the pages: only their positions say that they are invisible.
inline Output run_chunks(const KernelTable& kernels, const Batch& b, const Pages& pages,
                         std::int32_t chunk, const Contract& contract, int threads = 1) {
  Output out{Tensor(b.dtype(), {b.num_tokens(), b.heads, b.d}),
             Tensor(DType::kF32, {b.num_tokens(), b.heads})};
  const std::int32_t longest = *std::max_element(b.lengths.begin(), b.lengths.end());
  const std::size_t q_bytes = static_cast<std::size_t>(b.heads * b.d) * size_of(b.dtype());
  TestExec exec(contract, threads);
  for (std::int32_t begin = 0; begin < longest; begin += chunk) {
    std::vector<std::int32_t> counts, kv_lens;
    std::vector<std::int64_t> tokens;
    std::int64_t first = 0;
    for (const std::int32_t length : b.lengths) {
      const std::int32_t end = std::min(length, begin + chunk);
      counts.push_back(std::max(0, end - begin));
      kv_lens.push_back(std::max(end, 1));
      for (std::int32_t p = begin; p < end; ++p) tokens.push_back(first + p);
      first += length;
    }
    const auto n = static_cast<std::int64_t>(tokens.size());
    Tensor q(b.dtype(), {n, b.heads, b.d});
    Output part{Tensor(b.dtype(), {n, b.heads, b.d}), Tensor(DType::kF32, {n, b.heads})};
    for (std::int64_t i = 0; i < n; ++i) {
      std::memcpy(row_bytes_at(q, i), row_bytes_at(b.q, tokens[static_cast<std::size_t>(i)]),
                  q_bytes);
    }
    kernels.attention(exec,
                      {part.y, part.lse, q, pages.view(), cu_seqlens(counts), i32_tensor(kv_lens)});
    for (std::int64_t i = 0; i < n; ++i) {
      const std::int64_t t = tokens[static_cast<std::size_t>(i)];
      std::memcpy(row_bytes_at(out.y, t), row_bytes_at(part.y, i), q_bytes);
      std::memcpy(out.lse.view().at<float>(t), part.lse.view().at<float>(i),
                  static_cast<std::size_t>(b.heads) * sizeof(float));
    }
  }
  EXPECT_EQ(exec.fault.row(), -1);
  return out;
}

}  // namespace rlk::test
