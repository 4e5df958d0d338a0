// The Hopper model (hopper.h) for whole tiles of a product, with vectors: many columns at once, the
// bits of the scalar model for every input. For replaying profile sm90 on a CPU.
//
//   const HopperIsa& isa = hopper_isa();
//   pack_a(a_packed, ...);  pack_b(isa, b_packed, ...);
//   mma_columns(isa, acc, acc_stride, a_packed, b_packed, rows, k);
#pragma once

#include <cstdint>
#include <vector>

#include "rlk/core/dtype.h"
#include "rlk/numerics/mma/hopper_isa.h"

namespace rlk::numerics::mma {

// The fastest one this CPU can run, and all that it can. The last is always the scalar model.
const HopperIsa& hopper_isa();
const std::vector<const HopperIsa*>& hopper_isas();

// K rounded up to whole groups: the depth of packed operands, padded with +0.
inline std::int64_t hopper_depth(std::int64_t k) {
  return (k + kHopperWidth - 1) / kHopperWidth * kHopperWidth;
}

// packed [rows, hopper_depth(k)] from a[m * stride_m + i * stride_k].
void pack_a(HopperA* packed, const bf16* a, std::int64_t stride_m, std::int64_t stride_k,
            std::int64_t rows, std::int64_t k);

// Words of a packed panel of isa.panel columns.
inline std::int64_t packed_b_size(const HopperIsa& isa, std::int64_t k) {
  return hopper_depth(k) * 2 * isa.panel;
}

// One panel from b[n * stride_n + i * stride_k]. columns <= isa.panel; those that miss are +0.
void pack_b(const HopperIsa& isa, std::uint16_t* packed, const bf16* b, std::int64_t stride_n,
            std::int64_t stride_k, std::int64_t columns, std::int64_t k);

// acc[m * acc_stride + n], m in [0, rows), n in [0, isa.panel): each goes on with its chain through
// all groups of the packed operands. Add (+0) where a chain is complete.
void mma_columns(const HopperIsa& isa, float* acc, std::int64_t acc_stride, const HopperA* a,
                 const std::uint16_t* b, std::int64_t rows, std::int64_t k);

}  // namespace rlk::numerics::mma
