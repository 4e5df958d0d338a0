// Profile sm90 on the emulator: mma.sync by its model, and for every shape the kernels that are
// made of it alone.
#include "rlk/kernels/gpu/sm90/attention.h"
#include "rlk/kernels/gpu/sm90/gemm.h"
#include "rlk/kernels/gpu/sm90/linear_logp_tiles.h"
#include "rlk/kernels/gpu/sm90/mma_sync.h"
#include "rlk/kernels/gpu/sm90/table.h"
#include "rlk/kernels/gpu/sm90/vendor_gemm.h"
#include "rlk/numerics/mma/hopper.h"
#include "tests/gpu/emulation/memory.h"

namespace rlk::gpu::sm90 {
namespace {

struct Operands {
  std::uint32_t a[4];
  std::uint32_t b[2];
};

bf16 half_of(std::uint32_t pair, int k) {
  return bf16{static_cast<std::uint16_t>(k % 2 == 0 ? pair : pair >> 16)};
}

}  // namespace

void mma_sync(float (&d)[4], const std::uint32_t (&a)[4], const std::uint32_t* b) {
  const emulation::Pause pause;
  const Operands mine{{a[0], a[1], a[2], a[3]}, {b[0], b[1]}};
  const emulation::Wave wave = emulation::exchange(&mine, sizeof mine, "mma_sync");
  Operands warp[32];
  for (int l = 0; l < 32; ++l) warp[l] = wave.payload<Operands>(l);
  for (int i = 0; i < 4; ++i) {
    const int row = emulation::lane() / 4 + i / 2 * 8;
    const int column = 2 * (emulation::lane() % 4) + i % 2;
    bf16 x[16], y[16];
    for (int k = 0; k < 16; ++k) {
      x[k] = half_of(warp[row % 8 * 4 + k % 8 / 2].a[row / 8 + k / 8 * 2], k);
      y[k] = half_of(warp[column * 4 + k % 8 / 2].b[k / 8], k);
    }
    d[i] = numerics::mma::hopper_group(d[i], x, y);
  }
}

void pack_weight(Exec&, const PackWeightArgs& args) {
  *args.packed = PackedWeight{nullptr, args.w.shape(0), args.w.shape(1), nullptr, args.w.dtype};
}

void gemm(Exec& exec, const GemmArgs& args) {
  if (!vendor_gemm(exec, args)) gemm_any(exec, args);
}

void gemm_backward_weight_in_window(Exec& exec, const GemmBackwardWeightArgs& args,
                                    const TokenWindow& window) {
  gemm_backward_weight_any(exec, args, window);
}

void gemm_backward_weight(Exec& exec, const GemmBackwardWeightArgs& args) {
  const std::int64_t num_tokens = args.dy.shape(0);
  gemm_backward_weight_in_window(exec, args, {0, num_tokens, num_tokens});
}

bool linear_logp_has_tiles(const Exec&, const LinearLogpArgs&) { return false; }
bool linear_logp_backward_has_tiles(const Exec&, const LinearLogpBackwardArgs&) { return false; }
void linear_logp_tiles(Exec&, const LinearLogpArgs&) { RLK_ASSERT(false); }
void linear_logp_backward_tiles(Exec&, const LinearLogpBackwardArgs&) { RLK_ASSERT(false); }

bool attention_prefill(Exec&, const AttentionArgs&) { return false; }
bool attention_decode(Exec&, const AttentionArgs&) { return false; }
bool attention_backward_tiles(Exec&, const AttentionBackwardArgs&) { return false; }

}  // namespace rlk::gpu::sm90
