// Operands of the matrix instructions, number by number.
#pragma once

#include <cstdint>

#include "rlk/core/dtype.h"
#include "rlk/kernels/gpu/cdna/mfma.h"

namespace rlk::gpu::cdna {

// element(0 .. 3), a bf16 each; `padding` from `count` on.
template <typename Element>
RLK_DEVICE Half4 load_half4(std::int64_t count, const Element& element, short padding = 0) {
  Half4 x;
  RLK_UNROLL
  for (int i = 0; i < 4; ++i) {
    x[i] = i < count ? static_cast<short>(element(i).bits) : padding;
  }
  return x;
}

// The padding of one operand, the other's is +0: whole groups of it leave the chain's state as it
// is. A group of CDNA2 is one Half4, so `count` < 1 says that it lies behind the contract's last;
// on CDNA3 the sign of a product that is zero does not matter.
RLK_DEVICE short group_padding(std::int64_t count) { return count < 1 ? kNegativeZero : short{0}; }

}  // namespace rlk::gpu::cdna
