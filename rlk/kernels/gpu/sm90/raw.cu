#include "rlk/kernels/gpu/sm90/raw.h"

#include <cuda_runtime.h>

#include "rlk/core/error.h"
#include "rlk/kernels/gpu/sm90/instructions.h"

namespace rlk::gpu::sm90 {
namespace {

constexpr int kTile = 64;

// Where the accumulators of a thread lie, for both instructions: warp w of the block holds rows
// 16 w .. 16 w + 15, and acc[4 j + 2 h + e] is row lane / 4 + 8 h, column 8 j + 2 (lane % 4) + e.
template <typename Visit>
RLK_DEVICE void for_each_sum(int columns, const Visit& visit) {
  const int lane = thread() % 32;
  const int row0 = static_cast<int>(block_x()) * kTile + thread() / 32 * 16 + lane / 4;
  const int column0 = static_cast<int>(block_y()) * kTile + 2 * (lane % 4);
  RLK_UNROLL
  for (int i = 0; i < kTile / 2; ++i) {
    const int row = row0 + i / 2 % 2 * 8;
    const int column = column0 + i / 4 * 8 + i % 2;
    visit(i, static_cast<std::int64_t>(row) * columns + column);
  }
}

RLK_KERNEL(128)
mma_sync_kernel(float* d, const float* c, const bf16* a, const bf16* b, int columns, int k) {
  float acc[kTile / 2];
  for_each_sum(columns, [&](int i, std::int64_t at) { acc[i] = c[at]; });
  const int g = thread() % 32 / 4;
  const int q = thread() % 4;
  const bf16* const rows = a + (block_x() * kTile + thread() / 32 * 16) * k;
  const auto pair = [&](const bf16* x, int row, int at) {
    return *reinterpret_cast<const std::uint32_t*>(x + static_cast<std::int64_t>(row) * k + at);
  };
  for (int x = 2 * q; x < k; x += 16) {
    const std::uint32_t left[4] = {pair(rows, g, x), pair(rows, g + 8, x), pair(rows, g, x + 8),
                                   pair(rows, g + 8, x + 8)};
    RLK_UNROLL
    for (int j = 0; j < kTile / 8; ++j) {
      const bf16* const column = b + (block_y() * kTile + j * 8) * k;
      const std::uint32_t right[2] = {pair(column, g, x), pair(column, g, x + 8)};
      float sums[4] = {acc[4 * j], acc[4 * j + 1], acc[4 * j + 2], acc[4 * j + 3]};
      mma_sync(sums, left, right);
      RLK_UNROLL
      for (int i = 0; i < 4; ++i) acc[4 * j + i] = sums[i];
    }
  }
  for_each_sum(columns, [&](int i, std::int64_t at) { d[at] = acc[i]; });
}

RLK_KERNEL(128)
wgmma_kernel(float* d, const float* c, const bf16* a, const bf16* b, int columns, int k) {
  RLK_SHARED(bf16, operands, 2 * kTile * 64 + 512);
  const std::uint32_t base = swizzle_base(operands);
  bf16* const shared_a = operands + (base - shared_address(operands)) / sizeof(bf16);
  bf16* const shared_b = shared_a + kTile * 64;
  float acc[kTile / 2];
  for_each_sum(columns, [&](int i, std::int64_t at) { acc[i] = c[at]; });
  for (int x = 0; x < k; x += 16) {
    // Row r of an operand has its 16-byte chunk i at chunk i ^ (r % 8).
    barrier();
    for (int i = thread(); i < kTile * 16; i += 128) {
      const int row = i / 16;
      const int column = i % 16;
      const int to = row * 64 + ((column / 8 ^ row % 8) * 8) + column % 8;
      shared_a[to] = a[(block_x() * kTile + row) * k + x + column];
      shared_b[to] = b[(block_y() * kTile + row) * k + x + column];
    }
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    barrier();
    wgmma_fence();
    Wgmma<kTile, false>::run(acc, k_major(base), k_major(base + kTile * 128));
    wgmma_commit();
    wgmma_wait<0>();
  }
  for_each_sum(columns, [&](int i, std::int64_t at) { d[at] = acc[i]; });
}

}  // namespace

const char* to_string(Instruction instruction) {
  return instruction == Instruction::kMmaSync ? "sm90 mma.sync m16n8k16" : "sm90 wgmma m64n64k16";
}

void run_instruction(device::Stream& stream, Instruction instruction, float* d, const float* c,
                     const bf16* a, const bf16* b, int rows, int columns, int k) {
  RLK_ASSERT(rows % kTile == 0 && columns % kTile == 0 && k % 16 == 0);
  const dim3 grid(static_cast<unsigned>(rows / kTile), static_cast<unsigned>(columns / kTile));
  const auto kernel = instruction == Instruction::kMmaSync ? mma_sync_kernel : wgmma_kernel;
  kernel<<<grid, 128, 0, static_cast<cudaStream_t>(stream.native())>>>(d, c, a, b, columns, k);
  const cudaError_t error = cudaGetLastError();
  if (error != cudaSuccess) {
    fail(ErrorCode::kNotAvailable, "GPU: launch of {} failed: {}", to_string(instruction),
         cudaGetErrorString(error));
  }
}

}  // namespace rlk::gpu::sm90
