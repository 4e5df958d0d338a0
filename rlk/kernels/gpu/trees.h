// The neighbour tree over sums that become known one after the other: sum i is added to its left
// neighbour as soon as both are there, so log2 of their number wait at most.
#pragma once

#include "rlk/kernels/gpu/gpu.h"

namespace rlk::gpu {

inline constexpr int kMaxTreeLevels = 6;  // 64 leaves, the contract's largest number

// N trees side by side, of up to 2^kLevels sums.
template <int N, int kLevels>
class TreeStack {
 public:
  RLK_DEVICE void push(const float (&sum)[N]) {
    float merged[N];
    for (int i = 0; i < N; ++i) merged[i] = sum[i];
    int level = 0;
    for (; (count_ >> level & 1) != 0; ++level) {
      for (int i = 0; i < N; ++i) merged[i] = waiting_[level][i] + merged[i];
    }
    for (int i = 0; i < N; ++i) waiting_[level][i] = merged[i];
    ++count_;
    level_ = level;
  }

  // Of tree i, after a power of two of sums.
  RLK_DEVICE float result(int i) const { return waiting_[level_][i] + 0.0f; }

 private:
  float waiting_[kLevels + 1][N];
  int count_ = 0;
  int level_ = 0;
};

// The same for few or large T (float, or a vector of floats): every index is known when the kernel
// is compiled, so what waits stays in registers.
template <typename T, int N, int kLevels>
class TreeInRegisters {
 public:
  // Adds the sums to those that wait for them. After a power of two of calls they are the trees,
  // but for + (+0).
  RLK_DEVICE void merge(T (&sums)[N]) {
    merge_from<0>(sums);
    ++count_;
  }

 private:
  template <int level>
  RLK_DEVICE void merge_from(T (&sums)[N]) {
    if constexpr (level < kLevels) {
      if ((count_ >> level & 1) == 0) {
        RLK_UNROLL
        for (int i = 0; i < N; ++i) waiting_[level][i] = sums[i];
      } else {
        RLK_UNROLL
        for (int i = 0; i < N; ++i) sums[i] = waiting_[level][i] + sums[i];
        merge_from<level + 1>(sums);
      }
    }
  }

  T waiting_[kLevels == 0 ? 1 : kLevels][N];
  int count_ = 0;
};

}  // namespace rlk::gpu
