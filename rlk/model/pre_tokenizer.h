// Cuts text into the pieces that BPE never merges across.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "rlk/model/regex.h"

namespace rlk {

// A chain of steps; each cuts every piece of the one before.
class PreTokenizer {
 public:
  enum class Behavior { kIsolated, kRemoved };

  // Matches become pieces of their own, or vanish; so do the stretches between them become pieces.
  void add_split(Regex regex, Behavior behavior);
  // Every piece that does not begin with a space gets one in front.
  void add_prefix_space();

  // text must be valid UTF-8. No piece is empty.
  std::vector<std::string> split(std::string_view text) const;

 private:
  struct Step {
    std::optional<Regex> regex;  // none: prefix space
    Behavior behavior = Behavior::kIsolated;
  };
  static void apply(const Step& step, std::string_view piece, std::vector<std::string>& out);

  std::vector<Step> steps_;
};

// The pattern of ByteLevel with use_regex. Source: GPT-2's encoder.
inline constexpr std::string_view kGpt2Pattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

}  // namespace rlk
