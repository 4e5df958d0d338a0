#include "rlk/kernels/raw_instructions.h"

#include "rlk/kernels/gpu/raw_call.h"
#include "rlk/kernels/gpu/sm90/raw.h"

namespace rlk {
namespace {

using gpu::sm90::Instruction;

constexpr int kTile = 64;
constexpr int kDepth = 16;

template <Instruction instruction>
void run(float* d, const float* c, const bf16* a, const bf16* b, int rows, int columns, int k) {
  const auto on_device = [&](Exec& exec, float* sums, const bf16* x, const bf16* y) {
    gpu::sm90::run_instruction(exec.gpu->stream(), instruction, sums, sums, x, y, rows, columns, k);
  };
  gpu::raw_call(on_device, d, c, a, b, rows, columns, k);
}

template <Instruction instruction>
RawInstruction entry() {
  return {
      gpu::sm90::to_string(instruction), Profile::kSm90, kTile, kTile, kDepth, run<instruction>};
}

}  // namespace

std::span<const RawInstruction> raw_instructions(const device::Info& device) {
  static const RawInstruction kHopper[] = {entry<Instruction::kMmaSync>(),
                                           entry<Instruction::kWgmma>()};
  if (device.architecture == "sm_90") return kHopper;
  return {};
}

}  // namespace rlk
