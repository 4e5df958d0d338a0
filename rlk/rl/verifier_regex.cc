// The verifier `regex`: PCRE2 with Unicode properties.
#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <memory>
#include <string>

#include <nlohmann/json.hpp>

#include "rlk/core/error.h"
#include "rlk/rl/verifier.h"

namespace rlk {
namespace {

using nlohmann::json;

// A pattern that backtracks longer than this on a response does not match it: a model must not be
// able to stop the run by what it writes.
constexpr std::uint32_t kMatchLimit = 1'000'000;
constexpr std::uint32_t kHeapLimitKib = 64 * 1024;

struct Pattern {
  std::string text;
  bool full = true;
};

[[noreturn]] void refuse(const Example& example, const std::string& why) {
  fail(ErrorCode::kFormat, "{}: verifier 'regex': {}; answer is {}", example.source, why,
       example.answer);
}

Pattern pattern_of(const Example& example) {
  const json answer = json::parse(example.answer, nullptr, false);
  if (!answer.is_object() || !answer.contains("pattern")) return {example.answer, true};
  if (!answer["pattern"].is_string()) refuse(example, "'pattern' must be text");
  for (const auto& item : answer.items()) {
    if (item.key() != "pattern" && item.key() != "match") {
      refuse(example, "unknown key '" + item.key() + "'; known: pattern, match");
    }
  }
  const json match = answer.value("match", json("full"));
  if (match != "full" && match != "partial") refuse(example, "'match' must be full or partial");
  return {answer["pattern"].get<std::string>(), match == "full"};
}

struct CodeFree {
  void operator()(pcre2_code* code) const { pcre2_code_free(code); }
};
struct DataFree {
  void operator()(pcre2_match_data* data) const { pcre2_match_data_free(data); }
};
struct ContextFree {
  void operator()(pcre2_match_context* context) const { pcre2_match_context_free(context); }
};

std::string message_of(int error) {
  PCRE2_UCHAR buffer[256];
  pcre2_get_error_message(error, buffer, sizeof buffer);
  return reinterpret_cast<const char*>(buffer);
}

std::unique_ptr<pcre2_code, CodeFree> compile(const Example& example) {
  const Pattern pattern = pattern_of(example);
  if (pattern.text.empty()) refuse(example, "the pattern is empty");
  std::uint32_t options = PCRE2_UTF | PCRE2_UCP | PCRE2_MATCH_INVALID_UTF;
  if (pattern.full) options |= PCRE2_ANCHORED | PCRE2_ENDANCHORED;
  int error = 0;
  PCRE2_SIZE offset = 0;
  std::unique_ptr<pcre2_code, CodeFree> code(
      pcre2_compile(reinterpret_cast<PCRE2_SPTR>(pattern.text.data()), pattern.text.size(), options,
                    &error, &offset, nullptr));
  if (!code) refuse(example, fmt::format("{} at offset {}", message_of(error), offset));
  return code;
}

class Regex : public Verifier {
 public:
  void check(const Example& example) const override { compile(example); }

  double score(std::string_view response, const Example& example) override {
    const auto code = compile(example);
    const std::unique_ptr<pcre2_match_data, DataFree> data(
        pcre2_match_data_create_from_pattern(code.get(), nullptr));
    const std::unique_ptr<pcre2_match_context, ContextFree> context(
        pcre2_match_context_create(nullptr));
    pcre2_set_match_limit(context.get(), kMatchLimit);
    pcre2_set_heap_limit(context.get(), kHeapLimitKib);
    const std::string_view text = trim(response);
    const int count =
        pcre2_match(code.get(), reinterpret_cast<PCRE2_SPTR>(text.empty() ? "" : text.data()),
                    text.size(), 0, 0, data.get(), context.get());
    if (count >= 0) return 1.0;
    switch (count) {
      case PCRE2_ERROR_NOMATCH:
      case PCRE2_ERROR_MATCHLIMIT:
      case PCRE2_ERROR_DEPTHLIMIT:
      case PCRE2_ERROR_HEAPLIMIT: return 0.0;
      default: refuse(example, "matching failed: " + message_of(count));
    }
  }
};

}  // namespace

std::unique_ptr<Verifier> regex_verifier() { return std::make_unique<Regex>(); }

}  // namespace rlk
