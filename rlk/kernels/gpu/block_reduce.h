// One value out of one per thread of a block, for merges whose order cannot be seen (integers,
// maxima).
#pragma once

#include <type_traits>

#include "rlk/kernels/gpu/gpu.h"

namespace rlk::gpu {

// Shared memory for reductions, one after the other, of values of up to kMaxReduceBytes.
inline constexpr int kMaxReduceBytes = 80;
struct alignas(16) ReduceBytes {
  unsigned char bytes[kMaxReduceBytes];
};

// All kThreads threads call it, kThreads a power of two; each gets the result.
template <int kThreads, typename T, typename Merge>
RLK_DEVICE T block_reduce(const T& value, ReduceBytes* shared, const Merge& merge) {
  static_assert(std::is_trivially_copyable_v<T> && sizeof(T) <= sizeof(ReduceBytes));
  T* const values = reinterpret_cast<T*>(shared);
  values[thread()] = value;
  barrier();
  for (int n = kThreads / 2; n > 0; n /= 2) {
    if (thread() < n) values[thread()] = merge(values[thread()], values[thread() + n]);
    barrier();
  }
  const T result = values[0];
  barrier();
  return result;
}

}  // namespace rlk::gpu
