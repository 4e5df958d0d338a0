// Raw matrix instructions of a device against the CPU model of their profile
// (docs/matrix_models.md), on every input family, bit for bit.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "rlk/kernels/raw_instructions.h"
#include "rlk/numerics/mma/families.h"
#include "rlk/numerics/mma/open_points.h"

namespace rlk {

struct ProbeOptions {
  std::span<const RawInstruction> instructions;
  int rows = 1024;         // size of the random inputs, see probe()
  std::uint64_t seed = 2;  // of the random inputs
  int threads = 0;         // that compute the model; 0: one per hardware thread
  std::function<void(const RawInstruction&, numerics::mma::Family)> progress;  // before each
};

// One result that is not the model's, with the arguments of fill_family that make its inputs.
struct ProbeDifference {
  std::uint64_t seed;
  std::int64_t rows, columns, k;
  std::int64_t row, column;
  std::uint32_t device_bits, model_bits;
};

struct ProbeEntry {
  RawInstruction instruction;
  numerics::mma::Family family;
  std::int64_t compared = 0;
  std::int64_t different = 0;
  std::optional<ProbeDifference> first;
};

// The device's answer to an open point of its profile.
struct ProbeAnswer {
  RawInstruction instruction;
  const numerics::mma::OpenPoint* point;
  std::uint32_t device_bits;

  bool as_model() const { return device_bits == point->model; }
};

// Results of one instruction as a file (tests/goldens/mma/README.md).
struct ProbeFile {
  std::string name;  // "sm90_wgmma_m64n64k16.bin"
  std::string bytes;
};

struct ProbeReport {
  std::vector<ProbeEntry> entries;   // by instruction, then family
  std::vector<ProbeAnswer> answers;  // by instruction; profiles of AMD's chips have open points
  std::vector<ProbeFile> files;      // one per instruction

  // Of entries and answers.
  std::int64_t compared() const;
  std::int64_t different() const;
};

// Inputs of each instruction and family, as [rows, columns] x k:
//   64 x 64 of k = 16 and of k = 256 (a chain), seed 1: these results are kept in `files`
//   rows x rows of k = 16 and rows / 4 x rows / 4 of k = 256, seed `seed`
// each rounded up to what the instruction takes. NaN bits count. Then the open points of its
// profile, in every element of the smallest product it takes.
ProbeReport probe(const ProbeOptions& options);

}  // namespace rlk
