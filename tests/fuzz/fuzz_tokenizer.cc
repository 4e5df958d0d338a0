// tokenizer.json, and what a tokenizer that was accepted does with text. Bytes behind the first
// zero byte are the text; without one the JSON itself is.
#include <algorithm>

#include "rlk/model/tokenizer.h"
#include "tests/fuzz/fuzz.h"

using rlk::fuzz::promise;

namespace {

void round_trip(const rlk::Tokenizer& tokenizer, std::string_view text) {
  const std::vector<std::int32_t> ids = tokenizer.encode(text, true);
  for (std::int32_t id : ids) {
    promise(id >= 0 && id < tokenizer.vocab_size(), "ids lie inside the vocabulary");
  }
  const std::string whole = tokenizer.decode(ids);
  std::string parts;
  for (std::int32_t id : ids) parts += tokenizer.decode({&id, 1});
  promise(whole == parts, "tokens decode one by one to the same bytes");
  promise(tokenizer.decode(ids, true).size() <= whole.size(), "skipping adds nothing");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  return rlk::fuzz::loads_or_refuses([&] {
    const std::string_view bytes = rlk::fuzz::text(data, size);
    const std::size_t end = std::min(bytes.find('\0'), bytes.size());
    const rlk::Tokenizer tokenizer =
        rlk::Tokenizer::parse(bytes.substr(0, end), rlk::fuzz::kSource);
    const std::string_view text = end < size ? bytes.substr(end + 1) : bytes;
    try {
      round_trip(tokenizer, text);
      round_trip(tokenizer, text.substr(text.size() / 2));  // perhaps in the middle of a character
    } catch (const rlk::Error& error) {
      promise(error.code() == rlk::ErrorCode::kInvalidArgument, "a byte without a token");
    }
  });
}
