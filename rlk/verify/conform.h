// conform: runs the conformance vectors of every operator against the reference and admits the
// backends that give its bytes.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "rlk/contract/contract.h"
#include "rlk/ops/admission.h"

namespace rlk {

struct ConformOptions {
  Contract contract;
  std::vector<Op> ops = {};                       // empty: all
  std::vector<const KernelTable*> backends = {};  // empty: the contract's kernels for this CPU
  int threads = 2;
};

// Called when an operator has been tried with all backends.
using ConformProgress = std::function<void(Op)>;

// One entry per operator and backend. A backend is admitted for an operator when all vectors give
// the bytes and the fault row of the reference; it is refused at the first that does not, and the
// reason names vector, output, element and both values. pack_weight has no entry: a packed layout
// is a plan, and gemm is tried with packed weights too. Vectors lie in host memory; for kernels of
// a GPU their tensors travel.
// Errors  kNotAvailable: a backend does not run the contract's profile; kInvalidArgument:
//         options.ops is pack_weight alone; kUnsupported: a table of a GPU that is none of
//         gpu_kernels.
Admission conform(const ConformOptions& options, const ConformProgress& progress = {});

// SHA-256 over what `table` computes for all vectors of options.ops: the same for every build,
// instruction set and number of threads.
std::string conform_digest(const ConformOptions& options, const KernelTable& table);

}  // namespace rlk
