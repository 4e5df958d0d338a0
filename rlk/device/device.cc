#include "rlk/device/device.h"

#include <cstring>
#include <map>
#include <mutex>
#include <utility>

#include "rlk/core/error.h"
#include "rlk/device/gpu_runtime.h"

namespace rlk::device {
namespace {

void check(RLK_GPU(Error_t) result, const char* call) {
  if (result == RLK_GPU(Success)) return;
  // An error that does not stick would be reported again by the next launch.
  static_cast<void>(RLK_GPU(GetLastError)());
  fail(ErrorCode::kNotAvailable, "GPU: {} failed: {} ({})", call, RLK_GPU(GetErrorString)(result),
       RLK_GPU(GetErrorName)(result));
}
#define RLK_CHECK_GPU(name, ...) check(RLK_GPU(name)(__VA_ARGS__), #name)

thread_local int selected_device = 0;

RLK_GPU(Stream_t) stream_of(const Stream& stream) {
  return static_cast<RLK_GPU(Stream_t)>(stream.native());
}

#if defined(__HIP_PLATFORM_AMD__)
std::string version_text(int version) {  // 60342131 is 6.3.42131
  return fmt::format("{}.{}.{}", version / 10'000'000, version / 100'000 % 100, version % 100'000);
}
std::string architecture(const RLK_GPU(DeviceProp) & properties) {  // "gfx942:sramecc+:xnack-"
  const std::string name = properties.gcnArchName;
  return name.substr(0, name.find(':'));
}
#else
std::string version_text(int version) {  // 13000 is 13.0
  return fmt::format("{}.{}", version / 1000, version % 1000 / 10);
}
std::string architecture(const RLK_GPU(DeviceProp) & properties) {
  return fmt::format("sm_{}{}", properties.major, properties.minor);
}
#endif

}  // namespace

std::vector<Info> list() {
  int count = 0;
  if (RLK_GPU(GetDeviceCount)(&count) != RLK_GPU(Success)) {
    static_cast<void>(RLK_GPU(GetLastError)());
    return {};
  }
  int driver = 0;
  int runtime = 0;
  RLK_CHECK_GPU(DriverGetVersion, &driver);
  RLK_CHECK_GPU(RuntimeGetVersion, &runtime);
  std::vector<Info> devices;
  for (int i = 0; i < count; ++i) {
    RLK_GPU(DeviceProp) properties;
    RLK_CHECK_GPU(GetDeviceProperties, &properties, i);
    devices.push_back({i, properties.name, architecture(properties), properties.multiProcessorCount,
                       static_cast<std::int64_t>(properties.totalGlobalMem), version_text(driver),
                       version_text(runtime)});
  }
  return devices;
}

void require() {
  int count = 0;
  RLK_CHECK_GPU(GetDeviceCount, &count);
  if (count == 0) fail(ErrorCode::kNotAvailable, "GPU: this machine has no device");
  RLK_CHECK_GPU(SetDevice, selected_device);
}

Info selected() {
  require();
  return list().at(static_cast<std::size_t>(selected_device));
}

void select(int index) {
  int count = 0;
  RLK_CHECK_GPU(GetDeviceCount, &count);
  if (index < 0 || index >= count) {
    fail(ErrorCode::kInvalidArgument, "GPU: there is no device {}; expected 0 to {}", index,
         count - 1);
  }
  selected_device = index;
  RLK_CHECK_GPU(SetDevice, index);
}

void allow_shared_memory(const void* kernel, std::size_t size_bytes) {
  constexpr std::size_t kAlwaysAllowed = 48 * 1024;
  if (size_bytes <= kAlwaysAllowed) return;
  static std::mutex mutex;
  static std::map<std::pair<int, const void*>, std::size_t> allowed;
  const std::lock_guard lock(mutex);
  std::size_t& most = allowed[{selected_device, kernel}];
  if (size_bytes <= most) return;
  const auto result = RLK_GPU(FuncSetAttribute)(
      kernel, RLK_GPU(FuncAttributeMaxDynamicSharedMemorySize), static_cast<int>(size_bytes));
  check(result, fmt::format("FuncSetAttribute for {} bytes", size_bytes).c_str());
  most = size_bytes;
}

Stream::Stream() {
  require();
  RLK_GPU(Stream_t) stream = nullptr;
  RLK_CHECK_GPU(StreamCreateWithFlags, &stream, RLK_GPU(StreamNonBlocking));
  native_ = stream;
}

Stream::~Stream() {
  if (native_) static_cast<void>(RLK_GPU(StreamDestroy)(stream_of(*this)));
}

void Stream::synchronize() { RLK_CHECK_GPU(StreamSynchronize, stream_of(*this)); }

Buffer::Buffer(std::size_t size_bytes) : size_bytes_(size_bytes) {
  if (size_bytes == 0) return;
  const auto result = RLK_GPU(Malloc)(&data_, size_bytes);
  check(result, fmt::format("Malloc of {} bytes", size_bytes).c_str());
}

Buffer::~Buffer() {
  if (data_) static_cast<void>(RLK_GPU(Free)(data_));
}

void copy(void* to, const void* from, std::size_t size_bytes, Stream& stream) {
  if (size_bytes == 0) return;
  RLK_CHECK_GPU(MemcpyAsync, to, from, size_bytes, RLK_GPU(MemcpyDefault), stream_of(stream));
}

void fill(void* to, unsigned char byte, std::size_t size_bytes, Stream& stream) {
  if (size_bytes == 0) return;
  RLK_CHECK_GPU(MemsetAsync, to, byte, size_bytes, stream_of(stream));
}

namespace {

class ManagedMemory : public Memory {
 public:
  void* take(std::size_t size_bytes) override {
    require();
    void* data = nullptr;
    const std::size_t size = size_bytes == 0 ? 1 : size_bytes;
    const auto result = RLK_GPU(MallocManaged)(&data, size, RLK_GPU(MemAttachGlobal));
    check(result, fmt::format("MallocManaged of {} bytes", size).c_str());
    fill_zero(data, size);
    return data;
  }
  void give_back(void* data) noexcept override { static_cast<void>(RLK_GPU(Free)(data)); }
  void fill_zero(void* to, std::size_t size_bytes) override {
    // The streams of Stream do not wait for each other.
    RLK_CHECK_GPU(DeviceSynchronize);
    fill(to, 0, size_bytes, stream_);
    stream_.synchronize();
  }
  void copy(void* to, const void* from, std::size_t size_bytes) override {
    RLK_CHECK_GPU(DeviceSynchronize);
    device::copy(to, from, size_bytes, stream_);
    stream_.synchronize();
  }

 private:
  Stream stream_;
};

class PinnedMemory : public Memory {
 public:
  void* take(std::size_t size_bytes) override {
    require();
    void* data = nullptr;
    const std::size_t size = size_bytes == 0 ? 1 : size_bytes;
    const auto result = RLK_GPU(HostAlloc)(&data, size, RLK_GPU(HostAllocDefault));
    check(result, fmt::format("HostAlloc of {} bytes", size).c_str());
    std::memset(data, 0, size);
    return data;
  }
  void give_back(void* data) noexcept override { static_cast<void>(RLK_GPU(FreeHost)(data)); }
  void fill_zero(void* to, std::size_t size_bytes) override {
    RLK_CHECK_GPU(DeviceSynchronize);
    std::memset(to, 0, size_bytes);
  }
  void copy(void* to, const void* from, std::size_t size_bytes) override {
    managed_memory().copy(to, from, size_bytes);
  }
};

}  // namespace

// Never destroyed: tensors may outlive everything else.
Memory& managed_memory() {
  static ManagedMemory& memory = *new ManagedMemory;
  return memory;
}

Memory& pinned_memory() {
  static PinnedMemory& memory = *new PinnedMemory;
  return memory;
}

Event::Event() {
  RLK_GPU(Event_t) event = nullptr;
  RLK_CHECK_GPU(EventCreate, &event);
  native_ = event;
}

Event::~Event() {
  if (native_) static_cast<void>(RLK_GPU(EventDestroy)(static_cast<RLK_GPU(Event_t)>(native_)));
}

void Event::record(Stream& stream) {
  RLK_CHECK_GPU(EventRecord, static_cast<RLK_GPU(Event_t)>(native_), stream_of(stream));
}

float Event::elapsed_ms_since(const Event& start) const {
  const auto event = static_cast<RLK_GPU(Event_t)>(native_);
  RLK_CHECK_GPU(EventSynchronize, event);
  float ms = 0;
  RLK_CHECK_GPU(EventElapsedTime, &ms, static_cast<RLK_GPU(Event_t)>(start.native_), event);
  return ms;
}

Graph::Graph(Stream& stream, const std::function<void()>& work) {
  RLK_CHECK_GPU(StreamBeginCapture, stream_of(stream), RLK_GPU(StreamCaptureModeThreadLocal));
  RLK_GPU(Graph_t) graph = nullptr;
  try {
    work();
  } catch (...) {
    static_cast<void>(RLK_GPU(StreamEndCapture)(stream_of(stream), &graph));
    if (graph) static_cast<void>(RLK_GPU(GraphDestroy)(graph));
    static_cast<void>(RLK_GPU(GetLastError)());
    throw;
  }
  RLK_CHECK_GPU(StreamEndCapture, stream_of(stream), &graph);
  RLK_GPU(GraphExec_t) executable = nullptr;
  const auto result = RLK_GPU(GraphInstantiateWithFlags)(&executable, graph, 0);
  static_cast<void>(RLK_GPU(GraphDestroy)(graph));
  check(result, "GraphInstantiateWithFlags");
  native_ = executable;
}

Graph::~Graph() {
  if (native_) {
    static_cast<void>(RLK_GPU(GraphExecDestroy)(static_cast<RLK_GPU(GraphExec_t)>(native_)));
  }
}

void Graph::launch(Stream& stream) {
  RLK_CHECK_GPU(GraphLaunch, static_cast<RLK_GPU(GraphExec_t)>(native_), stream_of(stream));
}

}  // namespace rlk::device
