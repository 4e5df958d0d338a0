// What the emulator lets nobody do while a stream is captured, and what a graph replays.
#include <cstring>
#include <functional>
#include <memory>
#include <vector>

#include "rlk/core/error.h"
#include "rlk/device/gpu_runtime.h"
#include "rlk/kernels/gpu/gpu.h"
#include "rlk/kernels/gpu/views.h"
#include "rlk/kernels/residual_add.h"
#include "tests/gpu/emulation/memory.h"
#include "tests/gpu/gpu_test.h"

namespace rlk {
namespace {

// Pinned memory, and device memory as large.
struct Places {
  device::Stream stream;
  Array<char> pinned{Array<char>(64, device::pinned_memory())};
  device::Buffer device{64};
};

// What recording it says; empty: it was recorded.
std::string refusal(device::Stream& stream, const std::function<void()>& work) {
  try {
    const device::Graph graph(stream, work);
    return "";
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ErrorCode::kNotAvailable);
    return e.what();
  }
}

TEST(EmulatedCapture, RefusesWhatWaitsAllocatesFreesOrReadsBack) {
  Places p;
  device::Stream other;
  device::Event event;
  device::Event before;
  before.record(p.stream);
  char pageable[64] = {};
  auto freed = std::make_unique<device::Buffer>(8);
  const std::vector<std::pair<std::string, std::function<void()>>> calls = {
      {"StreamSynchronize", [&] { p.stream.synchronize(); }},
      {"StreamSynchronize", [&] { other.synchronize(); }},
      {"EventSynchronize", [&] { static_cast<void>(before.elapsed_ms_since(before)); }},
      {"Malloc of 8 bytes", [] { const device::Buffer buffer(8); }},
      {"MallocManaged", [] { Tensor(DType::kF32, {3}, device::managed_memory()); }},
      {"HostAlloc", [] { Tensor(DType::kF32, {3}, device::pinned_memory()); }},
      {"DeviceSynchronize", [&] { device::pinned_memory().fill_zero(p.pinned.data(), 1); }},
      {"MemcpyAsync", [&] { device::copy(p.device.data(), pageable, 64, p.stream); }},
      {"MemcpyAsync", [&] { device::copy(pageable, p.device.data(), 64, p.stream); }},
      {"MemcpyAsync", [&] { device::copy(p.device.data(), p.pinned.data(), 64, other); }},
      {"MemsetAsync", [&] { device::fill(p.device.data(), 0, 64, other); }},
      {"EventRecord", [&] { event.record(other); }},
  };
  for (const auto& [name, call] : calls) {
    EXPECT_NE(refusal(p.stream, call).find(name), std::string::npos) << name;
    // A call whose error nobody looks at has ended the capture all the same.
    const auto ignored = [&call = call] {
      try {
        call();
      } catch (const Error&) {
      }
    };
    EXPECT_NE(refusal(p.stream, ignored).find("previous error during capture"), std::string::npos)
        << name;
    EXPECT_EQ(refusal(p.stream, [&] { device::fill(p.device.data(), 0, 64, p.stream); }), "");
  }
  EXPECT_NE(refusal(p.stream, [&] { freed = nullptr; }), "");
}

TEST(EmulatedCapture, KeepsNothingOfACaptureThatFailed) {
  Places p;
  p.pinned[0] = 7;
  device::fill(p.device.data(), 1, 64, p.stream);
  refusal(p.stream, [&] {
    device::copy(p.device.data(), p.pinned.data(), 64, p.stream);
    p.stream.synchronize();
  });
  char first = 0;
  device::copy(&first, p.device.data(), 1, p.stream);
  p.stream.synchronize();
  EXPECT_EQ(first, 1);
  EXPECT_THROW(device::Graph(p.stream, [] { fail(ErrorCode::kInvalidArgument, "mine"); }), Error);
  EXPECT_EQ(refusal(p.stream, [] {}), "");
}

TEST(EmulatedCapture, MeetsTheMistakeThatATestPlants) {
  Places p;
  const auto fill = [&] { device::fill(p.device.data(), 0, 64, p.stream); };
  emulation::spoil_next_capture();
  EXPECT_NE(refusal(p.stream, fill), "");
  EXPECT_EQ(refusal(p.stream, fill), "");
}

TEST(EmulatedCapture, AnEventOfACaptureHasNoTime) {
  Places p;
  device::Event event;
  const device::Graph graph(p.stream, [&] { event.record(p.stream); });
  EXPECT_THROW(static_cast<void>(event.elapsed_ms_since(event)), Error);
  event.record(p.stream);
  EXPECT_GE(event.elapsed_ms_since(event), 0.0f);
}

// The launch keeps its arguments, the copy its addresses; neither looks at them before the replay.
TEST(EmulatedCapture, AReplayReadsMemoryThenAndArgumentsFromBefore) {
  Places p;
  device::Queue queue;
  queue.collects_faults = true;
  test::TestExec exec;
  exec.exec.gpu = &queue;
  const device::Buffer sum(8);
  const auto floats = [](void* data) { return view(static_cast<float*>(data), {1, 2}); };
  ResidualAddArgs args{floats(sum.data()), floats(p.device.data()), floats(p.device.data())};
  float x[2] = {1, 2};
  std::memcpy(p.pinned.data(), x, sizeof x);
  device::Graph graph(queue.stream(), [&] {
    device::copy(p.device.data(), p.pinned.data(), sizeof x, queue.stream());
    gpu_kernels().residual_add(exec.exec, args);
  });
  args.y = floats(p.device.data());  // too late
  const float y[2] = {5, 6};
  std::memcpy(p.pinned.data(), y, sizeof y);
  const std::int64_t before = emulation::num_given();
  graph.launch(queue.stream());
  EXPECT_EQ(emulation::num_given() - before, 1);
  device::copy(x, sum.data(), sizeof x, queue.stream());
  queue.stream().synchronize();
  EXPECT_EQ(x[0], 10);
  EXPECT_EQ(x[1], 12);
}

// The runtime has one limit for a kernel, which a smaller launch must not lower under a graph.
TEST(EmulatedCapture, ALimitOfSharedMemoryOnlyRises) {
  static const char kernel = 0;
  for (const auto& [asked, limit] :
       {std::pair{1 << 15, 0}, {1 << 16, 1 << 16}, {50'000, 1 << 16}, {70'000, 70'000}}) {
    device::allow_shared_memory(&kernel, static_cast<std::size_t>(asked));
    EXPECT_EQ(emulation::shared_memory_limit(&kernel), limit);
  }
}

TEST(EmulatedCapture, AReplayThatReachesFreedMemoryStopsTheTest) {
  device::Queue queue;
  queue.collects_faults = true;
  test::TestExec exec;
  exec.exec.gpu = &queue;
  const device::Buffer kept(64);
  device::fill(kept.data(), 0, 64, queue.stream());
  const auto floats = [](const device::Buffer& b) {
    return view(static_cast<float*>(b.data()), {1, 2});
  };
  auto copied = std::make_unique<device::Buffer>(64);
  auto computed = std::make_unique<device::Buffer>(64);
  device::Graph copy(queue.stream(),
                     [&] { device::copy(copied->data(), kept.data(), 64, queue.stream()); });
  device::Graph fill(queue.stream(), [&] { device::fill(copied->data(), 0, 64, queue.stream()); });
  device::Graph launch(queue.stream(), [&] {
    gpu_kernels().residual_add(exec.exec, {floats(*computed), floats(kept), floats(kept)});
  });
  for (device::Graph* graph : {&copy, &fill, &launch}) graph->launch(queue.stream());
  copied = nullptr;
  computed = nullptr;
  EXPECT_THROW(copy.launch(queue.stream()), emulation::Violation);
  EXPECT_THROW(fill.launch(queue.stream()), emulation::Violation);
  if (!emulation::kChecked) GTEST_SKIP() << "accesses of kernels are not looked at";
  EXPECT_THROW(launch.launch(queue.stream()), emulation::Violation);
}

}  // namespace
}  // namespace rlk
