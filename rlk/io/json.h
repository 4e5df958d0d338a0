// Strict JSON: every value is read with its type and range, every complaint names file and field.
//
//   JsonDocument document = JsonDocument::load("rl.json");
//   FieldReader root = document.object();
//   config.steps = root.required<std::int64_t>("steps", {.min = 1});
//   FieldReader rollout = root.object("rollout");
//   rollout.optional("page_size", config.page_size, {.min = 1, .max = 1024});
//   rollout.finish();  // refuses "pagesize": unknown key "rollout.pagesize", nearest "page_size"
//   root.finish();
#pragma once

#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "rlk/core/error.h"

namespace rlk {

// Both ends belong to the range.
template <typename T>
struct Range {
  T min = std::numeric_limits<T>::lowest();
  T max = std::numeric_limits<T>::max();
};
template <>
struct Range<bool> {};
template <>
struct Range<std::string> {};
template <>
struct Range<std::vector<std::string>> {};
// For arrays: the range of every element.
template <typename T>
struct Range<std::vector<T>> : Range<T> {};

template <typename T>
concept JsonValue = !requires(T value) {
  value.has_value();
};  // no std::optional

// One JSON object while it is being read. Types: bool, int, std::int64_t, std::uint64_t, double,
// std::string, and std::vector of all these but bool. A whole number is a
// double too; 1.0 is no integer. null counts as absent. The document must outlive its readers.
class FieldReader {
 public:
  FieldReader(const nlohmann::json* object, std::string source, std::string path);

  // Errors of all readers: kFormat (absent, wrong type), kInvalidArgument (out of range).
  template <JsonValue T>
  T required(std::string_view key, Range<T> range = {});

  // Leaves value as it was when the key is absent; returns whether it was there.
  template <JsonValue T>
  bool optional(std::string_view key, T& value, Range<T> range = {});
  template <JsonValue T>
  bool optional(std::string_view key, std::optional<T>& value, Range<T> range = {}) {
    T found{};
    if (!optional(key, found, range)) return false;
    value = std::move(found);
    return true;
  }

  // A string that must be one of the choices.
  std::string choice(std::string_view key, const std::vector<std::string>& choices,
                     std::string_view value_if_absent);

  // The object under key. An absent one reads as empty, so that all its fields keep their defaults.
  FieldReader object(std::string_view key);
  // The array of objects under key; empty when absent.
  std::vector<FieldReader> objects(std::string_view key);
  // Keys of an object that serves as a table (weight_map, vocab), in byte order.
  std::vector<std::string> keys() const;

  bool has(std::string_view key) const;  // there and not null
  bool is_null(std::string_view key) const;
  bool is_string(std::string_view key) const;
  bool is_array(std::string_view key) const;
  bool is_object(std::string_view key) const;
  // The value as compact JSON, for messages; "absent" when it is not there.
  std::string dump(std::string_view key) const;
  // Marks keys as known without reading them.
  void ignore(std::string_view key) { known_.emplace(key); }

  // Refuses keys that nobody asked for, naming the nearest known one. Errors: kFormat.
  void finish() const;

  // Throws "<source>: field <path of key>: <message>".
  [[noreturn]] void refuse(ErrorCode code, std::string_view key, std::string_view message) const;

  const std::string& source() const { return source_; }
  std::string path_of(std::string_view key) const;
  const nlohmann::json& raw() const { return *object_; }  // for .cc files that include json.hpp

 private:
  const nlohmann::json* find(std::string_view key);
  const nlohmann::json* peek(std::string_view key) const;

  const nlohmann::json* object_;
  std::string source_;
  std::string path_;
  std::set<std::string, std::less<>> known_;
};

// A parsed text. Beyond JSON's grammar, duplicate keys, nesting deeper than 64, invalid UTF-8 and
// numbers outside double's range are errors. Errors: kFormat, with source and byte offset; kIo.
class JsonDocument {
 public:
  static JsonDocument load(const std::string& path);
  static JsonDocument parse(std::string_view text, std::string source);

  // The root, which must be an object.
  FieldReader object() const;
  const nlohmann::json& raw() const { return *root_; }
  const std::string& source() const { return source_; }

 private:
  JsonDocument(std::shared_ptr<const nlohmann::json> root, std::string source)
      : root_(std::move(root)), source_(std::move(source)) {}

  std::shared_ptr<const nlohmann::json> root_;
  std::string source_;
};

// The candidate with the smallest edit distance to word; empty when none is near enough to be a
// likely misspelling (more than half of word would have to change).
std::string nearest_name(std::string_view word, const std::vector<std::string>& candidates);

}  // namespace rlk
