// Devices, their memory and their queues of work. Without a GPU build, or without a device, every
// call that needs one throws kNotAvailable; list() is empty.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "rlk/core/tensor.h"

namespace rlk::device {

struct Info {
  int index = 0;
  std::string name;          // "NVIDIA H200"
  std::string architecture;  // "sm_90"
  int num_processors = 0;
  std::int64_t memory_bytes = 0;
  std::string driver;   // newest runtime that the driver supports: "13.0"
  std::string runtime;  // the one this program is built with
};

// The devices of this machine; empty where there is none, no driver or no GPU build.
std::vector<Info> list();

// Throws kNotAvailable, with the reason, unless the device of this thread can be used.
void require();

// The device of this thread. Errors  those of require().
Info selected();

// From here on this thread's calls are for device `index`; at first it is 0. One process per device
// (HIP_VISIBLE_DEVICES, CUDA_VISIBLE_DEVICES) needs no call.
// Errors  kInvalidArgument: there is no such device.
void select(int index);

// Lets the thread's device read and write the memory of device `peer`; false where the hardware
// cannot.
bool reach_peer(int peer);

// Before a launch of `kernel` with so much dynamic shared memory on the device of this thread. What
// was allowed once stays so: graphs that hold larger launches of the kernel may be started later.
// Errors  kNotAvailable: the device has less.
void allow_shared_memory(const void* kernel, std::size_t size_bytes);

// Work runs in the order it is given to a stream. Every function below that takes a stream only
// enqueues, unless it says otherwise. Errors of the device: kNotAvailable naming the call.
class Stream {
 public:
  Stream();
  ~Stream();
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;

  void synchronize();  // waits for all work given so far
  void* native() const { return native_; }

 private:
  void* native_ = nullptr;
};

// Device memory, 256-byte aligned, not initialised.
class Buffer {
 public:
  Buffer() = default;
  explicit Buffer(std::size_t size_bytes);
  ~Buffer();
  Buffer(Buffer&& other) noexcept { swap(other); }
  Buffer& operator=(Buffer&& other) noexcept {
    swap(other);
    return *this;
  }

  void* data() const { return data_; }
  std::size_t size_bytes() const { return size_bytes_; }

 private:
  void swap(Buffer& other) {
    std::swap(data_, other.data_);
    std::swap(size_bytes_, other.size_bytes_);
  }
  void* data_ = nullptr;
  std::size_t size_bytes_ = 0;
};

// Any direction. From and to ordinary host memory the call may wait.
void copy(void* to, const void* from, std::size_t size_bytes, Stream& stream);
void fill(void* to, unsigned char byte, std::size_t size_bytes, Stream& stream);

// Memory for tensors that kernels compute with and the host can touch after synchronize(): its
// pages lie where they were touched last, at first on the device.
Memory& managed_memory();

// Host memory that the device reads and writes in place: for small arrays that the host makes for
// every call, and for numbers it waits for.
Memory& pinned_memory();

// A point in a stream.
class Event {
 public:
  Event();
  ~Event();
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;

  void record(Stream& stream);
  // Waits for `this`; milliseconds from `start` to it.
  float elapsed_ms_since(const Event& start) const;

 private:
  [[maybe_unused]] void* native_ = nullptr;
};

// Work that was recorded once and can be started again as a whole. Recorded work must not wait for
// the device, allocate, or read back.
class Graph {
 public:
  Graph(Stream& stream, const std::function<void()>& work);  // runs nothing
  ~Graph();
  Graph(const Graph&) = delete;
  Graph& operator=(const Graph&) = delete;

  void launch(Stream& stream);

 private:
  [[maybe_unused]] void* native_ = nullptr;
};

// A stack of device memory for operators, as core/workspace.h is of host memory. It only grows
// between calls, so a call that ran once can be recorded into a graph.
class Workspace {
 public:
  class Frame {
   public:
    explicit Frame(Workspace& workspace)
        : workspace_(workspace), block_(workspace.block_), used_(workspace.used_) {}
    ~Frame() {
      workspace_.block_ = block_;
      workspace_.used_ = used_;
    }
    Frame(const Frame&) = delete;
    Frame& operator=(const Frame&) = delete;

    // 256-byte aligned, not initialised. Valid until the frame ends for work given before that.
    template <typename T>
    T* take(std::int64_t count) {
      return static_cast<T*>(workspace_.take_bytes(static_cast<std::size_t>(count) * sizeof(T)));
    }

   private:
    Workspace& workspace_;
    std::size_t block_;
    std::size_t used_;
  };

 private:
  void* take_bytes(std::size_t size_bytes);

  std::vector<Buffer> blocks_;
  std::size_t block_ = 0;  // the block in use
  std::size_t used_ = 0;   // bytes of it that are taken
};

class ProductLibrary;  // vendor_products.h

// What a GPU kernel runs with: a stream, scratch memory, and a cell for the lowest row that met a
// number the contract forbids.
class Queue {
 public:
  Queue();

  Stream& stream() { return stream_; }
  Workspace& workspace() { return workspace_; }

  // The lowest row so far as an unsigned number; all ones: none.
  unsigned long long* fault() const {
    return static_cast<unsigned long long*>(faults_.data()) + fault_cell_;
  }
  void clear_fault();
  std::int64_t read_fault();  // waits for the stream; -1: none

  // True while faults of several calls are collected and nobody waits between them: in a graph, for
  // one. The caller then clears and reads the cells itself.
  bool collects_faults = false;

  // Where not null, products may be given to it in place of our kernels
  // (rlk/kernels/vendor_plans.h).
  const ProductLibrary* products = nullptr;

  // So many calls can have a cell of their own; fault() is that of call `cell` from here on.
  static constexpr std::int64_t kFaultCells = 4096;
  void use_fault_cell(std::int64_t cell) { fault_cell_ = cell; }
  // Waits for the stream; what read_fault would give for each of the first `count` cells, which are
  // clear again. fault() is that of cell 0.
  std::vector<std::int64_t> take_faults(std::int64_t count);

 private:
  Stream stream_;
  Workspace workspace_;
  Buffer faults_;
  Tensor read_faults_;  // pinned: copies to it do not wait, so that all is given before the wait
  std::int64_t fault_cell_ = 0;
};

}  // namespace rlk::device
