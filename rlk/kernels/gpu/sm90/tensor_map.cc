#include "rlk/kernels/gpu/sm90/tensor_map.h"

#include <cudaTypedefs.h>
#include <cuda_runtime_api.h>

#include "rlk/core/error.h"

namespace rlk::gpu::sm90 {
namespace {

// The driver's function, found at run time: the program also starts where there is no driver.
PFN_cuTensorMapEncodeTiled_v12000 encode_function() {
  static const auto kFunction = [] {
    void* function = nullptr;
    cudaDriverEntryPointQueryResult found{};
    const cudaError_t error = cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function,
                                                               12000, cudaEnableDefault, &found);
    if (error != cudaSuccess || found != cudaDriverEntryPointSuccess) {
      fail(ErrorCode::kNotAvailable, "GPU: the driver has no cuTensorMapEncodeTiled: {}",
           cudaGetErrorString(error));
    }
    return reinterpret_cast<PFN_cuTensorMapEncodeTiled_v12000>(function);
  }();
  return kFunction;
}

template <std::size_t kRank>
CUtensorMap encode(const void* data, const std::array<cuuint64_t, kRank>& sizes,
                   const std::array<cuuint64_t, kRank - 1>& strides,
                   const std::array<cuuint32_t, kRank>& box) {
  std::array<cuuint32_t, kRank> steps;
  steps.fill(1);
  CUtensorMap map;
  const CUresult error =
      encode_function()(&map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, kRank, const_cast<void*>(data),
                        sizes.data(), strides.data(), box.data(), steps.data(),
                        CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                        CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (error != CUDA_SUCCESS) {
    fail(ErrorCode::kNotAvailable, "GPU: cuTensorMapEncodeTiled of [{}, {}] failed: error {}",
         sizes[kRank - 1], sizes[0], static_cast<int>(error));
  }
  return map;
}

cuuint64_t bytes(std::int64_t elements) { return static_cast<cuuint64_t>(elements) * sizeof(bf16); }

}  // namespace

CUtensorMap tensor_map(const void* data, std::int64_t columns, std::int64_t rows,
                       std::int64_t row_stride, int box_rows) {
  return encode<2>(data, {static_cast<cuuint64_t>(columns), static_cast<cuuint64_t>(rows)},
                   {bytes(row_stride)}, {64, static_cast<cuuint32_t>(box_rows)});
}

CUtensorMap tensor_map_of_blocks(const void* data, std::int64_t columns, std::int64_t rows,
                                 std::int64_t row_stride, int box_rows, int box_blocks) {
  const std::int64_t blocks = columns < 64 ? 1 : columns / 64;  // of one that is not whole: unused
  return encode<3>(data, {64, static_cast<cuuint64_t>(rows), static_cast<cuuint64_t>(blocks)},
                   {bytes(row_stride), bytes(64)},
                   {64, static_cast<cuuint32_t>(box_rows), static_cast<cuuint32_t>(box_blocks)});
}

CUtensorMap tensor_map(const void* data, std::int64_t columns, std::int64_t heads,
                       std::int64_t head_stride, std::int64_t rows, std::int64_t row_stride,
                       int box_rows) {
  return encode<3>(data,
                   {static_cast<cuuint64_t>(columns), static_cast<cuuint64_t>(heads),
                    static_cast<cuuint64_t>(rows)},
                   {bytes(head_stride), bytes(row_stride)},
                   {64, 1, static_cast<cuuint32_t>(box_rows)});
}

}  // namespace rlk::gpu::sm90
