#include "rlk/kernels/gpu/cdna/raw.h"

#include <type_traits>

#include "rlk/kernels/gpu/cdna/square.h"

namespace rlk::gpu::cdna {
namespace {

// A wave for kSize x kSize sums.
template <int kSize>
RLK_KERNEL(kWave)
raw_kernel(float* sums, const bf16* a, const bf16* b, int columns, int k) {
  constexpr bool kSmall = kSize == 16;
  constexpr int kDepth = kSmall ? 16 : 8;
  using Sums = std::conditional_t<kSmall, Float4, Float16>;
  const int lane = thread();
  const std::int64_t row0 = block_x() * kSize;
  const std::int64_t column0 = block_y() * kSize;
  const auto at = [&](int i) {
    const int row = kSmall ? row_16(lane, i) : row_32(lane, i);
    return (row0 + row) * columns + column0 + lane % kSize;
  };
  Sums acc;
  for (int i = 0; i < kSize * kSize / kWave; ++i) acc[i] = sums[at(i)];
  const bf16* const left = a + (row0 + lane % kSize) * k + lane / kSize * 4;
  const bf16* const right = b + (column0 + lane % kSize) * k + lane / kSize * 4;
  for (int x = 0; x < k; x += kDepth) {
    const Half4 p = load_half4([&](int i) { return left[x + i]; });
    const Half4 q = load_half4([&](int i) { return right[x + i]; });
    if constexpr (kSmall) {
      acc = mfma_16x16x16(p, q, acc);
    } else {
      acc = mfma_32x32x8(p, q, acc);
    }
  }
  for (int i = 0; i < kSize * kSize / kWave; ++i) sums[at(i)] = acc[i];
}

}  // namespace

void run_instruction(Exec& exec, Instruction instruction, float* sums, const bf16* a, const bf16* b,
                     int rows, int columns, int k) {
  const int size = instruction == Instruction::k16x16x16 ? 16 : 32;
  RLK_ASSERT(rows % size == 0 && columns % size == 0 && k % (size == 16 ? 16 : 8) == 0);
  const auto kernel = size == 16 ? raw_kernel<16> : raw_kernel<32>;
  launch(exec, {rows / size, columns / size}, kWave, 0, kernel, sums, a, b, columns, k);
}

}  // namespace rlk::gpu::cdna
