// The functions of a GPU runtime that rlk/device uses, for a device that exists in this process
// only: "device memory" is host memory, and a stream does its work at once.
//
// While a thread captures a stream, what cudaStreamCaptureModeThreadLocal refuses is refused, and
// ends the capture: waiting, allocating, freeing, copies from and to memory that is not pinned.
// Work for another stream, which a GPU would do at once, is refused too: here it is always a
// mistake. A captured launch keeps its arguments; a captured copy reads its memory when the graph
// is launched.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>

#define RLK_GPU(name) emulated##name

// Numbered as in CUDA.
enum emulatedError_t {
  emulatedSuccess = 0,
  emulatedErrorMemoryAllocation = 2,
  emulatedErrorIllegalState = 401,
  emulatedErrorStreamCaptureUnsupported = 900,
  emulatedErrorStreamCaptureInvalidated = 901,
  emulatedErrorCapturedEvent = 907,
};
enum emulatedMemcpyKind { emulatedMemcpyDefault };
enum emulatedFuncAttribute { emulatedFuncAttributeMaxDynamicSharedMemorySize };
constexpr unsigned emulatedStreamNonBlocking = 1;
constexpr unsigned emulatedMemAttachGlobal = 1;
constexpr unsigned emulatedHostAllocDefault = 0;
constexpr int emulatedStreamCaptureModeThreadLocal = 1;
using emulatedStream_t = struct EmulatedStream*;
using emulatedEvent_t = struct EmulatedEvent*;
using emulatedGraph_t = struct EmulatedGraph*;
using emulatedGraphExec_t = struct EmulatedGraph*;
struct emulatedDeviceProp {
  char name[256];
  int major, minor, multiProcessorCount;
  std::size_t totalGlobalMem;
};

emulatedError_t emulatedGetLastError();
const char* emulatedGetErrorString(emulatedError_t error);
const char* emulatedGetErrorName(emulatedError_t error);
emulatedError_t emulatedGetDeviceCount(int* count);
emulatedError_t emulatedSetDevice(int device);
emulatedError_t emulatedDriverGetVersion(int* version);
emulatedError_t emulatedRuntimeGetVersion(int* version);
emulatedError_t emulatedGetDeviceProperties(emulatedDeviceProp* properties, int device);
emulatedError_t emulatedFuncSetAttribute(const void* kernel, emulatedFuncAttribute attribute,
                                         int value);
emulatedError_t emulatedStreamCreateWithFlags(emulatedStream_t* stream, unsigned flags);
emulatedError_t emulatedStreamDestroy(emulatedStream_t stream);
emulatedError_t emulatedStreamSynchronize(emulatedStream_t stream);
emulatedError_t emulatedMalloc(void** data, std::size_t size_bytes);
emulatedError_t emulatedFree(void* data);
// Memory that host and kernels share.
emulatedError_t emulatedMallocManaged(void** data, std::size_t size_bytes, unsigned flags);
emulatedError_t emulatedHostAlloc(void** data, std::size_t size_bytes, unsigned flags);
emulatedError_t emulatedFreeHost(void* data);
emulatedError_t emulatedDeviceSynchronize();
emulatedError_t emulatedMemcpyAsync(void* to, const void* from, std::size_t size_bytes,
                                    emulatedMemcpyKind kind, emulatedStream_t stream);
emulatedError_t emulatedMemsetAsync(void* to, int byte, std::size_t size_bytes,
                                    emulatedStream_t stream);
emulatedError_t emulatedEventCreate(emulatedEvent_t* event);
emulatedError_t emulatedEventDestroy(emulatedEvent_t event);
emulatedError_t emulatedEventRecord(emulatedEvent_t event, emulatedStream_t stream);
emulatedError_t emulatedEventSynchronize(emulatedEvent_t event);
emulatedError_t emulatedEventElapsedTime(float* ms, emulatedEvent_t start, emulatedEvent_t end);
emulatedError_t emulatedStreamBeginCapture(emulatedStream_t stream, int mode);
emulatedError_t emulatedStreamEndCapture(emulatedStream_t stream, emulatedGraph_t* graph);
emulatedError_t emulatedGraphInstantiateWithFlags(emulatedGraphExec_t* executable,
                                                  emulatedGraph_t graph, unsigned long long flags);
emulatedError_t emulatedGraphDestroy(emulatedGraph_t graph);
emulatedError_t emulatedGraphExecDestroy(emulatedGraphExec_t executable);
emulatedError_t emulatedGraphLaunch(emulatedGraphExec_t executable, emulatedStream_t stream);

namespace rlk::emulation {

// Does the work, or records it where the stream is being captured.
emulatedError_t enqueue(emulatedStream_t stream, std::function<void()> work);

// How often a stream was given something to do: a launch, a copy, a fill, or a graph as a whole.
std::int64_t num_given();

// The limit of a kernel's dynamic shared memory that was set last; 0: none.
int shared_memory_limit(const void* kernel);

// The thread's next capture will be invalid from its first work on.
void spoil_next_capture();

}  // namespace rlk::emulation
