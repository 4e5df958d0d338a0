// Matrix instructions of a GPU as they are, without an operator around them: for comparing a chip
// with the CPU model of its profile.
#pragma once

#include <span>

#include "rlk/contract/contract.h"
#include "rlk/core/dtype.h"
#include "rlk/device/device.h"

namespace rlk {

struct RawInstruction {
  const char* name;      // as in files of results, the profile first: "sm90 wgmma m64n64k16"
  Profile profile;       // whose model it should have
  int rows, columns, k;  // what `run` takes are multiples of these

  // d = a b^T + c, one instruction per its own depth in k, in rising order. Device 0.
  //   d, c  out, in  f32  [rows, columns]  host memory, no gaps
  //   a, b  in       bf16 [rows, k], [columns, k]
  // Errors: kNotAvailable from the device.
  void (*run)(float* d, const float* c, const bf16* a, const bf16* b, int rows, int columns, int k);
};

// Those that this build has for `device`; empty where none is known.
std::span<const RawInstruction> raw_instructions(const device::Info& device);

}  // namespace rlk
