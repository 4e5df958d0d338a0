// The device layer: memory, streams, events, graphs, and the cell for faults.
#include <numeric>

#include "rlk/core/error.h"
#include "tests/gpu/gpu_test.h"

namespace rlk {
namespace {

using Device = test::OnGpu;
using DeviceInvariance = test::OnGpu;

TEST_F(Device, SaysWhatItIs) {
  for (const device::Info& info : device::list()) {
    EXPECT_FALSE(info.name.empty());
    EXPECT_EQ(info.architecture.substr(0, 3), "sm_");
    EXPECT_GT(info.num_processors, 0);
    EXPECT_GT(info.memory_bytes, 0);
  }
}

TEST_F(Device, IsChosenByItsIndex) {
  device::select(0);
  const device::Stream stream;
  for (const int index : {-1, 99}) {
    try {
      device::select(index);
      ADD_FAILURE() << index;
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), ErrorCode::kInvalidArgument);
      EXPECT_NE(std::string(e.what()).find(std::to_string(index)), std::string::npos);
    }
  }
}

TEST_F(Device, BytesComeBackAsTheyWent) {
  device::Stream stream;
  std::vector<char> sent(10007);
  std::iota(sent.begin(), sent.end(), 0);
  const device::Buffer a(sent.size() + 3);
  const device::Buffer b(sent.size());
  char* const unaligned = static_cast<char*>(a.data()) + 3;
  device::copy(unaligned, sent.data(), sent.size(), stream);
  device::copy(b.data(), unaligned, sent.size(), stream);
  device::fill(a.data(), 0xab, a.size_bytes(), stream);
  std::vector<char> received(sent.size());
  device::copy(received.data(), b.data(), received.size(), stream);
  std::vector<char> filled(sent.size());
  device::copy(filled.data(), unaligned, filled.size(), stream);
  stream.synchronize();
  EXPECT_EQ(received, sent);
  EXPECT_EQ(filled, std::vector<char>(sent.size(), static_cast<char>(0xab)));
}

TEST_F(Device, AWorkspaceGivesBackWhatAFrameTook) {
  device::Workspace workspace;
  const void* first = nullptr;
  for (int i = 0; i < 3; ++i) {
    device::Workspace::Frame frame(workspace);
    float* const a = frame.take<float>(10);
    char* const b = frame.take<char>(std::int64_t{9} << 20);
    EXPECT_NE(static_cast<void*>(a), static_cast<void*>(b));
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(a) % 256, 0u);
    if (i == 0) first = a;
    EXPECT_EQ(a, first);
  }
}

// Memory of the host and the device starts at zero, takes what either writes, and is copied behind
// the work of every stream.
TEST_F(Device, SharesMemoryWithTheHost) {
  for (Memory* memory : {&device::managed_memory(), &device::pinned_memory()}) {
    Array<std::int32_t> numbers(3, *memory);
    EXPECT_EQ(numbers, (Array<std::int32_t>{0, 0, 0}));
    numbers[1] = 5;
    const Tensor ones(DType::kI32, {3}, *memory);
    device::Stream stream;
    device::fill(const_cast<std::int32_t*>(ones.data<std::int32_t>()), 1, 4, stream);
    Tensor copy(DType::kI32, {3});
    copy.copy_from(ones);
    EXPECT_EQ(copy.data<std::int32_t>()[0], 0x01010101);
    memory->copy(numbers.data(), copy.data<std::int32_t>(), 4);
    EXPECT_EQ(numbers, (Array<std::int32_t>{0x01010101, 5, 0}));
    memory->fill_zero(numbers.data(), 8);
    EXPECT_EQ(numbers, (Array<std::int32_t>{0, 0, 0}));
  }
}

TEST_F(Device, KeepsTheFaultsOfCallsApart) {
  device::Queue queue;
  for (const std::int64_t cell : {0, 2}) {
    queue.use_fault_cell(cell);
    const unsigned long long row = 10 + static_cast<unsigned long long>(cell);
    device::copy(queue.fault(), &row, sizeof row, queue.stream());
  }
  EXPECT_EQ(queue.take_faults(3), (std::vector<std::int64_t>{10, -1, 12}));
  EXPECT_EQ(queue.take_faults(3), (std::vector<std::int64_t>{-1, -1, -1}));
  EXPECT_EQ(queue.read_fault(), -1);
}

TEST_F(Device, EventsMeasureTime) {
  device::Stream stream;
  device::Event start;
  device::Event end;
  const device::Buffer memory(1 << 20);
  start.record(stream);
  device::fill(memory.data(), 0, memory.size_bytes(), stream);
  end.record(stream);
  EXPECT_GE(end.elapsed_ms_since(start), 0.0f);
}

TEST_F(Device, AnImpossibleAllocationIsAnErrorThatNamesTheCall) {
  try {
    const device::Buffer buffer(std::size_t{1} << 60);
    FAIL() << "it was possible";
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ErrorCode::kNotAvailable);
    EXPECT_NE(std::string(e.what()).find("Malloc of 1152921504606846976 bytes"), std::string::npos)
        << e.what();
  }
}

// rms_norm, a product and swiglu, one after the other, in device memory.
class Steps {
 public:
  Steps() {
    for (const Tensor* t : {&x_, &w_, &b_}) {
      copies_.emplace_back(t->size_bytes());
      device::copy(copies_.back().data(), t->data<void>(), t->size_bytes(), queue_.stream());
    }
    for (Tensor* t : {&y_, &c_, &z_}) copies_.emplace_back(t->size_bytes());
  }

  device::Queue& queue() { return queue_; }
  std::int64_t fault() const { return exec_.fault.row(); }

  void run() {
    exec_.exec.gpu = &queue_;
    const KernelTable& gpu = gpu_kernels();
    RmsNormArgs norm;
    norm.x = on_device(0, x_);
    norm.w = on_device(1, w_);
    norm.y = on_device(3, y_);
    norm.eps = 1e-6f;
    gpu.rms_norm(exec_, norm);
    GemmArgs product;
    product.a = split(norm.y);
    product.b = on_device(2, b_);
    product.c = on_device(4, c_);
    product.leaf_tree = true;
    product.segments = {kSize, 0, 0};
    gpu.gemm(exec_, product);
    gpu.swiglu(exec_, {on_device(5, z_), product.c, split(norm.y)});
  }

  void clear_results() {
    for (std::size_t i = 3; i < copies_.size(); ++i) {
      device::fill(copies_[i].data(), 0xff, copies_[i].size_bytes(), queue_.stream());
    }
  }
  Tensor result() {
    Tensor z(DType::kBF16, {kRows, kSize});
    device::copy(z.data<void>(), copies_[5].data(), z.size_bytes(), queue_.stream());
    queue_.stream().synchronize();
    return z;
  }
  // x = `x` in device memory.
  void set_input(const Tensor& x) {
    device::copy(copies_[0].data(), x.data<void>(), x.size_bytes(), queue_.stream());
    queue_.stream().synchronize();
  }
  static Tensor make_input(std::uint64_t seed) {
    return test::random_tensor(DType::kBF16, {kRows, 1, kSize}, seed, test::Kind::kCancelling);
  }

  static constexpr std::int64_t kRows = 70;
  static constexpr std::int64_t kSize = 256;

 private:
  TensorView on_device(std::size_t i, const Tensor& t) const {
    return {copies_[i].data(), t.dtype(), t.layout()};
  }
  static TensorView split(const TensorView& y) { return {y.data, y.dtype, Layout{kRows, kSize}}; }

  device::Queue queue_;
  test::TestExec exec_;
  Tensor x_ = make_input(1);
  Tensor w_ = test::random_tensor(DType::kBF16, {kSize}, 2);
  Tensor b_ = test::random_tensor(DType::kBF16, {kSize, kSize}, 3);
  Tensor y_ = Tensor(DType::kBF16, {kRows, 1, kSize});
  Tensor c_ = Tensor(DType::kBF16, {kRows, kSize});
  Tensor z_ = Tensor(DType::kBF16, {kRows, kSize});
  std::vector<device::Buffer> copies_;
};

TEST_F(DeviceInvariance, AGraphReplaysTheBitsOfTheEagerCalls) {
  Steps steps;
  steps.run();
  const Tensor eager = steps.result();
  EXPECT_EQ(steps.fault(), -1);
  steps.queue().collects_faults = true;
  device::Graph graph(steps.queue().stream(), [&] { steps.run(); });
  for (int i = 0; i < 2; ++i) {
    steps.clear_results();
    steps.queue().clear_fault();
    graph.launch(steps.queue().stream());
    EXPECT_EQ(steps.queue().read_fault(), -1);
    EXPECT_TRUE(test::same_bits(steps.result(), eager));
  }
}

TEST_F(Device, AGraphReadsItsInputsWhenItIsLaunched) {
  Steps steps;
  steps.run();
  const Tensor first = steps.result();
  steps.queue().collects_faults = true;
  device::Graph graph(steps.queue().stream(), [&] { steps.run(); });
  steps.set_input(Steps::make_input(9));
  graph.launch(steps.queue().stream());
  const Tensor second = steps.result();
  EXPECT_FALSE(test::same_bits(second, first));
  steps.run();
  EXPECT_TRUE(test::same_bits(steps.result(), second));
}

TEST_F(Device, CollectedFaultsKeepTheLowestRow) {
  Steps steps;
  Tensor x = Steps::make_input(1);
  *x.view().at<bf16>(41) = numerics::to_bf16(0x1p100f);
  *x.view().at<bf16>(17) = numerics::to_bf16(0x1p100f);
  steps.set_input(x);
  steps.run();
  EXPECT_EQ(steps.fault(), 17);
  steps.queue().collects_faults = true;
  steps.queue().clear_fault();
  steps.run();
  steps.run();
  EXPECT_EQ(steps.queue().read_fault(), 17);
}

}  // namespace
}  // namespace rlk
