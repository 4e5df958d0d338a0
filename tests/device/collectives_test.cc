// The table of functions, what travels, the order of sums, and errors, on a library whose ranks are
// threads.
#include "rlk/device/collectives.h"

#include <bit>
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "rlk/core/error.h"
#include "rlk/kernels/reduce_ranks.h"
#include "tests/io/error_matchers.h"
#include "tests/kernels/test_data.h"

namespace rlk::device {
namespace {

const CollectiveLibrary& fake() {
  static const CollectiveLibrary kFake(FAKE_NCCL);
  return kFake;
}

void on_ranks(int size, const std::function<void(const Communicator&)>& body) {
  const Communicator::Id id = Communicator::make_id(fake());
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] { body(Communicator(id, rank, size, fake())); });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST(Collectives, SayTheVersionOfTheLibrary) { EXPECT_EQ(fake().version(), "2.99.1"); }

TEST(Collectives, GatherBytesInOrderOfRank) {
  on_ranks(4, [](const Communicator& ranks) {
    for (int round = 0; round < 3; ++round) {
      const std::string mine = std::string(3, static_cast<char>('a' + ranks.rank()));
      std::string all(12, ' ');
      ranks.all_gather(all.data(), mine.data(), 3, nullptr);
      EXPECT_EQ(all, "aaabbbcccddd");
    }
  });
}

TEST(Collectives, BroadcastTheBytesOfTheRoot) {
  on_ranks(3, [](const Communicator& ranks) {
    std::string text = "from " + std::to_string(ranks.rank());
    ranks.broadcast(text.data(), text.size(), 2, nullptr);
    EXPECT_EQ(text, "from 2");
  });
}

TEST(Collectives, ExchangeWithBothNeighboursInOneGroup) {
  on_ranks(4, [](const Communicator& ranks) {
    const int next = (ranks.rank() + 1) % 4, last = (ranks.rank() + 3) % 4;
    const std::int64_t mine = 100 + ranks.rank();
    std::int64_t from_next = 0, from_last = 0;
    ranks.begin_group();
    ranks.send(&mine, sizeof mine, next, nullptr);
    ranks.send(&mine, sizeof mine, last, nullptr);
    ranks.receive(&from_next, sizeof mine, next, nullptr);
    ranks.receive(&from_last, sizeof mine, last, nullptr);
    ranks.end_group();
    EXPECT_EQ(from_next, 100 + next);
    EXPECT_EQ(from_last, 100 + last);
  });
}

// The sum of rank r's row over 8 ranks, as `add` orders it.
std::vector<float> sums(const Tensor& rows, const std::function<float(std::vector<float>)>& add) {
  std::vector<float> out;
  for (std::int64_t i = 0; i < rows.shape(1); ++i) {
    std::vector<float> x;
    for (std::int64_t r = 0; r < rows.shape(0); ++r) {
      x.push_back(*rows.view().at<float>(r, i));
    }
    out.push_back(add(x));
  }
  return out;
}

TEST(ReduceRanksInvariance, EveryRankHasTheNeighbourTree) {
  const std::int64_t n = 257;
  for (const int size : {1, 2, 4, 8}) {
    const Tensor rows = test::random_tensor(DType::kF32, {size, n}, 5, test::Kind::kCancelling);
    const std::vector<float> want = sums(rows, [](std::vector<float> x) {
      for (std::size_t m = x.size(); m > 1; m /= 2) {
        for (std::size_t i = 0; i < m / 2; ++i) x[i] = x[2 * i] + x[2 * i + 1];
      }
      return x[0];
    });
    on_ranks(size, [&](const Communicator& ranks) {
      test::TestExec exec({}, 1);
      const float* mine = rows.view().at<float>(ranks.rank());
      std::vector<float> sum(mine, mine + n);
      reduce_ranks(cpu_kernels(), exec, ranks, sum.data(), n);
      for (std::int64_t i = 0; i < n; ++i) {
        EXPECT_EQ(std::bit_cast<std::uint32_t>(sum[i]), std::bit_cast<std::uint32_t>(want[i]));
      }
    });
  }
}

TEST(ReduceRanksTwin, ARingGivesOtherBytes) {
  const Tensor rows = test::random_tensor(DType::kF32, {8, 257}, 5, test::Kind::kCancelling);
  const std::vector<float> ring = sums(rows, [](const std::vector<float>& x) {
    float sum = x[0];
    for (std::size_t i = 1; i < x.size(); ++i) sum = sum + x[i];
    return sum;
  });
  int different = 0;
  on_ranks(8, [&](const Communicator& ranks) {
    test::TestExec exec({}, 1);
    const float* mine = rows.view().at<float>(ranks.rank());
    std::vector<float> sum(mine, mine + 257);
    reduce_ranks(cpu_kernels(), exec, ranks, sum.data(), 257);
    if (ranks.rank() != 0) return;
    for (std::size_t i = 0; i < sum.size(); ++i) different += sum[i] != ring[i];
  });
  EXPECT_GT(different, 0);
}

TEST(Collectives, ErrorsNameTheLibraryAndTheCall) {
  expect_error(ErrorCode::kNotAvailable, {"libnone.so.9", "cannot be opened"},
               [] { CollectiveLibrary("libnone.so.9"); });
  expect_error(ErrorCode::kNotAvailable, {FAKE_NCCL_WITHOUT_BROADCAST, "has no ncclBroadcast"},
               [] { CollectiveLibrary(FAKE_NCCL_WITHOUT_BROADCAST); });
  expect_error(ErrorCode::kInvalidArgument, {"rank 2 of 2"},
               [] { Communicator({}, 2, 2, fake()); });
  setenv("FAKE_NCCL_FAILS", "ncclCommInitRank", 1);
  expect_error(ErrorCode::kNotAvailable, {FAKE_NCCL, "ncclCommInitRank", "internal error", "3"},
               [] { Communicator(Communicator::make_id(fake()), 0, 1, fake()); });
  unsetenv("FAKE_NCCL_FAILS");
  on_ranks(1, [](const Communicator& ranks) {
    setenv("FAKE_NCCL_FAILS", "ncclAllGather", 1);
    char byte = 0;
    expect_error(ErrorCode::kNotAvailable, {FAKE_NCCL, "ncclAllGather", "internal error"},
                 [&] { ranks.all_gather(&byte, &byte, 1, nullptr); });
    unsetenv("FAKE_NCCL_FAILS");
  });
}

}  // namespace
}  // namespace rlk::device
