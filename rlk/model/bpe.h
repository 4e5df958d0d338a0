// Byte-pair merges: the bytes of one piece of text become token ids.
#pragma once

#include <array>
#include <cstdint>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace rlk {

struct StringHash {
  using is_transparent = void;
  std::size_t operator()(std::string_view text) const {
    return std::hash<std::string_view>{}(text);
  }
};
template <typename T>
using StringMap = std::unordered_map<std::string, T, StringHash, std::equal_to<>>;

struct BpeModel {
  StringMap<std::int32_t> vocab;  // by spelling (byte_level.h)
  // Left and right part, by spelling; the first has the highest priority.
  std::vector<std::pair<std::string, std::string>> merges;
  std::optional<std::int32_t> unk_id;
  bool fuse_unk = false;
  bool ignore_merges = false;  // a piece that is a token is taken whole
};

class Bpe {
 public:
  // Errors: kFormat, naming source, when a merge uses or makes a token outside the vocabulary.
  Bpe(BpeModel model, const std::string& source);

  // Starts with one token per byte and merges the adjacent pair of the lowest rank, the leftmost
  // among equals, until none is left; O(n log n). Appends to ids. Thread-safe; short pieces are
  // remembered. Errors: kInvalidArgument for a byte without a token, when there is no unk_id.
  void encode(std::string_view piece, std::vector<std::int32_t>& ids) const;

  const StringMap<std::int32_t>& vocab() const { return model_.vocab; }

 private:
  struct Merge {
    std::int32_t rank;
    std::int32_t id;
  };
  struct Symbol;
  struct Candidate;

  void encode_uncached(std::string_view piece, std::vector<std::int32_t>& ids) const;
  std::vector<Symbol> byte_symbols(std::string_view piece) const;
  void merge(std::vector<Symbol>& symbols) const;
  const Merge* find_merge(std::int32_t left, std::int32_t right) const;

  BpeModel model_;
  std::array<std::int32_t, 256> byte_ids_{};
  std::unordered_map<std::uint64_t, Merge> merges_;
  mutable std::mutex cache_mutex_;
  mutable StringMap<std::vector<std::int32_t>> cache_;
};

}  // namespace rlk
