#include "tests/gpu/emulation/emulated_runtime.h"

#include <chrono>
#include <cstring>
#include <utility>
#include <vector>

#include "tests/gpu/emulation/memory.h"

struct EmulatedGraph {
  std::vector<std::function<void()>> work;
};
struct EmulatedStream {
  EmulatedGraph* capture = nullptr;
};
struct EmulatedEvent {
  std::chrono::steady_clock::time_point time;
};

namespace rlk::emulation {

void enqueue(emulatedStream_t stream, std::function<void()> work) {
  if (stream->capture) {
    stream->capture->work.push_back(std::move(work));
  } else {
    work();
  }
}

}  // namespace rlk::emulation

using rlk::emulation::enqueue;

emulatedError_t emulatedGetLastError() { return emulatedSuccess; }
const char* emulatedGetErrorString(emulatedError_t) { return "out of memory"; }
const char* emulatedGetErrorName(emulatedError_t) { return "ErrorMemoryAllocation"; }

emulatedError_t emulatedGetDeviceCount(int* count) {
  *count = 1;
  return emulatedSuccess;
}
emulatedError_t emulatedSetDevice(int) { return emulatedSuccess; }
emulatedError_t emulatedDriverGetVersion(int* version) {
  *version = 1000;
  return emulatedSuccess;
}
emulatedError_t emulatedRuntimeGetVersion(int* version) {
  return emulatedDriverGetVersion(version);
}
emulatedError_t emulatedGetDeviceProperties(emulatedDeviceProp* properties, int) {
  *properties = {"emulated", 0, 0, 1, std::size_t{1} << 30};
  return emulatedSuccess;
}

emulatedError_t emulatedStreamCreateWithFlags(emulatedStream_t* stream, unsigned) {
  *stream = new EmulatedStream;
  return emulatedSuccess;
}
emulatedError_t emulatedStreamDestroy(emulatedStream_t stream) {
  delete stream;
  return emulatedSuccess;
}
emulatedError_t emulatedStreamSynchronize(emulatedStream_t) { return emulatedSuccess; }

emulatedError_t emulatedMalloc(void** data, std::size_t size_bytes) {
  *data = rlk::emulation::allocate(size_bytes, false);
  return *data ? emulatedSuccess : emulatedErrorMemoryAllocation;
}
emulatedError_t emulatedFree(void* data) {
  rlk::emulation::free(data);
  return emulatedSuccess;
}
emulatedError_t emulatedMallocManaged(void** data, std::size_t size_bytes, unsigned) {
  *data = rlk::emulation::allocate(size_bytes, true);
  return *data ? emulatedSuccess : emulatedErrorMemoryAllocation;
}
emulatedError_t emulatedHostAlloc(void** data, std::size_t size_bytes, unsigned flags) {
  return emulatedMallocManaged(data, size_bytes, flags);
}
emulatedError_t emulatedFreeHost(void* data) { return emulatedFree(data); }
emulatedError_t emulatedDeviceSynchronize() { return emulatedSuccess; }
emulatedError_t emulatedMemcpyAsync(void* to, const void* from, std::size_t size_bytes,
                                    emulatedMemcpyKind, emulatedStream_t stream) {
  enqueue(stream, [=] {
    const rlk::emulation::Open open;
    std::memcpy(to, from, size_bytes);
    rlk::emulation::wrote(to, size_bytes);
  });
  return emulatedSuccess;
}
emulatedError_t emulatedMemsetAsync(void* to, int byte, std::size_t size_bytes,
                                    emulatedStream_t stream) {
  enqueue(stream, [=] {
    const rlk::emulation::Open open;
    std::memset(to, byte, size_bytes);
    rlk::emulation::wrote(to, size_bytes);
  });
  return emulatedSuccess;
}

emulatedError_t emulatedEventCreate(emulatedEvent_t* event) {
  *event = new EmulatedEvent;
  return emulatedSuccess;
}
emulatedError_t emulatedEventDestroy(emulatedEvent_t event) {
  delete event;
  return emulatedSuccess;
}
emulatedError_t emulatedEventRecord(emulatedEvent_t event, emulatedStream_t) {
  event->time = std::chrono::steady_clock::now();
  return emulatedSuccess;
}
emulatedError_t emulatedEventSynchronize(emulatedEvent_t) { return emulatedSuccess; }
emulatedError_t emulatedEventElapsedTime(float* ms, emulatedEvent_t start, emulatedEvent_t end) {
  *ms = std::chrono::duration<float, std::milli>(end->time - start->time).count();
  return emulatedSuccess;
}

emulatedError_t emulatedStreamBeginCapture(emulatedStream_t stream, int) {
  stream->capture = new EmulatedGraph;
  return emulatedSuccess;
}
emulatedError_t emulatedStreamEndCapture(emulatedStream_t stream, emulatedGraph_t* graph) {
  *graph = std::exchange(stream->capture, nullptr);
  return emulatedSuccess;
}
emulatedError_t emulatedGraphInstantiateWithFlags(emulatedGraphExec_t* executable,
                                                  emulatedGraph_t graph, unsigned long long) {
  *executable = new EmulatedGraph(*graph);
  return emulatedSuccess;
}
emulatedError_t emulatedGraphDestroy(emulatedGraph_t graph) {
  delete graph;
  return emulatedSuccess;
}
emulatedError_t emulatedGraphExecDestroy(emulatedGraphExec_t executable) {
  delete executable;
  return emulatedSuccess;
}
emulatedError_t emulatedGraphLaunch(emulatedGraphExec_t executable, emulatedStream_t) {
  for (const auto& work : executable->work) work();
  return emulatedSuccess;
}
