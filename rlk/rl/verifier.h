// Verifiers: how good is a response, as a number in [0, 1].
//
//   exact        1 if response and answer are equal after trimming white space
//   share        positions with the right character / length of the longer text (both trimmed;
//                a position that only one of the texts has is wrong)
//   last_number  1 if the last number of the response equals the last number of the answer
//   countdown    answer {"numbers": [...], "target": n}: 1 if the response is an arithmetic
//                expression that uses each number exactly once and equals the target exactly
//   regex        answer is a PCRE2 pattern for the whole trimmed response, or
//                {"pattern": "...", "match": "full" | "partial"}
//   command      a program of the user's (see command_verifier below)
#pragma once

#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "rlk/rl/dataset.h"

namespace rlk {

class Verifier {
 public:
  virtual ~Verifier() = default;

  // Refuses an example whose answer this verifier cannot use: kFormat, naming example.source.
  virtual void check(const Example& example) const = 0;

  // A score in [0, 1]. The example must pass check(). Any response text is allowed, also bytes
  // that are not UTF-8.
  virtual double score(std::string_view response, const Example& example) = 0;
};

struct VerifierOptions {
  std::vector<std::string> command;  // program and arguments of `command`
  std::string command_dir;           // its working folder; empty: ours
  double command_timeout_s = 30.0;   // for each answer
};

// The verifiers by name, created when first needed. Not for use by two threads at once.
class VerifierSet {
 public:
  explicit VerifierSet(VerifierOptions options = {}) : options_(std::move(options)) {}

  static const std::vector<std::string>& names();

  // Every example has a known verifier and an answer that it can use. Call it before a run, so that
  // bad data is found at the start. kFormat, naming file, line, verifier and what was found.
  void check(const std::vector<Example>& examples);

  double score(std::string_view response, const Example& example);

 private:
  Verifier& get(const Example& example);

  VerifierOptions options_;
  std::map<std::string, std::unique_ptr<Verifier>> verifiers_;
};

std::unique_ptr<Verifier> exact_verifier();
std::unique_ptr<Verifier> share_verifier();
std::unique_ptr<Verifier> last_number_verifier();
std::unique_ptr<Verifier> countdown_verifier();
std::unique_ptr<Verifier> regex_verifier();

// A program that is started once, at the first score. Each score writes one JSON line to its
// standard input,
//   {"answer": "...", "id": 7, "prompt": "...", "response": "..."}
// and reads one JSON line from its standard output,
//   {"id": 7, "score": 0.5}
// Its standard error is ours. Bytes that are not UTF-8 arrive as U+FFFD.
// Errors  kNotAvailable no command is configured, or it cannot be started; kIo it ended or did not
//         answer in time; kFormat the line is not such JSON, has another id, or a score that is no
//         number or outside [0, 1]. After an error the program is ended; the next score starts it
//         anew. The destructor closes its input, waits a second, then kills its process group.
std::unique_ptr<Verifier> command_verifier(const VerifierOptions& options);

// Without white space at both ends (space, \t, \n, \v, \f, \r).
std::string_view trim(std::string_view text);

}  // namespace rlk
