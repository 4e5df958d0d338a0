#include "rlk/model/tokenizer.h"

#include <utility>

#include "rlk/core/error.h"
#include "rlk/io/files.h"
#include "rlk/model/byte_level.h"
#include "rlk/model/tokenizer_json.h"
#include "rlk/model/unicode.h"

namespace rlk {
namespace {

struct Token {
  std::string spelling;
  std::string bytes;
  bool exists = false;
  bool special = false;
};

}  // namespace

struct Tokenizer::State {
  TokenizerParts parts;
  AddedTokenMatcher original_matcher;    // added tokens looked for before normalisation
  AddedTokenMatcher normalized_matcher;  // and after it
  std::vector<Token> tokens;             // by id
  StringMap<std::int32_t> added_ids;

  State(TokenizerParts parsed, const std::string& source);

  void add_token(std::int32_t id, std::string spelling, std::string bytes,
                 const std::string& source);
  void check_template_ids(const std::vector<std::int32_t>& ids, const std::string& source) const;
  void encode_text(std::string_view text, std::vector<std::int32_t>& ids) const;
  void encode_valid(std::string_view text, std::vector<std::int32_t>& ids) const;
};

Tokenizer::State::State(TokenizerParts parsed, const std::string& source)
    : parts(std::move(parsed)) {
  for (const auto& [spelling, id] : parts.bpe->vocab()) {
    // A spelling outside the byte alphabet stands for itself, as in the Hugging Face library.
    add_token(id, spelling, bytes_of_spelling(spelling).value_or(spelling), source);
  }
  for (const AddedToken& added : parts.added_tokens) {
    AddedToken sought = added;
    if (sought.normalized && parts.nfc) sought.content = to_nfc(sought.content);
    add_token(added.id, added.content, sought.content, source);
    tokens[static_cast<std::size_t>(added.id)].special = added.special;
    added_ids.insert_or_assign(added.content, added.id);
    (sought.normalized ? normalized_matcher : original_matcher).add(std::move(sought));
  }
  if (tokens.empty()) fail(ErrorCode::kFormat, "{}: field model.vocab: no token", source);
  check_template_ids(parts.prefix_ids, source);
  check_template_ids(parts.suffix_ids, source);
}

// An id past the vocabulary would surface as an error of the model, far from its cause.
void Tokenizer::State::check_template_ids(const std::vector<std::int32_t>& ids,
                                          const std::string& source) const {
  for (std::int32_t id : ids) {
    const auto index = static_cast<std::size_t>(id);
    if (index >= tokens.size() || !tokens[index].exists) {
      fail(ErrorCode::kFormat,
           "{}: field post_processor.special_tokens: id {} is neither in model.vocab nor in "
           "added_tokens",
           source, id);
    }
  }
}

void Tokenizer::State::add_token(std::int32_t id, std::string spelling, std::string bytes,
                                 const std::string& source) {
  const auto index = static_cast<std::size_t>(id);
  if (tokens.size() <= index) tokens.resize(index + 1);
  Token& token = tokens[index];
  if (token.exists && token.spelling != spelling) {
    fail(ErrorCode::kFormat, "{}: tokens \"{}\" and \"{}\" both have id {}", source, token.spelling,
         spelling, id);
  }
  token = {std::move(spelling), std::move(bytes), true, token.special};
}

void Tokenizer::State::encode_valid(std::string_view text, std::vector<std::int32_t>& ids) const {
  const std::string normalized = parts.nfc ? to_nfc(text) : std::string(text);
  for (const Segment& segment : normalized_matcher.split(normalized)) {
    if (segment.id >= 0) {
      ids.push_back(segment.id);
      continue;
    }
    for (const std::string& piece : parts.pre_tokenizer.split(segment.text)) {
      parts.bpe->encode(piece, ids);
    }
  }
}

void Tokenizer::State::encode_text(std::string_view text, std::vector<std::int32_t>& ids) const {
  while (!text.empty()) {
    const std::size_t valid = valid_prefix(text);
    if (valid > 0) encode_valid(text.substr(0, valid), ids);
    text.remove_prefix(valid);
    const std::size_t invalid = invalid_prefix(text);
    if (invalid > 0) parts.bpe->encode(text.substr(0, invalid), ids);
    text.remove_prefix(invalid);
  }
}

Tokenizer::Tokenizer(std::unique_ptr<State> state) : state_(std::move(state)) {}
Tokenizer::Tokenizer(Tokenizer&&) noexcept = default;
Tokenizer& Tokenizer::operator=(Tokenizer&&) noexcept = default;
Tokenizer::~Tokenizer() = default;

Tokenizer Tokenizer::load(const std::string& folder) {
  const std::string path = join_path(folder, "tokenizer.json");
  return parse(read_file(path), path);
}

Tokenizer Tokenizer::parse(std::string_view json_text, const std::string& source) {
  return Tokenizer(std::make_unique<State>(parse_tokenizer_json(json_text, source), source));
}

std::vector<std::int32_t> Tokenizer::encode(std::string_view text, bool add_special_tokens) const {
  const TokenizerParts& parts = state_->parts;
  std::vector<std::int32_t> ids;
  if (add_special_tokens) ids = parts.prefix_ids;
  for (const Segment& segment : state_->original_matcher.split(text)) {
    if (segment.id >= 0) {
      ids.push_back(segment.id);
    } else {
      state_->encode_text(segment.text, ids);
    }
  }
  if (add_special_tokens) ids.insert(ids.end(), parts.suffix_ids.begin(), parts.suffix_ids.end());
  return ids;
}

std::string Tokenizer::decode(std::span<const std::int32_t> ids, bool skip_special_tokens) const {
  std::string text;
  for (std::int32_t id : ids) {
    if (id < 0) fail(ErrorCode::kInvalidArgument, "tokenizer: token id {} is negative", id);
    const auto index = static_cast<std::size_t>(id);
    if (index >= state_->tokens.size()) continue;
    const Token& token = state_->tokens[index];
    if (!(skip_special_tokens && token.special)) text += token.bytes;
  }
  return text;
}

std::int64_t Tokenizer::vocab_size() const {
  return static_cast<std::int64_t>(state_->tokens.size());
}

std::optional<std::int32_t> Tokenizer::token_to_id(std::string_view token) const {
  const auto added = state_->added_ids.find(token);
  if (added != state_->added_ids.end()) return added->second;
  const auto it = state_->parts.bpe->vocab().find(token);
  if (it == state_->parts.bpe->vocab().end()) return std::nullopt;
  return it->second;
}

std::optional<std::string> Tokenizer::id_to_token(std::int32_t id) const {
  if (id < 0 || id >= vocab_size()) return std::nullopt;
  const Token& token = state_->tokens[static_cast<std::size_t>(id)];
  if (!token.exists) return std::nullopt;
  return token.spelling;
}

bool Tokenizer::is_special(std::int32_t id) const {
  return id >= 0 && id < vocab_size() && state_->tokens[static_cast<std::size_t>(id)].special;
}

}  // namespace rlk
