#include "tests/gpu/emulation/emulated_runtime.h"

#include <chrono>
#include <cstring>
#include <map>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "tests/gpu/emulation/memory.h"

struct EmulatedGraph {
  std::vector<std::function<void()>> work;
};
struct EmulatedStream {};
struct EmulatedEvent {
  std::chrono::steady_clock::time_point time;
  bool captured = false;
};

namespace rlk::emulation {
namespace {

// What this thread captures. Without a stream: nothing.
struct Capture {
  emulatedStream_t stream = nullptr;
  EmulatedGraph graph;
  bool valid = true;
};
thread_local Capture capture;
thread_local bool next_is_spoilt = false;
std::int64_t num_work = 0;
std::map<const void*, int> shared_memory_limits;

// An end of a copy or a fill: device memory that is there, or memory of the host.
void check_is_there(const void* data, std::size_t size_bytes) {
  if (!is_device_memory(data) || is_allocated(data, size_bytes)) return;
  throw Violation(
      fmt::format("GPU emulation: a copy of {} bytes from or to freed memory", size_bytes));
}

// Within a capture no end of a copy is memory that the host may move.
bool may_capture(const void* data) { return capture.stream == nullptr || is_device_memory(data); }

// Of a call that takes effect at once, which a replay would not repeat or which waits for what has
// not begun.
emulatedError_t refused_in_capture() {
  if (capture.stream == nullptr) return emulatedSuccess;
  capture.valid = false;
  return emulatedErrorStreamCaptureUnsupported;
}

}  // namespace

emulatedError_t enqueue(emulatedStream_t stream, std::function<void()> work) {
  if (capture.stream == nullptr) {
    ++num_work;
    work();
    return emulatedSuccess;
  }
  if (stream != capture.stream) return refused_in_capture();
  if (!capture.valid) return emulatedErrorStreamCaptureInvalidated;
  capture.graph.work.push_back(std::move(work));
  return emulatedSuccess;
}

std::int64_t num_given() { return num_work; }
void spoil_next_capture() { next_is_spoilt = true; }
int shared_memory_limit(const void* kernel) { return shared_memory_limits[kernel]; }

}  // namespace rlk::emulation

using rlk::emulation::allocate;
using rlk::emulation::capture;
using rlk::emulation::Capture;
using rlk::emulation::check_is_there;
using rlk::emulation::enqueue;
using rlk::emulation::may_capture;
using rlk::emulation::next_is_spoilt;
using rlk::emulation::Open;
using rlk::emulation::refused_in_capture;
using rlk::emulation::shared_memory_limits;
using rlk::emulation::wrote;

emulatedError_t emulatedGetLastError() { return emulatedSuccess; }
const char* emulatedGetErrorString(emulatedError_t error) {
  switch (error) {
    case emulatedSuccess: return "no error";
    case emulatedErrorMemoryAllocation: return "out of memory";
    case emulatedErrorStreamCaptureUnsupported:
      return "operation not permitted when stream is capturing";
    case emulatedErrorStreamCaptureInvalidated:
      return "operation failed due to a previous error during capture";
    case emulatedErrorIllegalState: return "the operation cannot be performed in the present state";
    case emulatedErrorCapturedEvent:
      return "operation not permitted on an event last recorded in a capturing stream";
  }
  return "unknown error";
}
const char* emulatedGetErrorName(emulatedError_t error) {
  switch (error) {
    case emulatedSuccess: return "Success";
    case emulatedErrorMemoryAllocation: return "ErrorMemoryAllocation";
    case emulatedErrorStreamCaptureUnsupported: return "ErrorStreamCaptureUnsupported";
    case emulatedErrorStreamCaptureInvalidated: return "ErrorStreamCaptureInvalidated";
    case emulatedErrorIllegalState: return "ErrorIllegalState";
    case emulatedErrorCapturedEvent: return "ErrorCapturedEvent";
  }
  return "unknown";
}

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

emulatedError_t emulatedFuncSetAttribute(const void* kernel, emulatedFuncAttribute, int value) {
  shared_memory_limits[kernel] = value;
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
emulatedError_t emulatedStreamSynchronize(emulatedStream_t) { return refused_in_capture(); }
emulatedError_t emulatedDeviceSynchronize() { return refused_in_capture(); }

namespace {

emulatedError_t take(void** data, std::size_t size_bytes, bool visible) {
  const emulatedError_t refused = refused_in_capture();
  if (refused != emulatedSuccess) return refused;
  *data = allocate(size_bytes, visible);
  return *data ? emulatedSuccess : emulatedErrorMemoryAllocation;
}

}  // namespace

emulatedError_t emulatedMalloc(void** data, std::size_t size_bytes) {
  return take(data, size_bytes, false);
}
emulatedError_t emulatedMallocManaged(void** data, std::size_t size_bytes, unsigned) {
  return take(data, size_bytes, true);
}
emulatedError_t emulatedHostAlloc(void** data, std::size_t size_bytes, unsigned) {
  return take(data, size_bytes, true);
}
emulatedError_t emulatedFree(void* data) {
  const emulatedError_t refused = refused_in_capture();
  if (refused == emulatedSuccess) rlk::emulation::free(data);
  return refused;
}
emulatedError_t emulatedFreeHost(void* data) { return emulatedFree(data); }

emulatedError_t emulatedMemcpyAsync(void* to, const void* from, std::size_t size_bytes,
                                    emulatedMemcpyKind, emulatedStream_t stream) {
  if (!may_capture(to) || !may_capture(from)) return refused_in_capture();
  return enqueue(stream, [=] {
    check_is_there(from, size_bytes);
    check_is_there(to, size_bytes);
    const Open open;
    std::memcpy(to, from, size_bytes);
    wrote(to, size_bytes);
  });
}
emulatedError_t emulatedMemsetAsync(void* to, int byte, std::size_t size_bytes,
                                    emulatedStream_t stream) {
  return enqueue(stream, [=] {
    check_is_there(to, size_bytes);
    const Open open;
    std::memset(to, byte, size_bytes);
    wrote(to, size_bytes);
  });
}

emulatedError_t emulatedEventCreate(emulatedEvent_t* event) {
  *event = new EmulatedEvent;
  return emulatedSuccess;
}
emulatedError_t emulatedEventDestroy(emulatedEvent_t event) {
  delete event;
  return emulatedSuccess;
}
emulatedError_t emulatedEventRecord(emulatedEvent_t event, emulatedStream_t stream) {
  event->captured = capture.stream != nullptr;
  if (event->captured && stream != capture.stream) return refused_in_capture();
  event->time = std::chrono::steady_clock::now();
  return emulatedSuccess;
}
emulatedError_t emulatedEventSynchronize(emulatedEvent_t event) {
  const emulatedError_t refused = refused_in_capture();
  if (refused != emulatedSuccess) return refused;
  return event->captured ? emulatedErrorCapturedEvent : emulatedSuccess;
}
emulatedError_t emulatedEventElapsedTime(float* ms, emulatedEvent_t start, emulatedEvent_t end) {
  if (start->captured || end->captured) return emulatedErrorCapturedEvent;
  *ms = std::chrono::duration<float, std::milli>(end->time - start->time).count();
  return emulatedSuccess;
}

emulatedError_t emulatedStreamBeginCapture(emulatedStream_t stream, int) {
  if (capture.stream != nullptr) return emulatedErrorIllegalState;
  capture.stream = stream;
  capture.valid = !std::exchange(next_is_spoilt, false);
  return emulatedSuccess;
}
emulatedError_t emulatedStreamEndCapture(emulatedStream_t stream, emulatedGraph_t* graph) {
  *graph = nullptr;
  if (capture.stream == nullptr || capture.stream != stream) return emulatedErrorIllegalState;
  const Capture captured = std::exchange(capture, {});
  if (!captured.valid) return emulatedErrorStreamCaptureInvalidated;
  *graph = new EmulatedGraph(captured.graph);
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
emulatedError_t emulatedGraphLaunch(emulatedGraphExec_t executable, emulatedStream_t stream) {
  return enqueue(stream, [work = executable->work] {
    for (const auto& step : work) step();
  });
}
