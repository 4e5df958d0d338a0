// The lane sum of the contract for rows of a matrix. Every row belongs to up to 32 threads; a
// thread holds kLanes neighbouring lanes, so the first levels of the neighbour tree are its own and
// the others are exchanges with thread ^ 1, ^ 2, .. The warp size never enters.
#pragma once

#include <bit>

#include "rlk/kernels/gpu/views.h"
#include "rlk/numerics/ieee.h"

namespace rlk::gpu {

inline constexpr int kLaneThreads = 128;  // of a block

// How many of the contract's lanes a row of n needs: the others hold +0, so their sums change
// nothing.
inline int used_lanes(int lanes, std::int64_t n) {
  const auto reached = static_cast<std::int64_t>(std::bit_ceil(static_cast<std::uint64_t>(n)));
  return reached < lanes ? static_cast<int>(reached) : lanes;
}

// Calls body.operator()<kLanes>(): the lanes of one thread. A row has 32 threads at most.
template <typename Body>
void with_lanes(int lanes, const Body& body) {
  switch (lanes <= 8 ? lanes : lanes <= 256 ? 8 : lanes / 32) {
    case 1: return body.template operator()<1>();
    case 2: return body.template operator()<2>();
    case 4: return body.template operator()<4>();
    case 8: return body.template operator()<8>();
    case 16: return body.template operator()<16>();
    case 32: return body.template operator()<32>();
  }
  RLK_ASSERT(false);
}

// Blocks for `rows` rows.
inline Grid lane_grid(std::int64_t rows, int lanes, int lanes_per_thread) {
  const int rows_per_block = kLaneThreads / (lanes / lanes_per_thread);
  return {(rows + rows_per_block - 1) / rows_per_block};
}

// Calls body.operator()<kLanes, kHeld>(): with_lanes, and how many packs of a row of n a thread
// should hold in registers between the sum and the use of it; none where the row is not `whole`
// packs. Where it is more than one, every thread has that many.
template <typename T, typename Body>
void with_held(int lanes, std::int64_t n, bool whole, const Body& body) {
  if (!whole || lanes < 8 || lanes > 256) {
    with_lanes(lanes, [&]<int kLanes>() { body.template operator()<kLanes, 0>(); });
  } else if (n < 4 * lanes) {
    body.template operator()<8, 1>();
  } else if (n < 8 * lanes) {
    body.template operator()<8, 4>();
  } else if (n < 16 * lanes || sizeof(T) > 2) {
    body.template operator()<8, 8>();
  } else {
    body.template operator()<8, 16>();
  }
}

template <int kLanes>
struct LaneRow {
  int lanes;
  int part;          // which of the row's threads this is
  std::int64_t row;  // may lie beyond the last row: such a thread must stay for the exchanges

  RLK_DEVICE static LaneRow make(int lanes) {
    const int parts = lanes / kLanes;
    return {lanes, thread() % parts, block_x() * (kLaneThreads / parts) + thread() / parts};
  }

  // Calls visit(k) for the packs of kLanes elements of a row of n that are this thread's, but for
  // the first kSkipped.
  template <int kSkipped = 0, typename Visit>
  RLK_DEVICE void for_each_pack(std::int64_t n, const Visit& visit) const {
    for (std::int64_t k = start(kSkipped); k < n; k += lanes) visit(k);
  }

  // Calls visit(k, p) for those first ones, p known to the compiler: they can be held in registers.
  template <int kHeld, typename Visit>
  RLK_DEVICE void for_each_held(std::int64_t n, const Visit& visit) const {
    if (n == 0) return;  // a thread without a row
    RLK_UNROLL
    for (int p = 0; p < kHeld; ++p) {
      const int k = start(p);
      if (kHeld > 1 || k < n) visit(k, p);
    }
  }

  RLK_DEVICE int start(int pack) const { return pack * lanes + part * kLanes; }

  // The neighbour tree over all lanes; the result is the same in each of the row's threads.
  RLK_DEVICE float tree(float (&lane)[kLanes]) const {
    for (int step = 1; step < kLanes; step *= 2) {
      for (int i = 0; i < kLanes; i += 2 * step) lane[i] = lane[i] + lane[i + step];
    }
    float sum = lane[0];
    for (int mask = 1; mask < lanes / kLanes; mask *= 2) sum = sum + shuffle_xor(sum, mask);
    return sum + 0.0f;
  }
};

}  // namespace rlk::gpu
