// Profile sm90 on the emulator: mma.sync by its model, and for every shape the kernels that are
// made of it alone.
#include "rlk/kernels/gpu/sm90/gemm.h"
#include "rlk/kernels/gpu/sm90/mma_sync.h"
#include "rlk/kernels/gpu/sm90/table.h"
#include "rlk/numerics/mma/hopper.h"

namespace rlk::gpu::sm90 {
namespace {

struct Operands {
  std::uint32_t a[4];
  std::uint32_t b[2];
};
Operands operands[1024];  // of the block's threads

bf16 half_of(std::uint32_t pair, int k) {
  return bf16{static_cast<std::uint16_t>(k % 2 == 0 ? pair : pair >> 16)};
}

}  // namespace

void mma_sync(float (&d)[4], const std::uint32_t (&a)[4], const std::uint32_t* b) {
  const int lane = thread() % 32;
  const Operands* const warp = operands + (thread() - lane);
  operands[thread()] = {{a[0], a[1], a[2], a[3]}, {b[0], b[1]}};
  shuffle_xor(0.0f, 0);  // all have come
  for (int i = 0; i < 4; ++i) {
    const int row = lane / 4 + i / 2 * 8;
    const int column = 2 * (lane % 4) + i % 2;
    bf16 x[16], y[16];
    for (int k = 0; k < 16; ++k) {
      x[k] = half_of(warp[row % 8 * 4 + k % 8 / 2].a[row / 8 + k / 8 * 2], k);
      y[k] = half_of(warp[column * 4 + k % 8 / 2].b[k / 8], k);
    }
    d[i] = numerics::mma::hopper_group(d[i], x, y);
  }
  shuffle_xor(0.0f, 0);  // all have read
}

void pack_weight(Exec&, const PackWeightArgs& args) {
  *args.packed = PackedWeight{nullptr, args.w.shape(0), args.w.shape(1), nullptr, args.w.dtype};
}

void gemm(Exec& exec, const GemmArgs& args) { gemm_any(exec, args); }

// Its kernels need the copy engine's headers.
void attention(Exec&, const AttentionArgs&) { RLK_ASSERT(false); }

}  // namespace rlk::gpu::sm90
