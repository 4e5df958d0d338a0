#include "rlk/kernels/raw_instructions.h"

#include "rlk/kernels/gpu/cdna/raw.h"
#include "rlk/kernels/gpu/raw_call.h"

namespace rlk {
namespace {

using gpu::cdna::Instruction;

template <Instruction instruction>
void run(float* d, const float* c, const bf16* a, const bf16* b, int rows, int columns, int k) {
  const auto on_device = [&](Exec& exec, float* sums, const bf16* x, const bf16* y) {
    gpu::cdna::run_instruction(exec, instruction, sums, x, y, rows, columns, k);
  };
  gpu::raw_call(on_device, d, c, a, b, rows, columns, k);
}

constexpr RawInstruction kCdna3[] = {
    {"cdna3 mfma 16x16x16", Profile::kCdna3, 16, 16, 16, run<Instruction::k16x16x16>},
    {"cdna3 mfma 32x32x8", Profile::kCdna3, 32, 32, 8, run<Instruction::k32x32x8>}};
constexpr RawInstruction kCdna2[] = {
    {"cdna2 mfma 16x16x16", Profile::kCdna2, 16, 16, 16, run<Instruction::k16x16x16>},
    {"cdna2 mfma 32x32x8", Profile::kCdna2, 32, 32, 8, run<Instruction::k32x32x8>}};

}  // namespace

std::span<const RawInstruction> raw_instructions(const device::Info& device) {
  if (device.architecture.starts_with("gfx942")) return kCdna3;
  if (device.architecture.starts_with("gfx90a")) return kCdna2;
  return {};
}

}  // namespace rlk
