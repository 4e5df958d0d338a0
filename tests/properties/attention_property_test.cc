// Attention: the CPU kernels give the bytes of the reference for any batch, head shape, page size,
// page order and thread count; pages give the bytes of packed keys.
#include <algorithm>
#include <numeric>

#include "tests/properties/draw.h"

namespace rlk::test {
namespace {

// Sequences of which the last `queries` tokens ask; all keys packed, and once more in pages.
struct Problem {
  std::int64_t heads, kv_heads, d, page_size;
  std::vector<std::int32_t> kv_lens, queries;
  Tensor q, k, v, paged_k, paged_v, block_table, kv_start;
  Contract contract;

  Problem() {
    kv_heads = draw(1, 3);
    heads = kv_heads * draw(1, 4);
    d = 2 * draw_size(1, 40);
    page_size = std::int64_t{1} << draw(0, 5);
    contract.kv_block = static_cast<int>(16 * draw(1, 4));
    contract.kv_split = contract.kv_block * static_cast<int>(draw(1, 3));
    std::int64_t keys = 0, asked = 0, pages = 0, widest = 1;
    std::vector<std::int32_t> starts;
    for (std::int64_t i = draw(1, 3); i > 0; --i) {
      kv_lens.push_back(static_cast<std::int32_t>(draw_size(1, 130)));
      queries.push_back(static_cast<std::int32_t>(draw_size(0, std::min(kv_lens.back(), 50))));
      starts.push_back(static_cast<std::int32_t>(keys));
      keys += kv_lens.back();
      asked += queries.back();
      const std::int64_t own = (kv_lens.back() + page_size - 1) / page_size;
      pages += own;
      widest = std::max(widest, own);
    }
    q = draw_tensor({asked, heads, d});
    k = random_tensor(DType::kBF16, {keys, kv_heads, d}, 5);
    v = draw_tensor({keys, kv_heads, d});
    kv_start = i32_tensor(starts);
    fill_pages(pages, widest);
  }

  void fill_pages(std::int64_t pages, std::int64_t widest) {
    std::vector<std::int32_t> order(static_cast<std::size_t>(pages + 2));
    std::iota(order.begin(), order.end(), 0);
    Rng rng(static_cast<std::uint64_t>(draw(0, 1 << 20)));
    for (std::size_t i = order.size(); i > 1; --i) {
      std::swap(order[i - 1], order[static_cast<std::size_t>(rng.below(std::ssize(order)))]);
    }
    const auto sequences = static_cast<std::int64_t>(kv_lens.size());
    paged_k = random_tensor(DType::kBF16, {(pages + 2) * page_size, kv_heads, d}, 6);
    paged_v = paged_k;  // slots that nothing is written to hold numbers
    block_table = Tensor(DType::kI32, {sequences, widest});
    std::fill_n(block_table.data<std::int32_t>(), block_table.size(), -1);
    std::size_t next = 0;
    for (std::int64_t s = 0; s < sequences; ++s) {
      for (std::int64_t p = 0; p < kv_lens[s]; ++p) {
        std::int32_t& page = *block_table.view().at<std::int32_t>(s, p / page_size);
        if (p % page_size == 0) page = order[next++];
        const std::int64_t from = kv_start.data<std::int32_t>()[s] + p;
        const std::int64_t to = page * page_size + p % page_size;
        std::copy_n(k.view().at<bf16>(from), kv_heads * d, paged_k.view().at<bf16>(to));
        std::copy_n(v.view().at<bf16>(from), kv_heads * d, paged_v.view().at<bf16>(to));
      }
    }
  }

  OpCall call(bool paged) const {
    return [this, paged](const KernelTable& kernels, Exec& exec) {
      Tensor y(DType::kBF16, {q.shape(0), heads, d}), lse(DType::kF32, {q.shape(0), heads});
      KvView kv{k, v, {}, kv_start, 0};
      if (paged) kv = {paged_k, paged_v, block_table, {}, page_size};
      const Tensor cu = cu_seqlens(queries), lens = i32_tensor(kv_lens);
      kernels.attention(exec, {y, lse, q, kv, cu, lens});
      std::vector<Tensor> outputs;
      outputs.push_back(std::move(y));
      outputs.push_back(std::move(lse));
      return outputs;
    };
  }
};

void assert_same_outcome(const Outcome& found, const Outcome& wanted, const std::string& what) {
  RC_ASSERT(found.fault_row == wanted.fault_row);
  if (wanted.fault_row >= 0) return;  // the call is an error; what it wrote means nothing
  for (std::size_t i = 0; i < wanted.outputs.size(); ++i) {
    assert_same(found.outputs[i], wanted.outputs[i], what + " " + std::to_string(i));
  }
}

TEST(Properties, AttentionGivesTheBytesOfTheReferencePagedOrPacked) {
  EXPECT_TRUE(rc::check("attention", [] {
    const Problem p;
    const Outcome wanted = outcome(p.call(false), reference_kernels(), p.contract);
    const KernelTable& kernels = draw_cpu_kernels();
    const int threads = static_cast<int>(draw(1, 4));
    assert_same_outcome(outcome(p.call(false), kernels, p.contract, threads), wanted, "packed");
    assert_same_outcome(outcome(p.call(true), kernels, p.contract, threads), wanted, "paged");
  }));
}

TEST(Properties, AttentionBackwardGivesTheBytesOfTheReference) {
  EXPECT_TRUE(rc::check("attention_backward", [] {
    const std::int64_t kv_heads = draw(1, 3), heads = kv_heads * draw(1, 4);
    const std::int64_t d = 2 * draw_size(1, 24);
    std::vector<std::int32_t> lengths;
    std::int64_t n = 0;
    for (std::int64_t i = draw(1, 3); i > 0; --i) {
      lengths.push_back(static_cast<std::int32_t>(draw_size(0, 50)));
      n += lengths.back();
    }
    Contract contract;
    contract.kv_block = static_cast<int>(16 * draw(1, 3));
    contract.kv_split = contract.kv_block * static_cast<int>(draw(1, 2));
    contract.leaves = static_cast<int>(draw_one<std::int64_t>({1, 4, 8}));
    contract.norm_lanes = static_cast<int>(draw_one<std::int64_t>({16, 256}));
    const Tensor q = random_tensor(DType::kBF16, {n, heads, d}, 1);
    const Tensor k = random_tensor(DType::kBF16, {n, kv_heads, d}, 2);
    const Tensor v = draw_tensor({n, kv_heads, d}), dy = draw_tensor({n, heads, d});
    const Tensor cu = cu_seqlens(lengths), lens = i32_tensor(lengths);
    const OpCall call = [&](const KernelTable& kernels, Exec& exec) {
      Tensor y(DType::kBF16, {n, heads, d}), lse(DType::kF32, {n, heads});
      Tensor dq(DType::kBF16, {n, heads, d});
      Tensor dk(DType::kBF16, {n, kv_heads, d}), dv(DType::kBF16, {n, kv_heads, d});
      kernels.attention(
          exec, {y, lse, q, {k, v, {}, rows(cu.view(), 0, std::ssize(lengths)), 0}, cu, lens});
      kernels.attention_backward(exec, {dq, dk, dv, dy, y, q, k, v, lse, cu});
      std::vector<Tensor> outputs;
      for (Tensor* t : {&dq, &dk, &dv}) outputs.push_back(std::move(*t));
      return outputs;
    };
    const Outcome wanted = outcome(call, reference_kernels(), contract);
    assert_same_outcome(outcome(call, draw_cpu_kernels(), contract, static_cast<int>(draw(1, 4))),
                        wanted, "gradient");
  }));
}

}  // namespace
}  // namespace rlk::test
