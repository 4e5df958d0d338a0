// The emulator itself: what GPUs promise holds, in any order, and what none may do is found.
#include <algorithm>
#include <bit>
#include <numeric>

#include "rlk/numerics/mma/mac.h"
#include "tests/hip_emulation/emulator_kernels.h"
#include "tests/hip_emulation/on_emulator.h"

namespace rlk::test {
namespace {

using EmulatorInvariance = OnEmulator;
using Emulator = OnEmulator;

// Accesses are looked at only in kernels that are compiled for it.
class EmulatorChecks : public OnEmulator {
 protected:
  void SetUp() override {
    if (!emulation::kChecked) GTEST_SKIP() << "another sanitizer has taken its place";
  }
};

template <typename Body>
void for_each_order(const Body& body) {
  for (const int wave : {32, 64}) {
    for (const std::uint64_t seed : {0, 1, 2, 3}) {
      const emulation::Scope scope({.wave = wave, .seed = seed});
      body(wave);
    }
  }
}

TEST_F(EmulatorInvariance, NumbersPassThroughSharedMemory) {
  for_each_order([&](int) {
    OnDevice<float> out(kThreads);
    EXPECT_EQ(launch({1}, kThreads, 0, exchange_numbers, out.data(), 5, true, true), "");
    for (int t = 0; t < kThreads; ++t) EXPECT_EQ(out.values()[t], 1 + (t ^ 5));
  });
}

TEST_F(EmulatorInvariance, ABarrierCountsThoseThatHaveNotEnded) {
  for_each_order([&](int) {
    OnDevice<int> out(100);
    EXPECT_EQ(launch({1}, kThreads, 0, count_threes, out.data(), 100), "");
    EXPECT_EQ(out.values(), std::vector<int>(100, 34));
  });
}

TEST_F(EmulatorInvariance, AShuffleBringsTheNumberOfAnotherLane) {
  for (const int mask : {1, 2, 16, 31}) {
    for_each_order([&](int) {
      OnDevice<float> out(kThreads);
      EXPECT_EQ(launch({1}, kThreads, 0, shuffle_numbers, out.data(), mask, kThreads), "");
      for (int t = 0; t < kThreads; ++t) EXPECT_EQ(out.values()[t], t ^ mask);
    });
  }
}

TEST_F(EmulatorInvariance, AnExchangeSeesTheLanesThatCame) {
  for_each_order([&](int wave) {
    const std::size_t waves = kThreads / wave;
    OnDevice<unsigned long long> out(waves);
    EXPECT_EQ(launch({1}, kThreads, 0, meet_odd_lanes, out.data()), "");
    const unsigned long long odd = 0xaaaaaaaaaaaaaaaaull;
    EXPECT_EQ(out.values(), std::vector(waves, wave == 32 ? odd >> 32 : odd));
  });
}

TEST_F(EmulatorInvariance, AtomicsOfAllThreadsCount) {
  for_each_order([&](int) {
    OnDevice<unsigned long long> results(std::vector<unsigned long long>{1, ~0ull, 0});
    OnDevice<int> largest(std::vector{-1});
    OnDevice<int> order(2 * kThreads);
    EXPECT_EQ(launch({2}, kThreads, 0, add_up, results.data(), largest.data(), order.data()), "");
    const unsigned long long sum = kThreads * (kThreads - 1) + 1;
    EXPECT_EQ(results.values(), (std::vector<unsigned long long>{sum, 7, 2 * kThreads}));
    EXPECT_EQ(largest.values()[0], kThreads - 1);
  });
}

TEST_F(Emulator, ASeedChoosesTheOrderOfBlocksAndThreads) {
  const auto order_of = [&](std::uint64_t seed) {
    const emulation::Scope scope({.seed = seed});
    OnDevice<unsigned long long> results(std::vector<unsigned long long>{0, ~0ull, 0});
    OnDevice<int> largest(std::vector{-1});
    OnDevice<int> order(4 * kThreads);
    EXPECT_EQ(launch({4}, kThreads, 0, add_up, results.data(), largest.data(), order.data()), "");
    return order.values();
  };
  std::vector<int> rising(4 * kThreads);
  std::iota(rising.begin(), rising.end(), 0);
  EXPECT_EQ(order_of(0), rising);
  EXPECT_EQ(order_of(5), order_of(5));
  for (const std::uint64_t seed : {1, 2, 3}) {
    std::vector<int> order = order_of(seed);
    EXPECT_NE(order, rising);
    EXPECT_NE(order, order_of(seed + 1));
    EXPECT_NE(order[0] / kThreads == 0 && order[0] % kThreads == 0, true) << seed;
    std::sort(order.begin(), order.end());
    EXPECT_EQ(order, rising);
  }
}

TEST_F(Emulator, ThreadsThatWaitForDifferentThingsStopTheTest) {
  OnDevice<float> out(kThreads);
  for (const std::uint64_t seed : {0, 1}) {
    const emulation::Scope scope({.seed = seed});
    const std::string both = launch({1}, kThreads, 0, wait_apart, out.data(), false);
    EXPECT_TRUE(contains(both, "waits in barrier"));
    EXPECT_TRUE(contains(both, "in barrier_count") || contains(both, "in barrier,"));
    EXPECT_TRUE(contains(launch({1}, kThreads, 0, wait_apart, out.data(), true), "shuffle_xor"));
  }
  // And the next launch is none the worse for it.
  EXPECT_EQ(launch({1}, kThreads, 0, exchange_numbers, out.data(), 1, true, true), "");
}

TEST_F(Emulator, AShuffleFromALaneThatHasEndedStopsTheTest) {
  OnDevice<float> out(kThreads);
  EXPECT_EQ(launch({1}, kThreads, 0, shuffle_numbers, out.data(), 1, 34), "");
  const std::string message = launch({1}, kThreads, 0, shuffle_numbers, out.data(), 1, 33);
  EXPECT_TRUE(contains(message, "thread 32: reads lane 1 of its wave in shuffle_xor"));
}

TEST_F(Emulator, MatrixInstructionsNeedAWholeWaveOf64) {
  const OnDevice<gpu::cdna::Half4> a(std::vector<gpu::cdna::Half4>(64));
  const OnDevice<gpu::cdna::Float4> c(std::vector<gpu::cdna::Float4>(64));
  const OnDevice<float> d(256);
  for (const int wave : {64, 32}) {
    const emulation::Scope scope({.wave = wave});
    const std::string message =
        launch({1}, 64, 0, multiply_16, d.data(), a.data(), a.data(), c.data());
    EXPECT_EQ(message.empty(), wave == 64);
    if (wave == 32) {
      EXPECT_TRUE(contains(message, "needs a wave of 64"));
    }
  }
}

TEST_F(Emulator, AGpuHasSoMuchSharedMemory) {
  OnDevice<float> out(1);
  EXPECT_TRUE(contains(launch({1}, 1, 0, ask_for_shared_memory, out.data()), "65552 bytes"));
}

// A product of one instruction as the contract's chain, from operands that a matrix holds.
template <int kSize, int kDepth, typename Sums, typename Kernel>
void expect_model(Profile profile, Kernel kernel,
                  const std::function<std::string(Kernel, float*, const gpu::cdna::Half4*,
                                                  const gpu::cdna::Half4*, const Sums*)>& run) {
  Rng rng(static_cast<std::uint64_t>(kSize) + static_cast<std::uint64_t>(profile));
  const auto number = [&] {
    const double x = std::ldexp(rng.normal(), static_cast<int>(rng.below(30)) - 15);
    return numerics::to_bf16(static_cast<float>(x));
  };
  std::vector<bf16> a(kSize * kDepth), b(kSize * kDepth);
  std::vector<float> c(kSize * kSize);
  for (bf16& x : a) x = number();
  for (bf16& x : b) x = number();
  for (float& x : c) x = numerics::to_f32(number());
  constexpr int kPerLane = kSize * kSize / 64;
  std::vector<gpu::cdna::Half4> lane_a(64), lane_b(64);
  std::vector<Sums> lane_c(64);
  for (int l = 0; l < 64; ++l) {
    for (int i = 0; i < 4; ++i) {
      const int k = 4 * (l / kSize) + i;
      lane_a[l][i] = static_cast<short>(a[l % kSize * kDepth + k].bits);
      lane_b[l][i] = static_cast<short>(b[l % kSize * kDepth + k].bits);
    }
    for (int i = 0; i < kPerLane; ++i) {
      const int row = kSize == 16 ? 4 * (l / 16) + i : 8 * (i / 4) + 4 * (l / 32) + i % 4;
      lane_c[l][i] = c[row * kSize + l % kSize];
    }
  }
  OnDevice<gpu::cdna::Half4> device_a(lane_a), device_b(lane_b);
  OnDevice<Sums> device_c(lane_c);
  OnDevice<float> device_d(kSize * kSize);
  EXPECT_EQ(run(kernel, device_d.data(), device_a.data(), device_b.data(), device_c.data()), "");
  const std::vector<float> d = device_d.values();
  int as_fma = 0;
  for (int m = 0; m < kSize; ++m) {
    for (int n = 0; n < kSize; ++n) {
      const auto x = [&](std::int64_t k) { return numerics::to_f32(a[m * kDepth + k]); };
      const auto y = [&](std::int64_t k) { return numerics::to_f32(b[n * kDepth + k]); };
      const float start = c[m * kSize + n];
      const auto chain = [&](Profile p) {
        return numerics::with_mac(
            p, [&](const auto& mac) { return numerics::chain(mac, start, x, y, 0, kDepth); });
      };
      EXPECT_EQ(std::bit_cast<std::uint32_t>(d[m * kSize + n]),
                std::bit_cast<std::uint32_t>(chain(profile)))
          << m << ", " << n;
      if (d[m * kSize + n] == chain(Profile::kPortable)) ++as_fma;
    }
  }
  EXPECT_LT(as_fma, kSize * kSize);  // the data tells the models apart
}

TEST_F(Emulator, MatrixInstructionsAreTheModelsChain) {
  using gpu::cdna::Float16;
  using gpu::cdna::Float4;
  using gpu::cdna::Half4;
  for (const Profile profile : {Profile::kCdna3, Profile::kCdna2}) {
    for (const std::uint64_t seed : {0, 1}) {
      const emulation::Scope scope({.wave = 64, .seed = seed, .profile = profile});
      const auto run = [&](auto kernel, float* d, const Half4* a, const Half4* b, const auto* c) {
        return launch({1}, 64, 0, kernel, d, a, b, c);
      };
      expect_model<16, 16, Float4>(profile, &multiply_16, {run});
      expect_model<32, 8, Float16>(profile, &multiply_32, {run});
    }
  }
}

TEST_F(EmulatorChecks, AMissingBarrierIsARaceInEveryOrder) {
  for_each_order([&](int) {
    OnDevice<float> out(kThreads);
    const std::string before =
        launch({1}, kThreads, 0, exchange_numbers, out.data(), 1, false, true);
    EXPECT_TRUE(contains(before, "shared array numbers["));
    EXPECT_TRUE(contains(before, "no barrier came since") ||
                contains(before, "nobody has written"));
    const std::string after =
        launch({1}, kThreads, 0, exchange_numbers, out.data(), 1, true, false);
    EXPECT_TRUE(contains(after, "shared array numbers["));
    EXPECT_TRUE(contains(after, "no barrier came since"));
  });
}

TEST_F(EmulatorChecks, TheMessageNamesKernelBlockThreadArrayAndIndex) {
  OnDevice<float> out(1);
  const std::string message = launch({2}, kThreads, 0, use_shared_at, out.data(), 10, 9);
  EXPECT_TRUE(contains(message,
                       "kernel rlk::test::use_shared_at(float*, int, int), block (0, 0, 0), "
                       "thread 5: reads shared array array[10] of 4 bytes each (it has 40 "
                       "bytes): outside"));
}

TEST_F(EmulatorChecks, OneElementOutsideIsFound) {
  OnDevice<float> data(std::vector<float>(10, 1.0f));
  OnDevice<float> out(1);
  for (const std::int64_t index : {0, 9}) {
    EXPECT_EQ(launch({2}, kThreads, 0, read_at, data.data(), out.data(), index), "");
    EXPECT_EQ(launch({2}, kThreads, 0, write_at, data.data(), index), "");
    EXPECT_EQ(launch({1}, kThreads, 0, use_shared_at, out.data(), index, index), "");
    EXPECT_EQ(launch({1}, kThreads, 40, use_dynamic_at, out.data(), index, index), "");
  }
  for (const std::int64_t index : {-1, 10}) {
    const std::string read = launch({2}, kThreads, 0, read_at, data.data(), out.data(), index);
    EXPECT_TRUE(contains(read, "block (1, 0, 0), thread 5: reads device memory"));
    EXPECT_TRUE(contains(read, "outside"));
    EXPECT_TRUE(contains(launch({2}, kThreads, 0, write_at, data.data(), index), "outside"));
    EXPECT_TRUE(contains(launch({1}, kThreads, 0, use_shared_at, out.data(), 0, index), "outside"));
    EXPECT_TRUE(
        contains(launch({1}, kThreads, 40, use_dynamic_at, out.data(), 0, index), "outside"));
  }
}

TEST_F(EmulatorChecks, MemoryThatWasFreedIsOutside) {
  float* freed;
  {
    const OnDevice<float> data(std::vector<float>(10, 1.0f));
    freed = data.data();
  }
  OnDevice<double> out(1);
  EXPECT_TRUE(contains(launch({2}, kThreads, 0, write_at, freed, 0), "outside"));
}

TEST_F(EmulatorChecks, WhatNobodyHasWrittenMustNotBeRead) {
  OnDevice<float> fresh(10);
  OnDevice<float> out(1);
  EXPECT_TRUE(
      contains(launch({2}, kThreads, 0, read_at, fresh.data(), out.data(), 3),
               "device memory of 40 bytes, element [3] of 4 bytes each: nobody has written"));
  EXPECT_EQ(launch({2}, kThreads, 0, write_at, fresh.data(), 3), "");
  EXPECT_EQ(launch({2}, kThreads, 0, read_at, fresh.data(), out.data(), 3), "");
  // What another block has left in shared memory does not count.
  EXPECT_EQ(launch({1}, kThreads, 0, use_shared_at, out.data(), 3, 3), "");
  EXPECT_TRUE(contains(launch({1}, kThreads, 0, use_shared_at, out.data(), 3, 4),
                       "array[3] of 4 bytes each (it has 40 bytes): nobody has written"));
}

TEST_F(EmulatorChecks, ScratchMemoryComesBackUnwrittenAndEndsWhereItEnds) {
  OnDevice<float> out(1);
  for (int i = 0; i < 2; ++i) {
    device::Workspace::Frame frame(queue_.workspace());
    float* const a = frame.take<float>(10);
    frame.take<float>(10);
    EXPECT_TRUE(contains(launch({2}, kThreads, 0, read_at, a, out.data(), 3), "nobody"));
    EXPECT_EQ(launch({2}, kThreads, 0, write_at, a, 3), "");
    EXPECT_EQ(launch({2}, kThreads, 0, read_at, a, out.data(), 3), "");
    EXPECT_TRUE(contains(launch({2}, kThreads, 0, write_at, a, 10), "outside"));
  }
}

TEST_F(EmulatorChecks, BlocksOfALaunchMustNotMeetInMemory) {
  for (const std::uint64_t seed : {0, 1}) {
    const emulation::Scope scope({.seed = seed});
    OnDevice<unsigned long long> count(std::vector<unsigned long long>{0});
    EXPECT_TRUE(contains(launch({3}, kThreads, 0, count_blocks, count.data(), false),
                         "another block of the launch wrote it"));
    EXPECT_EQ(launch({3}, kThreads, 0, count_blocks, count.data(), true), "");
    EXPECT_EQ(launch({1}, kThreads, 0, count_blocks, count.data(), false), "");
  }
}

TEST_F(EmulatorChecks, KernelsMustNotTouchTheHost) {
  std::vector<float> host(10);
  EXPECT_TRUE(contains(launch({2}, kThreads, 0, write_at, host.data(), 3), "memory of the host"));
  const emulation::Scope scope({.kernels_may_touch_host = true});
  EXPECT_EQ(launch({2}, kThreads, 0, write_at, host.data(), 3), "");
}

TEST_F(Emulator, TheHostDiesOfDeviceMemoryThatIsClosed) {
  OnDevice<float> data(std::vector<float>(10, 1.0f));
  EXPECT_EQ(data.data()[3], 1.0f);
  const emulation::Scope scope({.host_may_touch_device = false});
  EXPECT_EQ(data.values()[3], 1.0f);
  EXPECT_EQ(launch({2}, kThreads, 0, write_at, data.data(), 3), "");
  EXPECT_DEATH(data.data()[3] = 2.0f, "");
}

}  // namespace
}  // namespace rlk::test
