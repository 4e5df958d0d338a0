// The raw matrix instructions that `rlk probe` runs, on the emulator: the CPU model of the chip.
#include <gtest/gtest.h>

#include "rlk/kernels/gpu/gpu.h"
#include "rlk/kernels/raw_instructions.h"
#include "rlk/numerics/mma/mac.h"
#include "rlk/numerics/mma/open_points.h"
#include "tests/numerics/mma/data.h"

namespace rlk::test {
namespace {

using numerics::Strided;
using numerics::mma::Family;
using numerics::mma::Inputs;

struct Chip {
  const char* architecture;
  Profile profile;
};

std::span<const RawInstruction> instructions_of(const char* architecture) {
  device::Info info;
  info.architecture = architecture;
  return raw_instructions(info);
}

std::vector<float> on_device(const RawInstruction& instruction, const Inputs& in) {
  std::vector<float> d(in.c.size());
  instruction.run(d.data(), in.c.data(), in.a.data(), in.b.data(), static_cast<int>(in.rows),
                  static_cast<int>(in.columns), static_cast<int>(in.k));
  return d;
}

TEST(HipRawInvariance, EqualsTheModelOfTheChip) {
  for (const Chip& chip : {Chip{"gfx942", Profile::kCdna3}, {"gfx90a", Profile::kCdna2}}) {
    const emulation::Scope scope({.wave = 64, .seed = 31, .profile = chip.profile});
    const auto instructions = instructions_of(chip.architecture);
    ASSERT_EQ(instructions.size(), 2u);
    for (const RawInstruction& instruction : instructions) {
      EXPECT_EQ(instruction.profile, chip.profile);
      for (const Family family : {Family::kNormal, Family::kAllBits, Family::kSubnormals}) {
        const Inputs in(family, 3, 64, 32, 48);
        const std::vector<float> want = numerics::with_mac(chip.profile, [&](auto mac) {
          return in.each([&](float c, const bf16* a, const bf16* b) {
            return numerics::chain(mac, c, Strided{a}, Strided{b}, 0, in.k);
          });
        });
        EXPECT_EQ(numerics::mma::count_different(on_device(instruction, in), want), 0)
            << instruction.name << " " << to_string(family);
      }
    }
  }
}

TEST(HipRawTwin, TheOtherChipGivesOtherBits) {
  const emulation::Scope scope({.wave = 64, .profile = Profile::kCdna2});
  const Inputs in(Family::kNormal, 3, 32, 32, 48);
  const auto instructions = instructions_of("gfx942");
  const std::vector<float> cdna3 = in.each([&](float c, const bf16* a, const bf16* b) {
    return numerics::chain(numerics::Cdna3Mac(), c, Strided{a}, Strided{b}, 0, in.k);
  });
  EXPECT_GT(numerics::mma::count_different(on_device(instructions[1], in), cdna3), 0);
}

}  // namespace
}  // namespace rlk::test
