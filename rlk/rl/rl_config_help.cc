// What --help-config and docs/rl_config.md say, out of the table of keys.
#include <type_traits>

#include "rlk/core/error.h"
#include "rlk/rl/rl_config.h"
#include "rlk/rl/rl_config_keys.h"

namespace rlk {
namespace {

constexpr std::size_t kWidth = 100;

std::string type_of(const ConfigSlot& slot) {
  return std::visit(
      [](const auto* value) -> std::string {
        using T = std::remove_cvref_t<decltype(*value)>;
        if constexpr (std::is_enum_v<T>) {
          std::string names;
          for (const T choice : config_choices<T>()) {
            names += (names.empty() ? "" : ", ") + std::string(to_string(choice));
          }
          return "one of " + names;
        } else if constexpr (std::is_same_v<T, bool>) {
          return "true or false";
        } else if constexpr (std::is_same_v<T, double>) {
          return "number";
        } else if constexpr (std::is_integral_v<T>) {
          return "integer";
        } else if constexpr (std::is_same_v<T, std::string>) {
          return "text";
        } else if constexpr (std::is_same_v<T, std::vector<int>>) {
          return "list of integers";
        } else if constexpr (std::is_same_v<T, std::vector<std::string>>) {
          return "list of texts";
        } else {
          static_assert(std::is_same_v<T, RlConfig::Modes>);
          return "object: operator to strict, audit, auto or off";
        }
      },
      slot);
}

std::string type_and_rule(const ConfigKey& key, RlConfig& defaults) {
  std::string text = type_of(key.slot(defaults));
  if (key.rule.is_path()) text = "path";
  const std::string rule = key.rule.text();
  return rule.empty() ? text : text + " " + rule;
}

// "required" for a text that may not be empty and is by default.
std::string default_of(const ConfigKey& key, RlConfig& defaults) {
  const std::string value = config_value_json(key.slot(defaults));
  return value == "\"\"" && !key.rule.text().empty() ? "required" : value;
}

std::string wrapped(std::string_view text, std::size_t indent) {
  std::string out;
  std::string line(indent, ' ');
  while (!text.empty()) {
    const std::size_t end = std::min(text.find(' '), text.size());
    const std::string_view word = text.substr(0, end);
    if (line.size() > indent && line.size() + 1 + word.size() > kWidth) {
      out += line + "\n";
      line.assign(indent, ' ');
    }
    if (line.size() > indent) line += ' ';
    line += word;
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return out + line + "\n";
}

std::string escaped(std::string_view text) {
  std::string out;
  for (const char c : text) {
    if (c == '|') out += '\\';
    out += c;
  }
  return out;
}

constexpr std::string_view kIntro =
    "One JSON object. Every key but those marked required may be left out. Unknown keys are "
    "errors. "
    "Paths are relative to the folder of the file.";

constexpr std::string_view kVerifiers = R"(
## Lines and verifiers

A line of a data file is `{"prompt": "4719=", "answer": "4719", "verifier": "share"}`. For
dapo-math-17k set `data.fields.answer` to `reward_model.ground_truth` and `data.verifier` to
`last_number`; for gsm8k `data.fields.prompt` to `question`, `data.answer_after` to `####` and
`data.verifier` to `last_number`. A verifier gives a response a score from 0 to 1:

- `exact`: 1 if response and answer are equal, white space at both ends apart.
- `share`: positions with the right character, divided by the length of the longer text.
- `last_number`: 1 if the last number of the response is the last number of the answer. It reads
  `1,234.50`, `$5`, `-3`, `3/4` and `\frac{3}{4}`, and compares exactly.
- `countdown`: the answer is `{"numbers": [3, 5, 7], "target": 22}`; 1 if the response is an
  expression of `+ - * / ( )` with each number exactly once that is exactly the target.
- `regex`: the answer is a PCRE2 pattern for the whole response, or
  `{"pattern": "...", "match": "partial"}`; 1 if it matches.
- `command`: what the program in `data.command` says.

The program is started once. For each response it gets one line on standard input,
`{"answer": "...", "id": 7, "prompt": "...", "response": "..."}`, and must write one line to
standard output, `{"id": 7, "score": 0.5}`, and flush it. It ends when its input ends. A wrong id, a
score that is no number from 0 to 1, a line more, no answer in time or an early end stop the run
with a message.
)";

}  // namespace

std::string config_help() {
  RlConfig defaults;
  std::string out = wrapped(kIntro, 0);
  std::string_view section = "-";
  for (const ConfigKey& key : config_keys()) {
    if (key.section() != section) out += "\n";
    section = key.section();
    const std::string fallback = default_of(key, defaults);
    out += fmt::format("{}  ({}; {}{})\n", key.path, type_and_rule(key, defaults),
                       fallback == "required" ? "" : "default ", fallback);
    out += wrapped(key.meaning, 4);
  }
  return out;
}

std::string config_markdown() {
  RlConfig defaults;
  std::string out = "# Configuration of `rlk rl` and `rlk sft`\n\n" + std::string(kIntro) +
                    " This page is written from the table in `rlk/rl/rl_config_keys.cc`;"
                    " `rlk rl --help-config` prints the keys.\n";
  std::string_view section = "-";
  for (const ConfigKey& key : config_keys()) {
    if (key.section() != section) {
      section = key.section();
      out += section.empty() ? "\n## Run\n" : fmt::format("\n## `{}`\n", section);
      out += "\n| key | value | default | meaning |\n|---|---|---|---|\n";
    }
    const std::string fallback = default_of(key, defaults);
    out += fmt::format("| `{}` | {} | {} | {} |\n", key.path, escaped(type_and_rule(key, defaults)),
                       fallback == "required" ? fallback : fmt::format("`{}`", escaped(fallback)),
                       escaped(key.meaning));
  }
  return out + std::string(kVerifiers);
}

}  // namespace rlk
