// Record files: one JSON object a line, exact to the bit, easy to write from any framework.
//
//   {"format":"rlk-record","version":1,"engine":"rollout","provenance":"...",
//    "model_digest":"...","forward_digest":"...","vocab_size":16}
//   {"step":1,"sample":0,"sampling":{"temperature":1.0,"top_k":0,"top_p":1.0,"min_p":0.0},
//    "prefix":[1,2],"targets":[5,6],"positions":[2,3],"mask":[1,1],"weight_versions":[1,1],
//    "logprobs":["bf800000","c0000000"]}
//
// A log-probability is its f32 bit pattern as eight hex digits. `provenance`, `step`, `sampling`
// (the defaults of RecordSampling), `positions` (prefix size onwards) and `mask` (all 1) may be
// left out; `weight_version` may stand for `weight_versions` when one version scored all targets.
#pragma once

#include <iosfwd>
#include <string>

#include "rlk/compare/compare.h"

namespace rlk {

// Errors  kIo with the path; kFormat with path, line, field, expected and found: also token ids
//         outside [0, vocab_size), vectors of unequal sizes and unknown keys.
Record read_record(const std::string& path);
Record read_record(std::istream& in, const std::string& source);

// Writes beside `path`, then renames: a reader sees a whole file or none. Errors  kIo.
void write_record(const std::string& path, const Record& record);
void write_record(std::ostream& out, const Record& record);

}  // namespace rlk
