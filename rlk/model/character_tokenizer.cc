#include <set>

#include <nlohmann/json.hpp>

#include "rlk/core/error.h"
#include "rlk/model/byte_level.h"
#include "rlk/model/tokenizer.h"

namespace rlk {
namespace {

using Json = nlohmann::ordered_json;

Json added_token(std::size_t id, const std::string& content) {
  return {{"id", id},        {"content", content},  {"single_word", false}, {"lstrip", false},
          {"rstrip", false}, {"normalized", false}, {"special", true}};
}

Json byte_level() {
  return {{"type", "ByteLevel"},
          {"add_prefix_space", false},
          {"trim_offsets", true},
          {"use_regex", false}};
}

}  // namespace

std::string make_character_tokenizer_json(std::string_view characters,
                                          const std::vector<std::string>& special_tokens) {
  if (characters.empty()) fail(ErrorCode::kInvalidArgument, "tokenizer: no characters");
  Json vocab = Json::object();
  std::set<std::string> used;
  for (const char& c : characters) {
    if (static_cast<unsigned char>(c) >= 0x80) {
      fail(ErrorCode::kInvalidArgument, "tokenizer: byte 0x{:02x} is not an ASCII character",
           static_cast<unsigned char>(c));
    }
    if (!used.insert(std::string(1, c)).second) {
      fail(ErrorCode::kInvalidArgument, "tokenizer: character '{}' appears twice", c);
    }
    const std::size_t id = vocab.size();
    vocab[spell_bytes({&c, 1})] = id;
  }
  Json added = Json::array();
  for (const std::string& token : special_tokens) {
    if (token.empty() || !used.insert(token).second) {
      fail(ErrorCode::kInvalidArgument, "tokenizer: special token \"{}\" is empty or used twice",
           token);
    }
    added.push_back(added_token(vocab.size() + added.size(), token));
  }
  const Json root = {{"version", "1.0"},
                     {"truncation", nullptr},
                     {"padding", nullptr},
                     {"added_tokens", added},
                     {"normalizer", nullptr},
                     {"pre_tokenizer", byte_level()},
                     {"post_processor", nullptr},
                     {"decoder", byte_level()},
                     {"model",
                      {{"type", "BPE"},
                       {"dropout", nullptr},
                       {"unk_token", nullptr},
                       {"continuing_subword_prefix", nullptr},
                       {"end_of_word_suffix", nullptr},
                       {"fuse_unk", false},
                       {"byte_fallback", false},
                       {"ignore_merges", false},
                       {"vocab", vocab},
                       {"merges", Json::array()}}}};
  return root.dump(2) + "\n";
}

}  // namespace rlk
