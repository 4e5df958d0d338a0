#include <gtest/gtest.h>

#include <atomic>
#include <cstdint>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "rlk/core/digest.h"
#include "rlk/core/tensor.h"
#include "rlk/core/thread_pool.h"
#include "rlk/core/workspace.h"
#include "tests/io/error_matchers.h"

namespace rlk {
namespace {

TEST(ThreadPool, RunsEveryIndexOnceForAnySizeGrainAndThreadCount) {
  for (int num_threads : {1, 2, 4}) {
    ThreadPool pool(num_threads);
    EXPECT_EQ(pool.num_threads(), num_threads);
    for (std::int64_t n : {0, 1, 7, 64, 1000}) {
      for (std::int64_t grain : {1, 3, 64, 5000}) {
        std::vector<std::atomic<int>> count(static_cast<std::size_t>(n));
        std::atomic<bool> fits{true};
        pool.parallel_for(n, grain, [&](std::int64_t begin, std::int64_t end, int thread) {
          if (begin % grain != 0 || thread < 0 || thread >= num_threads) fits = false;
          if ((end - begin) % grain != 0 && end != n) fits = false;
          for (std::int64_t i = begin; i < end; ++i) ++count[static_cast<std::size_t>(i)];
        });
        EXPECT_TRUE(fits) << n << " " << grain;
        for (const auto& c : count) ASSERT_EQ(c, 1);
      }
    }
  }
}

TEST(ThreadPool, ASmallLoopRunsOnTheCaller) {
  ThreadPool pool(3);
  pool.parallel_for(10, 10, [&](std::int64_t begin, std::int64_t end, int thread) {
    EXPECT_EQ(begin, 0);
    EXPECT_EQ(end, 10);
    EXPECT_EQ(thread, 0);
  });
}

TEST(ThreadPool, ManyShortLoopsFollowEachOther) {
  ThreadPool pool(4);
  std::vector<std::int64_t> sums(100, 0);
  for (int round = 0; round < 500; ++round) {
    pool.parallel_for(100, 1, [&](std::int64_t begin, std::int64_t end, int) {
      for (std::int64_t i = begin; i < end; ++i) sums[static_cast<std::size_t>(i)] += i;
    });
  }
  for (std::int64_t i = 0; i < 100; ++i) EXPECT_EQ(sums[static_cast<std::size_t>(i)], 500 * i);
}

TEST(ThreadPool, RefusesANegativeCount) {
  expect_error(ErrorCode::kInvalidArgument, {"-1"}, [] { ThreadPool pool(-1); });
}

TEST(Tensor, IsAlignedZeroAndRowMajor) {
  Tensor t(DType::kF32, {2, 3, 5});
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(t.data<float>()) % 64, 0u);
  EXPECT_EQ(t.size(), 30);
  EXPECT_EQ(t.size_bytes(), 120u);
  EXPECT_EQ(t.layout().to_string(), "[2, 3, 5]");
  EXPECT_TRUE(t.layout().contiguous());
  for (int i = 0; i < 30; ++i) EXPECT_EQ(t.data<float>()[i], 0);
  EXPECT_EQ(t.view().at<float>(1, 2, 4), t.data<float>() + 29);
}

TEST(Tensor, CopiesAreDeepAndMovesAreNot) {
  Tensor a(DType::kBF16, {4});
  a.data<bf16>()[2] = bf16{7};
  Tensor b = a;
  b.data<bf16>()[2] = bf16{8};
  EXPECT_EQ(a.data<bf16>()[2].bits, 7);
  const void* data = a.view().data;
  Tensor c = std::move(a);
  EXPECT_EQ(c.view().data, data);
  a = Tensor();
  EXPECT_TRUE(a.empty());
  EXPECT_EQ(a.size(), 0);
  b = c;
  EXPECT_EQ(b.data<bf16>()[2].bits, 7);
  b.fill_zero();
  EXPECT_EQ(b.data<bf16>()[2].bits, 0);
  EXPECT_EQ(c.data<bf16>()[2].bits, 7);
}

TEST(Tensor, ViewsOfRowsColumnsAndHeadsShareItsMemory) {
  Tensor t(DType::kF32, {4, 6});
  std::iota(t.data<float>(), t.data<float>() + 24, 0.0f);
  const TensorView middle = rows(t.view(), 1, 3);
  EXPECT_EQ(middle.shape(0), 2);
  EXPECT_EQ(*middle.at<float>(0, 0), 6);
  const TensorView part = columns(middle, 2, 6);
  EXPECT_EQ(*part.at<float>(1, 3), 17);
  EXPECT_FALSE(part.layout.contiguous());
  const TensorView heads = split_heads(part, 2);
  EXPECT_EQ(heads.rank(), 3);
  EXPECT_EQ(*heads.at<float>(1, 1, 0), 16);
  EXPECT_EQ(rows(t.view(), 2, 2).layout.size(), 0);
  EXPECT_TRUE(rows(t.view(), 2, 3).layout.contiguous());
}

TEST(Tensor, RefusesSizesThatAreNone) {
  expect_error(ErrorCode::kShape, {"-2"}, [] { Layout({3, -2}); });
  expect_error(ErrorCode::kShape, {"rank 5"}, [] { Layout({1, 1, 1, 1, 1}); });
  expect_error(ErrorCode::kShape, {"overflow"}, [] {
    Layout({std::int64_t{1} << 40, std::int64_t{1} << 40});
  });
}

TEST(Workspace, GrowsByLittleMoreThanWhatIsTaken) {
  constexpr std::size_t kMegabyte = std::size_t{1} << 20;
  Workspace workspace;
  Workspace::Frame frame(workspace);
  frame.take<char>(30 * kMegabyte);
  frame.take<char>(64);
  frame.take<char>(20 * kMegabyte);
  EXPECT_LE(workspace.size_bytes(), 54 * kMegabyte);
}

TEST(Workspace, GivesBackWhatAFrameTookAndStopsGrowing) {
  Workspace workspace;
  std::size_t size = 0;
  for (int round = 0; round < 3; ++round) {
    Workspace::Frame outer(workspace);
    float* a = outer.take<float>(1000);
    a[999] = 1;
    float* inner_a;
    {
      Workspace::Frame inner(workspace);
      inner_a = inner.take<float>(3 << 20);  // more than the first block
      inner_a[(3 << 20) - 1] = 2;
      EXPECT_NE(inner_a, a);
    }
    float* b = outer.take<float>(10);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(b) % 64, 0u);
    EXPECT_TRUE(b >= a + 1000 || b + 10 <= a);
    if (round == 0) size = workspace.size_bytes();
    EXPECT_EQ(workspace.size_bytes(), size);
  }
  Workspace::Frame frame(workspace);
  EXPECT_NE(frame.take<float>(0), nullptr);
}

TEST(Digest, GivesTheKnownValuesOfSha256) {
  EXPECT_EQ(sha256_hex(""), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  EXPECT_EQ(sha256_hex("abc"), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  Sha256 pieces;
  pieces.update("a");
  pieces.update(std::string("bc"));
  EXPECT_EQ(pieces.hex(), sha256_hex("abc"));
}

TEST(Error, CarriesItsCodeAndMessage) {
  expect_error(ErrorCode::kShape, {"w has 3 elements"},
               [] { fail(ErrorCode::kShape, "w has {} elements", 3); });
}

TEST(ErrorDeathTest, AnAssertionNamesTheConditionAndThePlace) {
  EXPECT_DEATH(RLK_ASSERT(1 + 1 == 3), "core_test.cc:[0-9]+: 1 \\+ 1 == 3");
}

}  // namespace
}  // namespace rlk
