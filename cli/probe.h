// The verb `probe` without the program around it: rlk_gpu_probe and the tests have it alone.
#pragma once

#include <span>
#include <string>

#include "rlk/kernels/raw_instructions.h"

namespace CLI {
class App;
}

namespace rlk::cli {

struct ProbeTarget {
  std::string description;  // "NVIDIA H200, sm_90, driver for CUDA 13.0"
  std::span<const RawInstruction> instructions;
};

// GPU 0. Errors: kNotAvailable, where there is none or no instruction of it is known.
ProbeTarget probe_gpu();

// Adds the options to `verb`, and what runs when it is chosen, on what `target` returns.
void set_up_probe(CLI::App& verb, int& exit_code, ProbeTarget (*target)());

}  // namespace rlk::cli
