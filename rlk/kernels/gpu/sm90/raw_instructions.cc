#include "rlk/kernels/raw_instructions.h"

#include <cstddef>
#include <cstdint>

#include "rlk/kernels/gpu/sm90/raw.h"

namespace rlk {
namespace {

using gpu::sm90::Instruction;

constexpr int kTile = 64;
constexpr int kDepth = 16;

template <Instruction instruction>
void run(float* d, const float* c, const bf16* a, const bf16* b, int rows, int columns, int k) {
  const auto bytes = [](std::int64_t lines, std::int64_t length, std::size_t size) {
    return static_cast<std::size_t>(lines * length) * size;
  };
  const std::size_t sums_bytes = bytes(rows, columns, sizeof(float));
  const std::size_t a_bytes = bytes(rows, k, sizeof(bf16));
  const std::size_t b_bytes = bytes(columns, k, sizeof(bf16));
  device::Stream stream;
  const device::Buffer sums(sums_bytes), on_device_a(a_bytes), on_device_b(b_bytes);
  device::copy(sums.data(), c, sums_bytes, stream);
  device::copy(on_device_a.data(), a, a_bytes, stream);
  device::copy(on_device_b.data(), b, b_bytes, stream);
  // A thread reads each of its sums once, before it writes the same ones.
  auto* const both = static_cast<float*>(sums.data());
  gpu::sm90::run_instruction(stream, instruction, both, both,
                             static_cast<const bf16*>(on_device_a.data()),
                             static_cast<const bf16*>(on_device_b.data()), rows, columns, k);
  device::copy(d, sums.data(), sums_bytes, stream);
  stream.synchronize();
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
