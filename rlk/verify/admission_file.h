// The admission record on disk: what conformance found, for one build, device and contract.
#pragma once

#include <functional>
#include <initializer_list>
#include <string>
#include <vector>

#include "rlk/ops/admission.h"
#include "rlk/ops/context.h"

namespace rlk {

// {"format": "rlk-admission", "version": 1, "key": {build, device, contract_digest},
//  "entries": [{op, backend, admitted, vectors, reason}]}
std::string to_json(const Admission& admission);

// Where the record of `key` lies: $XDG_CACHE_HOME/rlkernel, else $HOME/.cache/rlkernel, then
// admission-<first 16 hex digits of the SHA-256 of the key>.json. Empty when neither is set.
std::string admission_path(const AdmissionKey& key);

// Writes beside `path`, then renames; makes the folder. Errors  kIo.
void write_admission(const std::string& path, const Admission& admission);

// Errors  kIo, kFormat; kContract when the record has another key: names the fields that differ.
Admission read_admission(const std::string& path, const AdmissionKey& key);

// The record of this build, device and contract from its place, for kernels of these names. Where
// there is none, or one that cannot be used or lacks some, conformance of those runs first and the
// record is written there. A folder that cannot be written is no error: the record serves this
// process. `say` gets one line for each thing that happened.
Admission load_or_conform(const Contract& contract, const std::vector<std::string>& backends,
                          const std::function<void(const std::string&)>& say);

// An engine that is about to run: its kernels, and the modes of its operators.
struct EngineKernels {
  const KernelTable& kernels;
  Modes modes;
};

// What these engines may run: `trusted` where that admits whatever they have in mode strict or
// auto, else the record as load_or_conform finds or makes it.
Admission admission_for(const Contract& contract, std::initializer_list<EngineKernels> engines,
                        const Admission& trusted,
                        const std::function<void(const std::string&)>& say);

}  // namespace rlk
