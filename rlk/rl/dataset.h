// Prompts with answers from JSON Lines files, and the order in which steps use them.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace rlk {

// One line of the file. `prompt` is ready for the tokenizer (templates are applied).
struct Example {
  std::string prompt;
  std::string answer;    // a JSON string as it is, any other JSON value as compact JSON
  std::string verifier;  // the line's own, else the default
  std::string source;    // "train.jsonl:17", for messages

  bool operator==(const Example&) const = default;
};

// Where a line keeps its parts. A dot goes into an object: "reward_model.ground_truth".
struct DatasetFields {
  std::string prompt = "prompt";  // text, or a list of {"role": ..., "content": ...}
  std::string answer = "answer";
  std::string verifier = "verifier";  // optional in a line
  std::string answer_after;           // keep what follows the last such marker ("####"), trimmed
  std::string default_verifier;
  std::string message_template = "{content}";  // each message of a list; also knows {role}
  std::string prompt_template = "{prompt}";    // around the text or the joined messages
  std::int64_t limit = 0;                      // stop after that many examples; 0: all
};

// Blank lines are skipped.
// Errors  kIo the file cannot be read; kFormat a line is not a JSON object, a field is missing or
//         of the wrong type, the marker is not there, a prompt is empty, no line is left; each
//         names file, line, field and what was found.
std::vector<Example> load_dataset(const std::string& path, const DatasetFields& fields);
std::vector<Example> parse_dataset(std::string_view text, std::string_view source,
                                   const DatasetFields& fields);

// Which examples step s uses. Position g = s * count + i of an endless sequence is entry g mod size
// of a permutation that depends on (seed, g div size) only, so a resumed run needs nothing but the
// step number. Every example comes once before any comes twice.
// Source  Fisher and Yates; random numbers by splitmix64 with rejection (the same everywhere).
class PromptOrder {
 public:
  PromptOrder(std::int64_t size, std::uint64_t seed);  // size > 0

  // Indices of examples, `count` of them, for step = 0, 1, ...
  std::vector<std::int64_t> step_indices(std::int64_t step, std::int64_t count);

 private:
  const std::vector<std::int64_t>& permutation(std::int64_t epoch);

  std::int64_t size_;
  std::uint64_t seed_;
  std::int64_t cached_epoch_ = -1;
  std::vector<std::int64_t> cached_;
};

}  // namespace rlk
