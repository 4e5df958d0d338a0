// The matrix instructions of rlk/kernels/gpu/cdna/mfma.h, by the model of Options::profile.
#include "rlk/kernels/gpu/cdna/mfma.h"
#include "rlk/numerics/mma/cdna2.h"
#include "rlk/numerics/mma/cdna3.h"
#include "tests/gpu/emulation/memory.h"

namespace rlk::gpu::cdna {
namespace {

using Group = float (*)(float, const bf16*, const bf16*);

struct Operands {
  Half4 a, b;
};

// kSize rows and columns, kDepth values of k. Lane l has k 4 * (l / kSize) + i of row and column
// l % kSize.
template <int kSize, int kDepth, typename Sums>
Sums multiply(Half4 a, Half4 b, const Sums& c, const char* kind) {
  const emulation::Pause pause;
  const Operands mine{a, b};
  const emulation::Wave wave = emulation::exchange(&mine, sizeof mine, kind);
  if (~wave.present() != 0) emulation::stop("needs a wave of 64 threads", nullptr);
  const bool cdna2 = emulation::options().profile == Profile::kCdna2;
  const int width = cdna2 ? numerics::mma::kCdna2Group : numerics::mma::kCdna3Group;
  const Group group = cdna2 ? numerics::mma::cdna2_group : numerics::mma::cdna3_group;
  const auto number = [](short x) { return bf16{static_cast<std::uint16_t>(x)}; };
  Operands all[64];
  for (int l = 0; l < 64; ++l) all[l] = wave.payload<Operands>(l);
  const int lane = emulation::lane();
  bf16 x[kDepth], y[kDepth];
  for (int k = 0; k < kDepth; ++k) y[k] = number(all[k / 4 * kSize + lane % kSize].b[k % 4]);
  Sums d;
  for (int i = 0; i < kSize * kSize / 64; ++i) {
    const int row = kSize == 16 ? row_16(lane, i) : row_32(lane, i);
    for (int k = 0; k < kDepth; ++k) x[k] = number(all[k / 4 * kSize + row].a[k % 4]);
    float sum = c[i];
    for (int k = 0; k < kDepth; k += width) sum = group(sum, x + k, y + k);
    d[i] = sum;
  }
  return d;
}

}  // namespace

Float4 mfma_16x16x16(Half4 a, Half4 b, Float4 c) {
  return multiply<16, 16>(a, b, c, "mfma_16x16x16");
}

Float16 mfma_32x32x8(Half4 a, Half4 b, Float16 c) {
  return multiply<32, 8>(a, b, c, "mfma_32x32x8");
}

}  // namespace rlk::gpu::cdna
