// Tokens that are cut out of a text before anything else happens to it.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace rlk {

struct AddedToken {
  std::int32_t id = 0;
  std::string content;
  bool single_word = false;  // only where no word character touches it
  bool lstrip = false;       // takes the white space before it along
  bool rstrip = false;       // takes the white space after it along
  bool normalized = false;   // looked for in the normalised text, not in the original
  bool special = false;
};

// A stretch of text: an added token (id >= 0) or ordinary text (id == -1).
struct Segment {
  std::string_view text;
  std::int32_t id = -1;
};

// Finds added tokens, the leftmost first and among those the longest.
class AddedTokenMatcher {
 public:
  void add(AddedToken token);

  // Cuts text into added tokens and non-empty rests. The views point into text.
  std::vector<Segment> split(std::string_view text) const;

 private:
  // The longest token that begins at text[begin]; nullptr when none does.
  const AddedToken* longest_at(std::string_view text, std::size_t begin) const;

  std::vector<AddedToken> tokens_;
  // A trie: (node << 8 | byte) to the child node, and node to the token that ends there.
  std::unordered_map<std::uint64_t, std::uint64_t> children_;
  std::unordered_map<std::uint64_t, std::size_t> token_at_node_;
  std::uint64_t num_nodes_ = 1;
};

}  // namespace rlk
