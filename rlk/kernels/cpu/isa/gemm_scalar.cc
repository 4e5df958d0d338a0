// Matrix products without vector instructions.
#include <cstdint>

#include "rlk/kernels/cpu/gemm_isa.h"

namespace {

#include "rlk/kernels/cpu/isa/vec_scalar.h"
#include "rlk/kernels/cpu/isa/vec_storage.h"

constexpr int kMaxRows = 4;
constexpr int kDirectRows = 4;
constexpr int panels_at_once(int) { return 1; }

inline void transpose(F (&v)[kWidth]) {
  for (int i = 0; i < kWidth; ++i) {
    for (int j = 0; j < i; ++j) {
      const float t = v[i].v[j];
      v[i].v[j] = v[j].v[i];
      v[j].v[i] = t;
    }
  }
}

inline void store_bf16_pair(std::uint16_t* p, F x, F y) {
  store_bf16(p, x);
  store_bf16(p + kWidth, y);
}

#include "rlk/kernels/cpu/isa/gemm_body.h"

}  // namespace

const rlk::cpu::GemmIsa rlk::cpu::kGemmScalar = kTable;
