// What the verbs that run an engine share: its flags, and the context they make.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "rlk/ops/context.h"

namespace CLI {
class App;
}

namespace rlk::cli {

// Of every profile: what --profile takes.
std::vector<std::string> profile_names();

struct EngineFlags {
  std::string backend = "cpu";
  std::string profile = "portable";
  std::string route = "strict";
  int threads = 0;

  Contract contract() const;
};

// --backend, --profile, --route and --threads.
void add_engine_flags(CLI::App& verb, EngineFlags& flags);

// The context of one engine. What needs a record to be admitted and has none is tried first.
std::unique_ptr<Context> make_context(const EngineFlags& flags);

// A line of load_or_conform (verify/admission_file.h), on standard error.
void say_of_admission(const std::string& line);

}  // namespace rlk::cli
