#include "rlk/model/pre_tokenizer.h"

#include <algorithm>
#include <utility>

#include "rlk/model/unicode.h"

namespace rlk {

void PreTokenizer::add_split(Regex regex, Behavior behavior) {
  steps_.push_back({std::move(regex), behavior});
}

void PreTokenizer::add_prefix_space() { steps_.push_back({}); }

void PreTokenizer::apply(const Step& step, std::string_view piece, std::vector<std::string>& out) {
  if (!step.regex) {
    out.emplace_back(piece.starts_with(' ') ? "" : " ").append(piece);
    return;
  }
  const auto keep = [&](std::size_t begin, std::size_t end) {
    if (begin < end) out.emplace_back(piece.substr(begin, end - begin));
  };
  std::size_t done = 0;
  std::size_t search = 0;
  while (search <= piece.size()) {
    const std::optional<Match> match = step.regex->find(piece, search);
    if (!match) break;
    keep(done, match->begin);
    if (step.behavior == Behavior::kIsolated) keep(match->begin, match->end);
    done = match->end;
    search = match->end;
    // An empty match cuts, and the search goes on after the next character.
    if (match->begin == match->end)
      search += std::max<std::size_t>(1, utf8_length(piece.substr(search)));
  }
  keep(done, piece.size());
}

std::vector<std::string> PreTokenizer::split(std::string_view text) const {
  std::vector<std::string> pieces;
  if (!text.empty()) pieces.emplace_back(text);
  for (const Step& step : steps_) {
    std::vector<std::string> next;
    for (const std::string& piece : pieces) apply(step, piece, next);
    pieces = std::move(next);
  }
  return pieces;
}

}  // namespace rlk
