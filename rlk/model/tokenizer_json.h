// Reads tokenizer.json into the parts that Tokenizer runs.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "rlk/model/added_tokens.h"
#include "rlk/model/bpe.h"
#include "rlk/model/pre_tokenizer.h"

namespace rlk {

struct TokenizerParts {
  bool nfc = false;
  PreTokenizer pre_tokenizer;
  std::unique_ptr<Bpe> bpe;
  std::vector<AddedToken> added_tokens;
  // What the post-processor's template puts around one text.
  std::vector<std::int32_t> prefix_ids;
  std::vector<std::int32_t> suffix_ids;
};

// Errors: kFormat, kUnsupported, naming source and component.
TokenizerParts parse_tokenizer_json(std::string_view json_text, const std::string& source);

}  // namespace rlk
