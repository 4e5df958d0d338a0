// What a kernel may use besides its arguments.
#pragma once

#include <atomic>
#include <cstdint>

#include "rlk/contract/contract.h"
#include "rlk/core/thread_pool.h"
#include "rlk/core/workspace.h"

namespace rlk::device {
class Queue;
}

namespace rlk {

// Non-finite numbers a kernel met. Kernels never throw: they note the lowest row and the operator
// layer turns it into an error after the call.
class Fault {
 public:
  void report(std::int64_t row) {
    std::int64_t seen = row_.load(std::memory_order_relaxed);
    while ((seen < 0 || row < seen) &&
           !row_.compare_exchange_weak(seen, row, std::memory_order_relaxed)) {
    }
  }
  std::int64_t row() const { return row_.load(std::memory_order_relaxed); }  // -1: none
  void clear() { row_.store(-1, std::memory_order_relaxed); }

 private:
  std::atomic<std::int64_t> row_{-1};
};

struct Exec {
  ThreadPool& pool;
  Workspace& workspace;
  const Contract& contract;
  Fault& fault;
  device::Queue* gpu = nullptr;  // of GPU kernels; null elsewhere
};

}  // namespace rlk
