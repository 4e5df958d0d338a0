#include "rlk/model/tokenizer_json.h"

#include <utility>

#include <nlohmann/json.hpp>

#include "rlk/io/json.h"

namespace rlk {
namespace {

// A vocabulary with larger ids would be a mistake or an attack on memory.
constexpr std::int64_t kMaxTokenId = 1 << 24;

[[noreturn]] void unsupported(const FieldReader& reader, std::string_view key,
                              std::string_view supported) {
  reader.refuse(ErrorCode::kUnsupported, key,
                fmt::format("{} is not supported; {}", reader.dump(key), supported));
}

std::string type_of(FieldReader& component) { return component.required<std::string>("type"); }

// normalizer

bool parse_normalizer(FieldReader component) {
  const std::string type = type_of(component);
  bool nfc = type == "NFC";
  if (type == "Sequence") {
    for (FieldReader& step : component.objects("normalizers")) nfc |= parse_normalizer(step);
  } else if (!nfc) {
    unsupported(component, "type", "the normalizers null, NFC and Sequence are");
  }
  component.finish();
  return nfc;
}

// pre_tokenizer

std::string parse_pattern(FieldReader pattern) {
  std::string regex;
  if (pattern.optional("String", regex)) {
    regex = escape_regex(regex);
  } else {
    regex = pattern.required<std::string>("Regex");
  }
  pattern.finish();
  return regex;
}

void parse_split(FieldReader& component, PreTokenizer& out) {
  const std::string where = fmt::format("{}: {}", component.source(), component.path_of("pattern"));
  Regex regex(parse_pattern(component.object("pattern")), where);
  const auto behavior = component.required<std::string>("behavior");
  if (behavior != "Isolated" && behavior != "Removed") {
    unsupported(component, "behavior", "\"Isolated\" and \"Removed\" are");
  }
  bool invert = false;
  component.optional("invert", invert);
  if (invert) unsupported(component, "invert", "false is");
  out.add_split(std::move(regex), behavior == "Isolated" ? PreTokenizer::Behavior::kIsolated
                                                         : PreTokenizer::Behavior::kRemoved);
}

void parse_byte_level(FieldReader& component, PreTokenizer& out) {
  bool add_prefix_space = true;
  bool use_regex = true;
  component.optional("add_prefix_space", add_prefix_space);
  component.optional("use_regex", use_regex);
  component.ignore("trim_offsets");
  if (add_prefix_space) out.add_prefix_space();
  if (use_regex) {
    out.add_split(Regex(kGpt2Pattern, component.source()), PreTokenizer::Behavior::kIsolated);
  }
}

// Returns whether the component ends in ByteLevel, after which only bytes are left to merge.
bool parse_pre_tokenizer(FieldReader component, PreTokenizer& out) {
  const std::string type = type_of(component);
  bool ends_in_bytes = false;
  if (type == "Sequence") {
    for (FieldReader& step : component.objects("pretokenizers")) {
      if (ends_in_bytes) unsupported(step, "type", "ByteLevel must be the last pre-tokenizer");
      ends_in_bytes = parse_pre_tokenizer(step, out);
    }
  } else if (type == "ByteLevel") {
    parse_byte_level(component, out);
    ends_in_bytes = true;
  } else if (type == "Split") {
    parse_split(component, out);
  } else if (type == "WhitespaceSplit") {
    out.add_split(Regex(R"(\s+)", component.source()), PreTokenizer::Behavior::kRemoved);
  } else if (type == "Digits") {
    const bool individual = component.required<bool>("individual_digits");
    out.add_split(Regex(individual ? R"(\p{N})" : R"(\p{N}+)", component.source()),
                  PreTokenizer::Behavior::kIsolated);
  } else {
    unsupported(component, "type",
                "the pre-tokenizers ByteLevel, Split, WhitespaceSplit, Digits and Sequence are");
  }
  component.finish();
  return ends_in_bytes;
}

// model

void refuse_other_models(FieldReader& model) {
  std::string type = "BPE";  // files of old library versions do not say
  model.optional("type", type);
  if (type != "BPE") unsupported(model, "type", "\"BPE\" is");
  bool byte_fallback = false;
  model.optional("byte_fallback", byte_fallback);
  if (byte_fallback) unsupported(model, "byte_fallback", "byte-level BPE (false) is");
  double dropout = 0.0;
  model.optional("dropout", dropout);
  if (dropout != 0.0) unsupported(model, "dropout", "null is");
  for (const char* key : {"continuing_subword_prefix", "end_of_word_suffix"}) {
    std::string affix;
    model.optional(key, affix);
    if (!affix.empty()) unsupported(model, key, "null is");
  }
}

StringMap<std::int32_t> parse_vocab(FieldReader table) {
  StringMap<std::int32_t> vocab;
  for (const auto& [token, id] : table.raw().items()) {
    if (!id.is_number_integer() || id < 0 || id > kMaxTokenId) {
      table.refuse(ErrorCode::kFormat, token,
                   fmt::format("expected an id between 0 and {}, got {}", kMaxTokenId, id.dump()));
    }
    vocab.emplace(token, id.get<std::int32_t>());
  }
  return vocab;
}

// A merge is "left right" or ["left", "right"].
std::pair<std::string, std::string> parse_merge(const FieldReader& model, std::size_t index,
                                                const nlohmann::json& merge) {
  if (merge.is_string()) {
    const auto& text = merge.get_ref<const std::string&>();
    const std::size_t space = text.find(' ');
    if (space != std::string::npos && text.find(' ', space + 1) == std::string::npos) {
      return {text.substr(0, space), text.substr(space + 1)};
    }
  } else if (merge.is_array() && merge.size() == 2 && merge[0].is_string() &&
             merge[1].is_string()) {
    return {merge[0].get<std::string>(), merge[1].get<std::string>()};
  }
  model.refuse(ErrorCode::kFormat, fmt::format("merges[{}]", index),
               fmt::format("expected \"a b\" or [\"a\", \"b\"], got {}", merge.dump()));
}

BpeModel parse_model(FieldReader model) {
  refuse_other_models(model);
  BpeModel bpe;
  bpe.vocab = parse_vocab(model.object("vocab"));
  if (model.is_array("merges")) {
    const nlohmann::json& merges = model.raw()["merges"];
    for (std::size_t i = 0; i < merges.size(); ++i) {
      bpe.merges.push_back(parse_merge(model, i, merges[i]));
    }
  } else if (model.has("merges")) {
    model.refuse(ErrorCode::kFormat, "merges", "expected an array, got " + model.dump("merges"));
  }
  model.ignore("merges");
  model.optional("ignore_merges", bpe.ignore_merges);
  model.optional("fuse_unk", bpe.fuse_unk);
  std::string unk_token;
  if (model.optional("unk_token", unk_token)) {
    const auto it = bpe.vocab.find(unk_token);
    if (it == bpe.vocab.end()) {
      model.refuse(ErrorCode::kFormat, "unk_token",
                   fmt::format("\"{}\" is not in model.vocab", unk_token));
    }
    bpe.unk_id = it->second;
  }
  model.finish();
  return bpe;
}

// added_tokens

AddedToken parse_added_token(FieldReader& entry, const StringMap<std::int32_t>& vocab) {
  AddedToken token;
  token.id =
      static_cast<std::int32_t>(entry.required<std::int64_t>("id", {.min = 0, .max = kMaxTokenId}));
  token.content = entry.required<std::string>("content");
  entry.optional("special", token.special);
  token.normalized = !token.special;
  entry.optional("normalized", token.normalized);
  entry.optional("single_word", token.single_word);
  entry.optional("lstrip", token.lstrip);
  entry.optional("rstrip", token.rstrip);
  const auto it = vocab.find(token.content);
  if (it != vocab.end() && it->second != token.id) {
    entry.refuse(ErrorCode::kFormat, "id",
                 fmt::format("{} contradicts model.vocab, where \"{}\" has id {}", token.id,
                             token.content, it->second));
  }
  return token;
}

// decoder

void check_decoder(FieldReader component) {
  const std::string type = type_of(component);
  if (type == "ByteLevel" || type == "Fuse") return;
  if (type != "Sequence") unsupported(component, "type", "the decoder ByteLevel is");
  for (FieldReader& step : component.objects("decoders")) check_decoder(step);
}

// post_processor

void parse_template(FieldReader& component, TokenizerParts& parts) {
  FieldReader special_tokens = component.object("special_tokens");
  bool before_text = true;
  for (FieldReader& piece : component.objects("single")) {
    if (piece.has("Sequence")) {
      before_text = false;
      continue;
    }
    const auto name = piece.object("SpecialToken").required<std::string>("id");
    const auto ids =
        special_tokens.object(name).required<std::vector<int>>("ids", {{0, kMaxTokenId}});
    auto& target = before_text ? parts.prefix_ids : parts.suffix_ids;
    target.insert(target.end(), ids.begin(), ids.end());
  }
}

void parse_post_processor(FieldReader component, TokenizerParts& parts) {
  const std::string type = type_of(component);
  if (type == "Sequence") {
    for (FieldReader& step : component.objects("processors")) parse_post_processor(step, parts);
  } else if (type == "TemplateProcessing") {
    parse_template(component, parts);
  } else if (type != "ByteLevel") {  // ByteLevel only moves offsets
    unsupported(component, "type",
                "the post-processors null, ByteLevel, TemplateProcessing and Sequence are");
  }
}

}  // namespace

TokenizerParts parse_tokenizer_json(std::string_view json_text, const std::string& source) {
  const JsonDocument document = JsonDocument::parse(json_text, source);
  FieldReader root = document.object();
  TokenizerParts parts;
  if (root.has("normalizer")) parts.nfc = parse_normalizer(root.object("normalizer"));
  if (!root.has("pre_tokenizer") ||
      !parse_pre_tokenizer(root.object("pre_tokenizer"), parts.pre_tokenizer)) {
    unsupported(root, "pre_tokenizer", "one that ends in ByteLevel is");
  }
  if (!root.has("decoder")) unsupported(root, "decoder", "the decoder ByteLevel is");
  check_decoder(root.object("decoder"));
  if (!root.has("model")) root.refuse(ErrorCode::kFormat, "model", "missing; expected an object");
  parts.bpe = std::make_unique<Bpe>(parse_model(root.object("model")), source);
  for (FieldReader& entry : root.objects("added_tokens")) {
    parts.added_tokens.push_back(parse_added_token(entry, parts.bpe->vocab()));
  }
  if (root.has("post_processor")) parse_post_processor(root.object("post_processor"), parts);
  return parts;
}

}  // namespace rlk
