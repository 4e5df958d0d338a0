// How a kernel becomes an entry of a table.
#pragma once

#include "rlk/core/error.h"
#include "rlk/device/device.h"
#include "rlk/kernels/exec.h"

namespace rlk::gpu {

// Runs the kernel and turns the device's fault cell into the fault of the call.
template <auto kernel, typename Args>
void call(Exec& exec, const Args& args) {
  RLK_ASSERT(exec.gpu != nullptr);
  if (exec.gpu->collects_faults) return kernel(exec, args);
  exec.gpu->clear_fault();
  kernel(exec, args);
  const std::int64_t row = exec.gpu->read_fault();
  if (row >= 0) exec.fault.report(row);
}

}  // namespace rlk::gpu
