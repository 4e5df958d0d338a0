// Launches with what sm_90 adds: clusters, and a start before the previous kernel has ended.
#pragma once

#include <cuda_runtime.h>

#include "rlk/kernels/gpu/gpu.h"

namespace rlk::gpu::sm90 {

inline constexpr int kMaxSharedBytes = 227 * 1024;

inline int num_processors() {
  static const int kCount = [] {
    int device = 0, count = 0;
    cudaGetDevice(&device);
    cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, device);
    return count;
  }();
  return kCount;
}

struct LaunchOptions {
  int cluster_y = 1;               // blocks of a cluster, along y
  bool overlaps_previous = false;  // the kernel calls wait_for_previous_kernel() itself
};

template <typename... P, typename... A>
void launch_cluster(Exec& exec, const Grid& grid, int threads, int shared_bytes,
                    const LaunchOptions& options, void (*kernel)(P...), const A&... arguments) {
  if (grid.empty()) return;
  const auto size_bytes = static_cast<std::size_t>(shared_bytes);
  device::allow_shared_memory(reinterpret_cast<const void*>(kernel), size_bytes);
  cudaLaunchAttribute attributes[2];
  attributes[0].id = cudaLaunchAttributeClusterDimension;
  attributes[0].val.clusterDim = {1, static_cast<unsigned>(options.cluster_y), 1};
  attributes[1].id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attributes[1].val.programmaticStreamSerializationAllowed = options.overlaps_previous ? 1 : 0;
  cudaLaunchConfig_t config{};
  config.gridDim = {static_cast<unsigned>(grid.x), static_cast<unsigned>(grid.y),
                    static_cast<unsigned>(grid.z)};
  config.blockDim = {static_cast<unsigned>(threads), 1, 1};
  config.dynamicSmemBytes = size_bytes;
  config.stream = static_cast<cudaStream_t>(exec.gpu->stream().native());
  config.attrs = attributes;
  config.numAttrs = 2;
  const cudaError_t error = cudaLaunchKernelEx(&config, kernel, arguments...);
  if (error != cudaSuccess) {
    fail(ErrorCode::kNotAvailable,
         "GPU: a launch of {} x {} x {} blocks of {} threads with {} bytes failed: {}", grid.x,
         grid.y, grid.z, threads, shared_bytes, cudaGetErrorString(error));
  }
}

}  // namespace rlk::gpu::sm90
