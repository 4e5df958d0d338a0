#include "rlk/io/json.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <type_traits>
#include <utility>

#include <nlohmann/json.hpp>

#include "rlk/io/files.h"

namespace rlk {
namespace {

using nlohmann::json;

constexpr int kMaxDepth = 64;
constexpr std::size_t kMaxShownBytes = 80;

// nlohmann's messages begin with "[json.exception.parse_error.101] ".
std::string without_tag(const std::string& message) {
  const std::size_t end = message.find("] ");
  return message.starts_with('[') && end != std::string::npos ? message.substr(end + 2) : message;
}

std::string shortened(std::string text) {
  if (text.size() > kMaxShownBytes) text = text.substr(0, kMaxShownBytes) + "...";
  return text;
}

std::string shown(const json& value) {
  return shortened(value.dump(-1, ' ', false, json::error_handler_t::replace));
}

template <typename T>
struct IsVector : std::false_type {};
template <typename T>
struct IsVector<std::vector<T>> : std::true_type {};

template <typename T>
std::string type_name() {
  if constexpr (std::is_same_v<T, bool>)
    return "true or false";
  else if constexpr (std::is_integral_v<T>)
    return "an integer";
  else if constexpr (std::is_floating_point_v<T>)
    return "a number";
  else if constexpr (IsVector<T>::value)
    return "an array; each element " + type_name<typename T::value_type>();
  else
    return "a string";
}

template <typename T>
bool convert_integer(const json& value, T& out) {
  if (!value.is_number_integer()) return false;
  if (value.is_number_unsigned()) {
    const auto number = value.get<std::uint64_t>();
    if (!std::in_range<T>(number)) return false;
    out = static_cast<T>(number);
  } else {
    const auto number = value.get<std::int64_t>();
    if (!std::in_range<T>(number)) return false;
    out = static_cast<T>(number);
  }
  return true;
}

// False when the value is of another type.
template <typename T>
bool convert(const json& value, T& out) {
  if constexpr (std::is_same_v<T, bool>) {
    if (!value.is_boolean()) return false;
    out = value.get<bool>();
  } else if constexpr (std::is_integral_v<T>) {
    return convert_integer(value, out);
  } else if constexpr (std::is_floating_point_v<T>) {
    if (!value.is_number()) return false;
    out = value.get<double>();
  } else if constexpr (IsVector<T>::value) {
    if (!value.is_array()) return false;
    out.clear();
    for (const json& element : value) {
      typename T::value_type converted{};
      if (!convert(element, converted)) return false;
      out.push_back(std::move(converted));
    }
  } else {
    if (!value.is_string()) return false;
    out = value.get<std::string>();
  }
  return true;
}

template <typename T>
constexpr bool kHasRange = std::is_arithmetic_v<T> && !std::is_same_v<T, bool>;

template <typename T>
bool in_range(const T& value, const Range<T>& range) {
  if constexpr (IsVector<T>::value) {
    using Element = typename T::value_type;
    if constexpr (kHasRange<Element>) {
      const Range<Element>& one = range;
      return std::all_of(value.begin(), value.end(),
                         [&](const Element& element) { return in_range(element, one); });
    }
    return true;
  } else if constexpr (kHasRange<T>) {
    return range.min <= value && value <= range.max;
  } else {
    return true;
  }
}

template <typename T>
std::string range_text(const Range<T>& range) {
  if constexpr (IsVector<T>::value) {
    if constexpr (kHasRange<typename T::value_type>) {
      return range_text<typename T::value_type>(range);
    }
    return "";
  } else if constexpr (kHasRange<T>) {
    if (range.max == std::numeric_limits<T>::max()) return fmt::format("at least {}", range.min);
    if (range.min == std::numeric_limits<T>::lowest()) return fmt::format("at most {}", range.max);
    return fmt::format("between {} and {}", range.min, range.max);
  } else {
    return "";
  }
}

// Levenshtein distance with one row.
std::size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), std::size_t{0});
  for (std::size_t i = 0; i < a.size(); ++i) {
    std::size_t diagonal = std::exchange(row[0], i + 1);
    for (std::size_t j = 0; j < b.size(); ++j) {
      const std::size_t substituted = diagonal + (a[i] == b[j] ? 0 : 1);
      diagonal = row[j + 1];
      row[j + 1] = std::min({substituted, row[j] + 1, row[j + 1] + 1});
    }
  }
  return row[b.size()];
}

// Watches the parser for what the grammar allows and we do not.
class ParseGuard {
 public:
  explicit ParseGuard(const std::string& source) : source_(source) {}

  bool operator()(int depth, json::parse_event_t event, json& parsed) {
    if (depth > kMaxDepth) {
      fail(ErrorCode::kFormat, "{}: JSON is nested deeper than {}", source_, kMaxDepth);
    }
    if (event == json::parse_event_t::object_start) {
      open_objects_.emplace_back();
    } else if (event == json::parse_event_t::object_end) {
      open_objects_.pop_back();
    } else if (event == json::parse_event_t::key) {
      const auto& key = parsed.get_ref<const std::string&>();
      if (!open_objects_.back().insert(key).second) {
        fail(ErrorCode::kFormat, "{}: key \"{}\" appears twice in one object", source_,
             shortened(key));
      }
    }
    return true;
  }

 private:
  const std::string& source_;
  std::vector<std::set<std::string>> open_objects_;
};

const json& empty_object() {
  static const json empty = json::object();
  return empty;
}

}  // namespace

FieldReader::FieldReader(const json* object, std::string source, std::string path)
    : object_(object), source_(std::move(source)), path_(std::move(path)) {
  RLK_ASSERT(object_->is_object());
}

const json* FieldReader::peek(std::string_view key) const {
  const auto it = object_->find(std::string(key));
  return it == object_->end() ? nullptr : &*it;
}

const json* FieldReader::find(std::string_view key) {
  known_.emplace(key);
  const json* value = peek(key);
  return value && value->is_null() ? nullptr : value;
}

std::string FieldReader::path_of(std::string_view key) const {
  return path_.empty() ? std::string(key) : fmt::format("{}.{}", path_, key);
}

void FieldReader::refuse(ErrorCode code, std::string_view key, std::string_view message) const {
  fail(code, "{}: field {}: {}", source_, path_of(key), message);
}

template <JsonValue T>
bool FieldReader::optional(std::string_view key, T& value, Range<T> range) {
  const json* found = find(key);
  if (!found) return false;
  T converted{};
  if (!convert(*found, converted)) {
    refuse(ErrorCode::kFormat, key,
           fmt::format("expected {}, got {}", type_name<T>(), shown(*found)));
  }
  if (!in_range<T>(converted, range)) {
    refuse(ErrorCode::kInvalidArgument, key,
           fmt::format("expected {}, got {}", range_text<T>(range), shown(*found)));
  }
  value = std::move(converted);
  return true;
}

template <JsonValue T>
T FieldReader::required(std::string_view key, Range<T> range) {
  T value{};
  if (!optional(key, value, range)) {
    refuse(ErrorCode::kFormat, key, fmt::format("missing; expected {}", type_name<T>()));
  }
  return value;
}

#define RLK_INSTANTIATE(T)                                             \
  template bool FieldReader::optional(std::string_view, T&, Range<T>); \
  template T FieldReader::required(std::string_view, Range<T>);
RLK_INSTANTIATE(bool)
RLK_INSTANTIATE(int)
RLK_INSTANTIATE(std::int64_t)
RLK_INSTANTIATE(std::uint64_t)
RLK_INSTANTIATE(double)
RLK_INSTANTIATE(std::string)
RLK_INSTANTIATE(std::vector<int>)
RLK_INSTANTIATE(std::vector<std::int64_t>)
RLK_INSTANTIATE(std::vector<std::uint64_t>)
RLK_INSTANTIATE(std::vector<double>)
RLK_INSTANTIATE(std::vector<std::string>)
#undef RLK_INSTANTIATE

std::string FieldReader::choice(std::string_view key, const std::vector<std::string>& choices,
                                std::string_view value_if_absent) {
  std::string value(value_if_absent);
  optional(key, value);
  if (std::find(choices.begin(), choices.end(), value) == choices.end()) {
    refuse(ErrorCode::kInvalidArgument, key,
           fmt::format("expected one of {}, got {}", json(choices).dump(), shown(json(value))));
  }
  return value;
}

FieldReader FieldReader::object(std::string_view key) {
  const json* found = find(key);
  if (!found) return FieldReader(&empty_object(), source_, path_of(key));
  if (!found->is_object()) {
    refuse(ErrorCode::kFormat, key, fmt::format("expected an object, got {}", shown(*found)));
  }
  return FieldReader(found, source_, path_of(key));
}

std::vector<FieldReader> FieldReader::objects(std::string_view key) {
  std::vector<FieldReader> readers;
  const json* found = find(key);
  if (!found) return readers;
  if (!found->is_array()) {
    refuse(ErrorCode::kFormat, key, fmt::format("expected an array, got {}", shown(*found)));
  }
  for (const json& element : *found) {
    const std::string name = fmt::format("{}[{}]", key, readers.size());
    if (!element.is_object()) {
      refuse(ErrorCode::kFormat, name, fmt::format("expected an object, got {}", shown(element)));
    }
    readers.emplace_back(&element, source_, path_of(name));
  }
  return readers;
}

std::vector<std::string> FieldReader::keys() const {
  std::vector<std::string> keys;
  for (const auto& item : object_->items()) keys.push_back(item.key());
  return keys;
}

bool FieldReader::has(std::string_view key) const {
  const json* value = peek(key);
  return value && !value->is_null();
}

bool FieldReader::is_null(std::string_view key) const {
  const json* value = peek(key);
  return value && value->is_null();
}

bool FieldReader::is_string(std::string_view key) const {
  const json* value = peek(key);
  return value && value->is_string();
}

bool FieldReader::is_array(std::string_view key) const {
  const json* value = peek(key);
  return value && value->is_array();
}

bool FieldReader::is_object(std::string_view key) const {
  const json* value = peek(key);
  return value && value->is_object();
}

std::string FieldReader::dump(std::string_view key) const {
  const json* value = peek(key);
  return value ? shown(*value) : "absent";
}

void FieldReader::finish() const {
  for (const auto& item : object_->items()) {
    if (known_.count(item.key())) continue;
    const std::vector<std::string> known(known_.begin(), known_.end());
    const std::string nearest = nearest_name(item.key(), known);
    refuse(ErrorCode::kFormat, shortened(item.key()),
           nearest.empty() ? fmt::format("unknown key; known are {}", json(known).dump())
                           : fmt::format("unknown key; the nearest known one is \"{}\"", nearest));
  }
}

JsonDocument JsonDocument::load(const std::string& path) { return parse(read_file(path), path); }

JsonDocument JsonDocument::parse(std::string_view text, std::string source) {
  try {
    auto root = std::make_shared<const json>(json::parse(text, ParseGuard(source)));
    return JsonDocument(std::move(root), std::move(source));
  } catch (const json::parse_error& error) {
    fail(ErrorCode::kFormat, "{}: not JSON at byte {}: {}", source, error.byte,
         without_tag(error.what()));
  } catch (const json::exception& error) {
    fail(ErrorCode::kFormat, "{}: not JSON: {}", source, without_tag(error.what()));
  }
}

FieldReader JsonDocument::object() const {
  if (!root_->is_object()) {
    fail(ErrorCode::kFormat, "{}: expected a JSON object, got {}", source_, shown(*root_));
  }
  return FieldReader(root_.get(), source_, "");
}

std::string nearest_name(std::string_view word, const std::vector<std::string>& candidates) {
  std::string nearest;
  std::size_t smallest = word.size() / 2 + 1;
  for (const std::string& candidate : candidates) {
    const std::size_t distance = edit_distance(word, candidate);
    if (distance < smallest) {
      smallest = distance;
      nearest = candidate;
    }
  }
  return nearest;
}

}  // namespace rlk
