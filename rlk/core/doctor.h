// doctor: what in the environment of this process, or in this build, changes bits or the choice of
// an algorithm. `rlk doctor` prints it; a strict run refuses to start with some of it.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace rlk {

enum class Severity : std::uint8_t {
  kNote,        // chooses a device, a transport or a speed; no bit of ours
  kProduction,  // changes what a library of the production route computes or chooses
  kRefusedGpu,  // a strict run with kernels of a GPU does not start
  kRefused,     // no strict run starts
};
const char* to_string(Severity severity);  // "note", "production", "refused_gpu", "refused"

struct Finding {
  Severity severity;
  std::string subject;  // an environment variable, "build flags" or "floating-point mode"
  std::string value;
  std::string why;
  std::string advice;  // what to set
};

// Every finding, the gravest first.
std::vector<Finding> diagnose();

// Of flags of a compiler, the later ones winning; the rest of a build's findings.
std::vector<Finding> diagnose_flags(std::string_view flags);

// Whether `rlk env` reports the variable because diagnose() knows it.
bool is_diagnosed(std::string_view variable);

// For a strict run, on a GPU or not.
// Errors  kNotAvailable: the first finding that refuses it, and what to set.
void require_strict_environment(bool on_gpu);

}  // namespace rlk
