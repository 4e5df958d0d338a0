// The GPU kernels give the same bytes whatever the batch, the pages, the tile and the grid.
#include "tests/gpu/gpu_test.h"

namespace rlk {
namespace {

using test::expect_same;
using test::Kind;
using test::random_tensor;
using test::same_bits;
using test::TestExec;

using GpuKernelsInvariance = test::OnGpu;
using GpuKernelsTwin = test::OnGpu;

Tensor product(const Tensor& a, const Tensor& b, std::int64_t rows, bool leaf_tree) {
  Tensor c(DType::kF32, {rows, b.shape(0)});
  GemmArgs args;
  args.c = c;
  args.a = rlk::rows(a.view(), 0, rows);
  args.b = b;
  args.leaf_tree = leaf_tree;
  args.segments = {b.shape(1), 0, 0};
  TestExec exec;
  test::gpu().gemm(exec, args);
  return c;
}

TEST_F(GpuKernelsInvariance, ARowOfAProductDoesNotDependOnHowManyThereAre) {
  const Tensor a = random_tensor(DType::kBF16, {200, 300}, 1, Kind::kCancelling);
  const Tensor b = random_tensor(DType::kBF16, {130, 300}, 2, Kind::kCancelling);
  for (const bool leaf_tree : {false, true}) {
    const Tensor all = product(a, b, 200, leaf_tree);
    for (const std::int64_t rows : {1, 16, 17, 64, 65, 129}) {
      const Tensor few = product(a, b, rows, leaf_tree);
      EXPECT_EQ(
          numerics::compare_bits(few.data<float>(), all.data<float>(), few.size()).mismatch_count,
          0)
          << rows << " rows";
    }
  }
}

TEST_F(GpuKernelsTwin, ALeafTreeIsNotAChain) {
  const Tensor a = random_tensor(DType::kBF16, {20, 300}, 1, Kind::kCancelling);
  const Tensor b = random_tensor(DType::kBF16, {130, 300}, 2, Kind::kCancelling);
  EXPECT_FALSE(same_bits(product(a, b, 20, false), product(a, b, 20, true)));
}

// The queries from `first` on of the only sequence of `b`, over pages of `page_size` in falling
// order.
test::Output run_paged(const test::Batch& b, std::int64_t first, std::int64_t page_size,
                       const Contract& contract) {
  const std::int64_t n = b.num_tokens();
  const std::int64_t pages = (n + page_size - 1) / page_size;
  std::vector<std::int32_t> table;
  for (std::int64_t i = 0; i < pages; ++i)
    table.push_back(static_cast<std::int32_t>(pages - 1 - i));
  Tensor k(DType::kBF16, {pages * page_size, b.kv_heads, b.d});
  Tensor v(DType::kBF16, {pages * page_size, b.kv_heads, b.d});
  const std::int64_t row_size = b.kv_heads * b.d;
  for (std::int64_t p = 0; p < n; ++p) {
    const std::int64_t row =
        table[static_cast<std::size_t>(p / page_size)] * page_size + p % page_size;
    std::copy_n(b.k.data<bf16>() + p * row_size, row_size, k.data<bf16>() + row * row_size);
    std::copy_n(b.v.data<bf16>() + p * row_size, row_size, v.data<bf16>() + row * row_size);
  }
  const std::int64_t queries = n - first;
  test::Output out{Tensor(DType::kBF16, {queries, b.heads, b.d}),
                   Tensor(DType::kF32, {queries, b.heads})};
  const Tensor block_table = test::i32_tensor(table);
  const Tensor offsets = test::cu_seqlens({static_cast<std::int32_t>(queries)});
  const Tensor lengths = test::i32_tensor({static_cast<std::int32_t>(n)});
  AttentionArgs args;
  args.y = out.y;
  args.lse = out.lse;
  args.q = rows(b.q.view(), first, n);
  args.kv.k = k;
  args.kv.v = v;
  args.kv.block_table = block_table;
  args.kv.block_table.layout = Layout{1, pages};
  args.kv.page_size = page_size;
  args.cu_seqlens_q = offsets;
  args.kv_lens = lengths;
  TestExec exec(contract);
  test::gpu().attention(exec, args);
  EXPECT_EQ(exec.fault.row(), -1);
  return out;
}

template <typename T>
Tensor last_rows(const Tensor& t, std::int64_t count) {
  const std::int64_t row = t.size() / t.shape(0);
  Tensor out(t.dtype(), {count, row});
  std::copy_n(t.data<T>() + (t.shape(0) - count) * row, count * row, out.template data<T>());
  return out;
}

// One query alone works on its splits in parallel, many in turn.
TEST_F(GpuKernelsInvariance, AttentionDoesNotDependOnChunksPagesOrPacking) {
  const Contract contract = test::attention_contract(32, 64);
  const test::Batch b = test::make_batch({205}, 6, 2, 32, 3.0);
  const test::Output all = test::run_packed(test::gpu(), b, contract);
  for (const std::int64_t page_size : {1, 16, 64}) {
    for (const std::int64_t queries : {1, 2, 77}) {
      const test::Output some = run_paged(b, 205 - queries, page_size, contract);
      EXPECT_TRUE(same_bits(last_rows<bf16>(some.y, queries), last_rows<bf16>(all.y, queries)));
      EXPECT_TRUE(
          same_bits(last_rows<float>(some.lse, queries), last_rows<float>(all.lse, queries)));
    }
  }
}

TEST_F(GpuKernelsInvariance, AttentionDoesNotDependOnTheSequencesBeside) {
  const Contract contract = test::attention_contract(32, 64);
  const test::Batch together = test::make_batch({90, 5, 130, 1}, 4, 2, 32, 3.0);
  const test::Output all = test::run_packed(test::gpu(), together, contract);
  std::int64_t begin = 0;
  for (const std::int32_t length : together.lengths) {
    test::Batch alone{{length},
                      4,
                      2,
                      32,
                      Tensor(DType::kBF16, {length, 4, 32}),
                      Tensor(DType::kBF16, {length, 2, 32}),
                      Tensor(DType::kBF16, {length, 2, 32})};
    std::copy_n(together.q.data<bf16>() + begin * 128, alone.q.size(), alone.q.data<bf16>());
    std::copy_n(together.k.data<bf16>() + begin * 64, alone.k.size(), alone.k.data<bf16>());
    std::copy_n(together.v.data<bf16>() + begin * 64, alone.v.size(), alone.v.data<bf16>());
    const test::Output one = test::run_packed(test::gpu(), alone, contract);
    EXPECT_EQ(
        numerics::compare_bits(one.y.data<bf16>(), all.y.data<bf16>() + begin * 128, one.y.size())
            .mismatch_count,
        0);
    begin += length;
  }
}

TEST_F(GpuKernelsTwin, OtherBlocksGiveOtherBits) {
  const test::Batch b = test::make_batch({205}, 6, 2, 32, 3.0);
  const test::Output ours = test::run_packed(test::gpu(), b, test::attention_contract(32, 64));
  for (const Contract& other :
       {test::attention_contract(64, 64), test::attention_contract(32, 96)}) {
    EXPECT_FALSE(same_bits(test::run_packed(test::gpu(), b, other).y, ours.y));
  }
}

Tensor norm_of(const Tensor& x, std::int64_t rows, const Contract& contract) {
  const Tensor w = random_tensor(DType::kBF16, {x.shape(2)}, 7);
  Tensor y(DType::kBF16, {rows, x.shape(1), x.shape(2)});
  RmsNormArgs args;
  args.x = rlk::rows(x.view(), 0, rows);
  args.w = w;
  args.y = y;
  args.eps = 1e-6f;
  TestExec exec(contract);
  test::gpu().rms_norm(exec, args);
  return y;
}

TEST_F(GpuKernelsInvariance, ARowOfANormDoesNotDependOnHowManyThereAre) {
  const Tensor x = random_tensor(DType::kBF16, {40, 2, 1000}, 5, Kind::kCancelling);
  const Tensor all = norm_of(x, 40, {});
  for (const std::int64_t rows : {1, 3, 8, 9}) {
    const Tensor few = norm_of(x, rows, {});
    EXPECT_EQ(numerics::compare_bits(few.data<bf16>(), all.data<bf16>(), few.size()).mismatch_count,
              0);
  }
}

// The sum of squares shows in f32 only: the norm's q.
TEST_F(GpuKernelsTwin, OtherLanesGiveOtherBits) {
  const Tensor x = random_tensor(DType::kBF16, {40, 2, 1000}, 5, Kind::kCancelling);
  const Tensor w = random_tensor(DType::kBF16, {1000}, 7);
  std::vector<Tensor> q;
  for (const int lanes : {256, 128}) {
    Contract contract;
    contract.norm_lanes = lanes;
    Tensor y(DType::kBF16, {40, 2, 1000});
    q.emplace_back(DType::kF32, std::initializer_list<std::int64_t>{40, 2});
    RmsNormArgs args;
    args.x = x;
    args.w = w;
    args.y = y;
    args.q = q.back();
    TestExec exec(contract);
    test::gpu().rms_norm(exec, args);
  }
  EXPECT_FALSE(same_bits(q[0], q[1]));
}

}  // namespace
}  // namespace rlk
