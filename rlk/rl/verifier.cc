#include "rlk/rl/verifier.h"

#include <algorithm>
#include <functional>
#include <iterator>
#include <utility>

#include "rlk/core/error.h"

namespace rlk {
namespace {

class Exact : public Verifier {
 public:
  void check(const Example&) const override {}
  double score(std::string_view response, const Example& example) override {
    return trim(response) == trim(example.answer) ? 1.0 : 0.0;
  }
};

// Characters of UTF-8; a byte that starts no valid sequence stands for itself.
std::vector<std::string_view> characters(std::string_view text) {
  std::vector<std::string_view> out;
  while (!text.empty()) {
    const auto lead = static_cast<unsigned char>(text[0]);
    std::size_t size = lead < 0xC0 ? 1 : lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : lead < 0xF8 ? 4 : 1;
    for (std::size_t i = 1; i < size; ++i) {
      if (i >= text.size() || (static_cast<unsigned char>(text[i]) & 0xC0) != 0x80) size = 1;
    }
    out.push_back(text.substr(0, size));
    text.remove_prefix(size);
  }
  return out;
}

class Share : public Verifier {
 public:
  void check(const Example& example) const override {
    if (trim(example.answer).empty()) {
      fail(ErrorCode::kFormat, "{}: verifier 'share' needs an answer that is not empty",
           example.source);
    }
  }
  double score(std::string_view response, const Example& example) override {
    const auto got = characters(trim(response));
    const auto expected = characters(trim(example.answer));
    const std::size_t common = std::min(got.size(), expected.size());
    std::size_t right = 0;
    for (std::size_t i = 0; i < common; ++i) right += got[i] == expected[i];
    return static_cast<double>(right) / static_cast<double>(std::max(got.size(), expected.size()));
  }
};

using Factory = std::function<std::unique_ptr<Verifier>(const VerifierOptions&)>;

const std::map<std::string, Factory>& factories() {
  static const std::map<std::string, Factory> table = {
      {"command", [](const VerifierOptions& options) { return command_verifier(options); }},
      {"countdown", [](const VerifierOptions&) { return countdown_verifier(); }},
      {"exact", [](const VerifierOptions&) { return exact_verifier(); }},
      {"last_number", [](const VerifierOptions&) { return last_number_verifier(); }},
      {"regex", [](const VerifierOptions&) { return regex_verifier(); }},
      {"share", [](const VerifierOptions&) { return share_verifier(); }},
  };
  return table;
}

}  // namespace

std::string_view trim(std::string_view text) {
  constexpr std::string_view kSpace = " \t\n\v\f\r";
  const std::size_t begin = text.find_first_not_of(kSpace);
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(kSpace) - begin + 1);
}

std::unique_ptr<Verifier> exact_verifier() { return std::make_unique<Exact>(); }
std::unique_ptr<Verifier> share_verifier() { return std::make_unique<Share>(); }

const std::vector<std::string>& VerifierSet::names() {
  static const std::vector<std::string> names = [] {
    std::vector<std::string> keys;
    for (const auto& entry : factories()) keys.push_back(entry.first);
    return keys;
  }();
  return names;
}

Verifier& VerifierSet::get(const Example& example) {
  auto it = verifiers_.find(example.verifier);
  if (it == verifiers_.end()) {
    const auto factory = factories().find(example.verifier);
    if (factory == factories().end()) {
      fail(ErrorCode::kFormat, "{}: unknown verifier '{}'; known: {}", example.source,
           example.verifier, fmt::join(names(), ", "));
    }
    it = verifiers_.emplace(example.verifier, factory->second(options_)).first;
  }
  return *it->second;
}

void VerifierSet::check(const std::vector<Example>& examples) {
  for (const Example& example : examples) get(example).check(example);
}

double VerifierSet::score(std::string_view response, const Example& example) {
  return get(example).score(response, example);
}

}  // namespace rlk
