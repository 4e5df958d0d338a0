// planted caught|right OP PROFILE WAVE: conformance of one operator on the emulator, in a program
// with a bug planted in one of its kernels, or without. Exit code 0: the bug was caught, or the
// operator is right.
#include <string_view>

#include <fmt/format.h>

#include "rlk/kernels/gpu/gpu.h"
#include "rlk/kernels/gpu/gpu_kernels.h"
#include "rlk/ops/context.h"
#include "tests/gpu/emulation/memory.h"
#include "tests/hip_emulation/conform_all.h"

namespace {

// Named here, all of them, so that the linker takes the emulator's: the build has others, without
// kernels, in a library that it looks at later.
const rlk::KernelTable& table_of(rlk::Profile profile) {
  for (const auto table : {rlk::gpu::portable_kernels, rlk::gpu::sm90_kernels,
                           rlk::gpu::cdna3_kernels, rlk::gpu::cdna2_kernels}) {
    if (table().runs(profile)) return rlk::on_host_memory(table());
  }
  throw rlk::emulation::Violation("no table");
}

// What was found; "" if nothing.
std::string found(rlk::Op op, rlk::Profile profile) {
  try {
    return rlk::test::conform_one(table_of(profile), profile, op).reason;
  } catch (const rlk::emulation::Violation& e) {
    return e.what();
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 5) return 2;
  const bool expect_caught = argv[1] == std::string_view("caught");
  const rlk::Op op = rlk::parse_op(argv[2]);
  const rlk::Profile profile = rlk::parse_profile(argv[3]);
  bool as_expected = true;
  for (const std::uint64_t seed : {1, 2}) {
    const rlk::emulation::Scope scope(
        {.wave = argv[4] == std::string_view("64") ? 64 : 32, .seed = seed, .profile = profile});
    const std::string what = found(op, profile);
    fmt::print("seed {}: {}\n", seed, what.empty() ? "nothing found" : what);
    as_expected = as_expected && what.empty() != expect_caught;
    if (rlk::emulation::kChecked) break;  // every order finds it
  }
  return as_expected ? 0 : 1;
}
