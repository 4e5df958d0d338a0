#include "rlk/rl/dataset.h"

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <numeric>
#include <sstream>
#include <utility>

#include <nlohmann/json.hpp>

#include "rlk/core/error.h"
#include "rlk/io/json.h"
#include "rlk/rl/verifier.h"

namespace rlk {
namespace {

using nlohmann::json;

// A value for a message: short enough for one line.
std::string shown(const json& value) {
  std::string text = value.dump(-1, ' ', false, json::error_handler_t::replace);
  return text.size() <= 60 ? text : text.substr(0, 57) + "...";
}

std::string known_keys(const json& object) {
  std::string text;
  for (const auto& item : object.items()) text += (text.empty() ? "" : ", ") + item.key();
  return text.empty() ? "none" : text;
}

// The value at a dotted path, or nullptr. A key that itself holds the dots comes first.
const json* find(const json& object, const std::string& path) {
  if (auto it = object.find(path); it != object.end()) return &*it;
  const json* value = &object;
  for (std::size_t begin = 0; begin <= path.size();) {
    const std::size_t dot = std::min(path.find('.', begin), path.size());
    if (!value->is_object()) return nullptr;
    const auto it = value->find(path.substr(begin, dot - begin));
    if (it == value->end()) return nullptr;
    value = &*it;
    begin = dot + 1;
  }
  return value;
}

// Replaces each name of `pairs` in one pass, so that replaced text is never looked at again.
std::string fill(std::string_view text,
                 const std::vector<std::pair<std::string_view, std::string_view>>& pairs) {
  std::string out;
  while (!text.empty()) {
    bool found = false;
    for (const auto& [name, value] : pairs) {
      if (!text.starts_with(name)) continue;
      out += value;
      text.remove_prefix(name.size());
      found = true;
      break;
    }
    if (found) continue;
    out += text.front();
    text.remove_prefix(1);
  }
  return out;
}

class LineReader {
 public:
  LineReader(const DatasetFields& fields, std::string source)
      : fields_(fields), source_(std::move(source)) {}

  Example read(const std::string& line) const {
    const JsonDocument document = JsonDocument::parse(line, source_);
    const json& object = document.raw();
    if (!object.is_object()) {
      fail(ErrorCode::kFormat, "{}: expected a JSON object, got {}", source_, shown(object));
    }
    Example example;
    example.source = source_;
    example.prompt = fill(fields_.prompt_template, {{"{prompt}", prompt_text(object)}});
    if (example.prompt.empty()) {
      fail(ErrorCode::kFormat, "{}: field '{}' gives an empty prompt", source_, fields_.prompt);
    }
    example.answer = answer_text(object);
    example.verifier = verifier_name(object);
    return example;
  }

 private:
  const json& require(const json& object, const std::string& field) const {
    const json* value = find(object, field);
    if (value == nullptr || value->is_null()) {
      fail(ErrorCode::kFormat, "{}: field '{}' is missing (fields there: {})", source_, field,
           known_keys(object));
    }
    return *value;
  }

  std::string prompt_text(const json& object) const {
    const json& value = require(object, fields_.prompt);
    if (value.is_string()) return value.get<std::string>();
    if (!value.is_array()) {
      fail(ErrorCode::kFormat, "{}: field '{}' must be text or a list of messages, got {}", source_,
           fields_.prompt, shown(value));
    }
    std::string text;
    for (const json& message : value) {
      if (!message.is_object() || !message.contains("role") || !message["role"].is_string() ||
          !message.contains("content") || !message["content"].is_string()) {
        fail(ErrorCode::kFormat,
             "{}: field '{}': a message must be {{\"role\": text, \"content\": text}}, got {}",
             source_, fields_.prompt, shown(message));
      }
      text += fill(fields_.message_template,
                   {{"{role}", message["role"].get_ref<const std::string&>()},
                    {"{content}", message["content"].get_ref<const std::string&>()}});
    }
    return text;
  }

  std::string answer_text(const json& object) const {
    const json& value = require(object, fields_.answer);
    std::string text = value.is_string() ? value.get<std::string>() : value.dump();
    if (fields_.answer_after.empty()) return text;
    const std::size_t at = text.rfind(fields_.answer_after);
    if (at == std::string::npos) {
      fail(ErrorCode::kFormat, "{}: field '{}' lacks the marker '{}', got {}", source_,
           fields_.answer, fields_.answer_after, shown(value));
    }
    return std::string(trim(std::string_view(text).substr(at + fields_.answer_after.size())));
  }

  std::string verifier_name(const json& object) const {
    const json* value = find(object, fields_.verifier);
    if (value == nullptr || value->is_null()) {
      if (fields_.default_verifier.empty()) {
        fail(ErrorCode::kFormat,
             "{}: field '{}' is missing and there is no default (config key data.verifier)",
             source_, fields_.verifier);
      }
      return fields_.default_verifier;
    }
    if (!value->is_string()) {
      fail(ErrorCode::kFormat, "{}: field '{}' must be text, got {}", source_, fields_.verifier,
           shown(*value));
    }
    return value->get<std::string>();
  }

  const DatasetFields& fields_;
  std::string source_;
};

std::vector<Example> read_lines(std::istream& in, std::string_view source,
                                const DatasetFields& fields) {
  std::vector<Example> examples;
  std::string line;
  std::int64_t number = 0;
  while (std::getline(in, line)) {
    if (++number == 1 && line.starts_with("\xEF\xBB\xBF")) line.erase(0, 3);  // byte order mark
    if (trim(line).empty()) continue;
    examples.push_back(LineReader(fields, fmt::format("{}:{}", source, number)).read(line));
    if (fields.limit > 0 && static_cast<std::int64_t>(examples.size()) == fields.limit) break;
  }
  if (in.bad()) fail(ErrorCode::kIo, "{}: cannot read: {}", source, std::strerror(errno));
  if (examples.empty()) {
    fail(ErrorCode::kFormat, "{}: no prompts ({} lines, all blank)", source, number);
  }
  return examples;
}

// Steele, Lea and Flood 2014; constants of Stafford's mix 13.
std::uint64_t splitmix64(std::uint64_t& state) {
  state += 0x9E3779B97F4A7C15u;
  std::uint64_t z = state;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
  return z ^ (z >> 31);
}

// Uniform in [0, bound): draws above the last whole multiple of bound are thrown away.
std::uint64_t below(std::uint64_t bound, std::uint64_t& state) {
  const std::uint64_t excess = (0 - bound) % bound;  // 2^64 mod bound
  std::uint64_t draw = splitmix64(state);
  while (draw < excess) draw = splitmix64(state);
  return draw % bound;
}

}  // namespace

std::vector<Example> parse_dataset(std::string_view text, std::string_view source,
                                   const DatasetFields& fields) {
  std::istringstream in{std::string(text)};
  return read_lines(in, source, fields);
}

std::vector<Example> load_dataset(const std::string& path, const DatasetFields& fields) {
  if (std::filesystem::is_directory(path)) {
    fail(ErrorCode::kIo, "{}: is a folder, expected a JSON Lines file", path);
  }
  std::ifstream in(path, std::ios::binary);
  if (!in) fail(ErrorCode::kIo, "{}: cannot open: {}", path, std::strerror(errno));
  return read_lines(in, path, fields);
}

PromptOrder::PromptOrder(std::int64_t size, std::uint64_t seed) : size_(size), seed_(seed) {
  RLK_ASSERT(size > 0);
}

const std::vector<std::int64_t>& PromptOrder::permutation(std::int64_t epoch) {
  if (epoch == cached_epoch_) return cached_;
  std::uint64_t state = seed_;
  state = splitmix64(state) ^ static_cast<std::uint64_t>(epoch);
  cached_.resize(static_cast<std::size_t>(size_));
  std::iota(cached_.begin(), cached_.end(), 0);
  for (std::size_t i = cached_.size(); i > 1; --i) {
    std::swap(cached_[i - 1], cached_[below(i, state)]);
  }
  cached_epoch_ = epoch;
  return cached_;
}

std::vector<std::int64_t> PromptOrder::step_indices(std::int64_t step, std::int64_t count) {
  RLK_ASSERT(step >= 0 && count >= 0);
  std::vector<std::int64_t> indices(static_cast<std::size_t>(count));
  for (std::int64_t i = 0; i < count; ++i) {
    const std::int64_t g = step * count + i;
    indices[static_cast<std::size_t>(i)] =
        permutation(g / size_)[static_cast<std::size_t>(g % size_)];
  }
  return indices;
}

}  // namespace rlk
