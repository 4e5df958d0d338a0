#include "rlk/model/added_tokens.h"

#include <algorithm>
#include <utility>

#include "rlk/model/unicode.h"

namespace rlk {
namespace {

std::uint64_t edge(std::uint64_t node, char byte) {
  return node << 8 | static_cast<unsigned char>(byte);
}

// Start of the last UTF-8 sequence of text; text.size() when it does not end in one.
std::size_t last_sequence(std::string_view text) {
  for (std::size_t length = 1; length <= 4 && length <= text.size(); ++length) {
    const std::size_t begin = text.size() - length;
    if (utf8_length(text.substr(begin)) == length) return begin;
  }
  return text.size();
}

bool ends_with_word(std::string_view text) {
  const std::size_t begin = last_sequence(text);
  return begin < text.size() && is_word_character(first_code_point(text.substr(begin)));
}

bool starts_with_word(std::string_view text) {
  return utf8_length(text) > 0 && is_word_character(first_code_point(text));
}

// Where the white space at the end of text begins.
std::size_t trailing_space_begin(std::string_view text) {
  std::size_t end = text.size();
  while (end > 0) {
    const std::size_t begin = last_sequence(text.substr(0, end));
    if (begin == end || !is_white_space(first_code_point(text.substr(begin)))) break;
    end = begin;
  }
  return end;
}

// Bytes of white space at the start of text.
std::size_t leading_space(std::string_view text) {
  std::size_t end = 0;
  while (const std::size_t length = utf8_length(text.substr(end))) {
    if (!is_white_space(first_code_point(text.substr(end)))) break;
    end += length;
  }
  return end;
}

}  // namespace

void AddedTokenMatcher::add(AddedToken token) {
  if (token.content.empty()) return;
  std::uint64_t node = 0;
  for (char byte : token.content) {
    const auto [it, is_new] = children_.emplace(edge(node, byte), num_nodes_);
    if (is_new) ++num_nodes_;
    node = it->second;
  }
  token_at_node_[node] = tokens_.size();
  tokens_.push_back(std::move(token));
}

const AddedToken* AddedTokenMatcher::longest_at(std::string_view text, std::size_t begin) const {
  const AddedToken* longest = nullptr;
  std::uint64_t node = 0;
  for (std::size_t i = begin; i < text.size(); ++i) {
    const auto child = children_.find(edge(node, text[i]));
    if (child == children_.end()) break;
    node = child->second;
    const auto token = token_at_node_.find(node);
    if (token != token_at_node_.end()) longest = &tokens_[token->second];
  }
  return longest;
}

std::vector<Segment> AddedTokenMatcher::split(std::string_view text) const {
  std::vector<Segment> segments;
  std::size_t done = 0;  // end of what segments cover
  for (std::size_t i = 0; i < text.size() && !tokens_.empty();) {
    const AddedToken* token = longest_at(text, i);
    if (!token) {
      ++i;
      continue;
    }
    std::size_t begin = i;
    std::size_t end = i + token->content.size();
    i = end;
    if (token->single_word &&
        (ends_with_word(text.substr(0, begin)) || starts_with_word(text.substr(end)))) {
      continue;
    }
    if (token->lstrip) begin = std::max(done, trailing_space_begin(text.substr(0, begin)));
    if (token->rstrip) end += leading_space(text.substr(end));
    if (done < begin) segments.push_back({text.substr(done, begin - done), -1});
    segments.push_back({text.substr(begin, end - begin), token->id});
    done = end;
  }
  if (done < text.size()) segments.push_back({text.substr(done), -1});
  return segments;
}

}  // namespace rlk
