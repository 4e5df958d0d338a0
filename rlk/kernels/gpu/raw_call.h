// A raw instruction (raw_instructions.h) on matrices in host memory.
#pragma once

#include <cstddef>
#include <cstdint>

#include "rlk/core/dtype.h"
#include "rlk/device/device.h"
#include "rlk/kernels/exec.h"

namespace rlk::gpu {

// Calls run(exec, sums, a, b) with copies in device memory; `sums` holds c and takes d, for which
// a thread reads each of its sums once, before it writes the same ones.
template <typename Run>
void raw_call(const Run& run, float* d, const float* c, const bf16* a, const bf16* b, int rows,
              int columns, int k) {
  const auto bytes = [](std::int64_t lines, std::int64_t length, std::size_t size) {
    return static_cast<std::size_t>(lines * length) * size;
  };
  const std::size_t sums_bytes = bytes(rows, columns, sizeof(float));
  const std::size_t a_bytes = bytes(rows, k, sizeof(bf16));
  const std::size_t b_bytes = bytes(columns, k, sizeof(bf16));
  ThreadPool pool(1);
  rlk::Workspace workspace;
  const Contract contract;
  Fault fault;
  device::Queue queue;
  Exec exec{pool, workspace, contract, fault, &queue};
  device::Stream& stream = queue.stream();
  const device::Buffer sums(sums_bytes), on_device_a(a_bytes), on_device_b(b_bytes);
  device::copy(sums.data(), c, sums_bytes, stream);
  device::copy(on_device_a.data(), a, a_bytes, stream);
  device::copy(on_device_b.data(), b, b_bytes, stream);
  run(exec, static_cast<float*>(sums.data()), static_cast<const bf16*>(on_device_a.data()),
      static_cast<const bf16*>(on_device_b.data()));
  device::copy(d, sums.data(), sums_bytes, stream);
  stream.synchronize();
}

}  // namespace rlk::gpu
