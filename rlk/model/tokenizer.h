// Byte-level BPE from a Hugging Face tokenizer.json.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace rlk {

// Text to token ids and back, with the ids that the Hugging Face `tokenizers` library gives.
// Steps: added tokens are cut out (leftmost, longest), the rest is normalised (NFC or nothing),
// split by the pre-tokenizer, and each piece merged by rank; special ids are put around if asked.
// Calls are thread-safe. Not supported, and refused by name: other models than byte-level BPE,
// byte_fallback, dropout, other normalizers, pre-tokenizers, decoders and post-processors.
// The settings `truncation` and `padding` are ignored; so is what the post-processor does to pairs.
class Tokenizer {
 public:
  // Reads <folder>/tokenizer.json. Errors: kIo, kFormat, kUnsupported, with file and component.
  static Tokenizer load(const std::string& folder);
  static Tokenizer parse(std::string_view json_text, const std::string& source);

  Tokenizer(Tokenizer&&) noexcept;
  Tokenizer& operator=(Tokenizer&&) noexcept;
  ~Tokenizer();

  // Bytes that are not UTF-8 are encoded one by one, past normalizer and pre-tokenizer.
  // add_special_tokens adds what the post-processor's template puts around one text (Llama's bos).
  // Errors: kInvalidArgument for a byte that has no token (toy vocabularies; the Hugging Face
  // library drops such bytes).
  std::vector<std::int32_t> encode(std::string_view text, bool add_special_tokens = false) const;

  // The exact bytes of the tokens, one after the other: no replacement characters, no cleaning up.
  // An id without a token gives no bytes, as in the Hugging Face library, because models pad their
  // vocabulary. Errors: kInvalidArgument for a negative id.
  std::string decode(std::span<const std::int32_t> ids, bool skip_special_tokens = false) const;

  // One more than the greatest id; the model's vocab_size must be at least this.
  std::int64_t vocab_size() const;
  // By the spelling in tokenizer.json ("\u0120the" for " the").
  std::optional<std::int32_t> token_to_id(std::string_view token) const;
  std::optional<std::string> id_to_token(std::int32_t id) const;
  bool is_special(std::int32_t id) const;

 private:
  struct State;
  explicit Tokenizer(std::unique_ptr<State> state);

  std::unique_ptr<State> state_;
};

// A tokenizer.json for a toy vocabulary: one token per ASCII character (ids 0, 1, ... in the order
// given), then the special tokens. This loader and the Hugging Face library read it alike.
// Errors: kInvalidArgument (no character, a character twice or not ASCII, an empty or doubled
// special token, a special token that is also a character).
std::string make_character_tokenizer_json(std::string_view characters,
                                          const std::vector<std::string>& special_tokens);

}  // namespace rlk
