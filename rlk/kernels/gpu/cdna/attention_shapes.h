// The matrix instructions as attention uses them: scores are held with keys as rows and queries as
// columns (or the other way round for the gradients of keys). A lane has one column, and of the
// rows runs of four: the sums of one product lie where the next one takes its right operand.
#pragma once

#include "rlk/kernels/gpu/cdna/mfma.h"
#include "rlk/kernels/gpu/cdna/pairs.h"

// Before RLK_KERNEL: so many waves share a SIMD, which bounds a wave's registers to 512 / n.
#if defined(__HIP__)
#define RLK_WAVES_PER_SIMD(n) __attribute__((amdgpu_waves_per_eu(n, n)))
#else
#define RLK_WAVES_PER_SIMD(n)
#endif

namespace rlk::gpu::cdna {

// x, of which the compiler knows nothing: what is computed from it stays where it is used, instead
// of waiting in registers outside of a loop.
RLK_DEVICE int opaque(int x) {
#if defined(__HIP_DEVICE_COMPILE__)
  asm volatile("" : "+v"(x));
#endif
  return x;
}

// The compiler moves nothing across: a bound on what is in registers at the same time.
RLK_DEVICE void stay_in_order() {
#if defined(__HIP_DEVICE_COMPILE__)
  __builtin_amdgcn_sched_barrier(0);
#endif
}

// kSums sums of a lane in a tile of kSize x kSize: sum i is column(), row(i). An instruction takes
// kDepth values of k; those of a lane's operands are k = 4 * group() + {0..3}. So sums 4 r .. 4 r +
// 3, rounded, are the right operand of kDepth rows of the tile from kDepth * r on.
struct Shape16 {
  using Sums = Float4;
  static constexpr int kSize = 16, kDepth = 16, kSums = 4;
  static constexpr int kLanes = 4;  // of the contract's 16 lanes of l, row(i) mod 16: i % kLanes

  RLK_DEVICE static int column() { return thread() % 16; }
  RLK_DEVICE static int group() { return thread() % kWave / 16; }
  static constexpr int offset(int i) { return i; }
  RLK_DEVICE static int row(int i) { return offset(i) + 4 * group(); }
  RLK_DEVICE static Sums multiply(Half4 a, Half4 b, Sums c) { return mfma_16x16x16(a, b, c); }

  // The largest of a column.
  RLK_DEVICE static float max(float x) {
    x = maximum(x, shuffle_xor(x, 16));
    return maximum(x, shuffle_xor(x, 32));
  }
  // The neighbour tree of a column's 16 lanes.
  RLK_DEVICE static float tree(const float (&l)[kLanes]) {
    float sum = (l[0] + l[1]) + (l[2] + l[3]);
    sum = sum + shuffle_xor(sum, 16);
    return sum + shuffle_xor(sum, 32) + 0.0f;
  }
};

struct Shape32 {
  using Sums = Float16;
  static constexpr int kSize = 32, kDepth = 8, kSums = 16;
  static constexpr int kLanes = 8;

  RLK_DEVICE static int column() { return thread() % 32; }
  RLK_DEVICE static int group() { return thread() % kWave / 32; }
  static constexpr int offset(int i) { return 8 * (i / 4) + i % 4; }
  RLK_DEVICE static int row(int i) { return offset(i) + 4 * group(); }
  RLK_DEVICE static Sums multiply(Half4 a, Half4 b, Sums c) { return mfma_32x32x8(a, b, c); }

  RLK_DEVICE static float max(float x) { return maximum(x, shuffle_xor(x, 32)); }
  RLK_DEVICE static float tree(const float (&l)[kLanes]) {
    float low = (l[0] + l[1]) + (l[2] + l[3]);
    float high = (l[4] + l[5]) + (l[6] + l[7]);
    low = low + shuffle_xor(low, 32);
    high = high + shuffle_xor(high, 32);
    return low + high + 0.0f;
  }
};

// use(i, load(i)) for i in [0, kCount), each loaded four uses ahead: what is in flight is bounded.
template <int kCount, typename Load, typename Use>
RLK_DEVICE void load_ahead(const Load& load, const Use& use) {
  constexpr int kAhead = kCount < 4 ? kCount : 4;
  decltype(load(0)) loaded[kAhead];
  RLK_UNROLL
  for (int i = 0; i < kAhead; ++i) loaded[i] = load(i);
  RLK_UNROLL
  for (int i = 0; i < kCount; ++i) {
    stay_in_order();
    use(i, loaded[i % kAhead]);
    if (i + kAhead < kCount) loaded[i % kAhead] = load(i + kAhead);
  }
  stay_in_order();
}

RLK_DEVICE Half4 half4_of(const std::uint32_t (&word)[2]) {
  return std::bit_cast<Half4>(word[0] | std::uint64_t{word[1]} << 32);
}

}  // namespace rlk::gpu::cdna
