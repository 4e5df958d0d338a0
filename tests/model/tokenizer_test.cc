// Tokenizers against ids that Hugging Face's library gave (tools/gen_tokenizer_goldens.py), and
// what is our own: exact bytes, bytes without a token, refusals.
#include "rlk/model/tokenizer.h"

#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <nlohmann/json.hpp>
#include <thread>

#include "rlk/io/files.h"
#include "rlk/io/json.h"
#include "rlk/model/added_tokens.h"
#include "rlk/model/bpe.h"
#include "rlk/model/byte_level.h"
#include "rlk/model/regex.h"
#include "rlk/model/unicode.h"
#include "tests/io/error_matchers.h"

namespace rlk {
namespace {

using nlohmann::json;
using Ids = std::vector<std::int32_t>;

std::string golden(const std::string& name) {
  return std::string(RLK_SOURCE_DIR) + "/tests/goldens/tokenizer/" + name;
}

Tokenizer load_golden(const std::string& name) {
  const std::string path = golden(name + ".tokenizer.json");
  return Tokenizer::parse(read_file(path), path);
}

json golden_spec(const std::string& name) {
  return json::parse(read_file(golden(name + ".tokenizer.json")));
}

class HuggingFaceGoldens : public testing::TestWithParam<const char*> {};

TEST_P(HuggingFaceGoldens, GiveTheSameIds) {
  const Tokenizer tokenizer = load_golden(GetParam());
  const json cases = json::parse(read_file(golden(std::string(GetParam()) + ".cases.json")));
  ASSERT_GT(cases.size(), 80u);
  for (const json& one : cases) {
    const auto text = one["text"].get<std::string>();
    const auto ids = one["ids"].get<Ids>();
    EXPECT_EQ(tokenizer.encode(text), ids) << one["text"];
    EXPECT_EQ(tokenizer.encode(text, true), one.value("ids_special", ids)) << one["text"];
  }
}

TEST_P(HuggingFaceGoldens, DecodeToTheSameText) {
  const Tokenizer tokenizer = load_golden(GetParam());
  for (const json& one : json::parse(read_file(golden(std::string(GetParam()) + ".cases.json")))) {
    const auto ids = one["ids"].get<Ids>();
    const std::string decoded = one.value("decoded", one["text"].get<std::string>());
    EXPECT_EQ(tokenizer.decode(ids), decoded);
    EXPECT_EQ(tokenizer.decode(ids, true), one.value("decoded_without_special", decoded));
  }
}

INSTANTIATE_TEST_SUITE_P(All, HuggingFaceGoldens,
                         testing::Values("qwen2", "gpt2", "gpt2_prefix_space", "llama3", "splits",
                                         "whitespace"),
                         [](const auto& info) { return std::string(info.param); });

TEST(Tokenizer, KnowsItsTokens) {
  const Tokenizer tokenizer = load_golden("qwen2");
  const auto end = tokenizer.token_to_id("<|im_end|>");
  ASSERT_TRUE(end);
  EXPECT_EQ(tokenizer.id_to_token(*end), "<|im_end|>");
  EXPECT_TRUE(tokenizer.is_special(*end));
  EXPECT_FALSE(tokenizer.is_special(tokenizer.token_to_id("<think>").value()));
  EXPECT_EQ(tokenizer.id_to_token(tokenizer.token_to_id("\u0120the").value()), "\u0120the");
  EXPECT_FALSE(tokenizer.token_to_id("no such token"));
  EXPECT_FALSE(tokenizer.id_to_token(-1));
  EXPECT_FALSE(tokenizer.id_to_token(static_cast<std::int32_t>(tokenizer.vocab_size())));
  EXPECT_EQ(tokenizer.id_to_token(static_cast<std::int32_t>(tokenizer.vocab_size() - 1)), "<tag>>");
}

TEST(Tokenizer, DecodeGivesBackAnyBytesExactly) {
  const Tokenizer tokenizer = load_golden("gpt2");
  std::string all;
  for (int byte = 0; byte < 256; ++byte) all += static_cast<char>(byte);
  for (const std::string& text :
       {all, std::string("caf\xc3"), std::string("\xff\xfe ok \xed\xa0\x80 \xc0\xaf"),
        std::string("\xf0\x9f\x98<|endoftext|>\x80")}) {
    EXPECT_EQ(tokenizer.decode(tokenizer.encode(text)), text);
  }
  EXPECT_TRUE(rc::check("any bytes", [&] {
    const auto text = *rc::gen::arbitrary<std::string>();
    RC_ASSERT(tokenizer.decode(tokenizer.encode(text)) == text);
  }));
}

TEST(Tokenizer, DecodeSplitsCharactersBetweenTokensWithoutReplacement) {
  const Tokenizer tokenizer = load_golden("gpt2");
  const Ids ids = tokenizer.encode("\u2adc");  // not in the training text: three byte tokens
  ASSERT_EQ(ids.size(), 3u);
  EXPECT_EQ(tokenizer.decode(std::span(ids).first(1)), "\xe2");
  EXPECT_EQ(tokenizer.decode(std::span(ids).last(2)), "\xab\x9c");
}

TEST(Tokenizer, DecodeRefusesNegativeIdsAndSkipsPaddedOnes) {
  const Tokenizer tokenizer = load_golden("gpt2");
  EXPECT_EQ(tokenizer.decode(Ids{1000000}), "");
  expect_error(ErrorCode::kInvalidArgument, {"-5"}, [&] { tokenizer.decode(Ids{-5}); });
}

TEST(Tokenizer, EncodesTheSameFromSeveralThreads) {
  const Tokenizer tokenizer = load_golden("qwen2");
  const std::string text = read_file(golden("qwen2.cases.json")).substr(0, 8000);
  const Ids expected = load_golden("qwen2").encode(text);
  std::vector<Ids> got(4);
  std::vector<std::thread> threads;
  for (Ids& ids : got) threads.emplace_back([&] { ids = tokenizer.encode(text); });
  for (std::thread& thread : threads) thread.join();
  for (const Ids& ids : got) EXPECT_EQ(ids, expected);
}

TEST(Tokenizer, LongPiecesTakeLittleTime) {
  const Tokenizer tokenizer = load_golden("qwen2");
  for (const char* unit : {"a", "the", " ", "\n", " \n", "1", "\u4f60", "'", "!"}) {
    std::string text;
    while (text.size() < 300000) text += unit;
    EXPECT_EQ(tokenizer.decode(tokenizer.encode(text)), text);
  }
}

// Changes one place of a valid file and expects a refusal that names it.
void expect_refused(ErrorCode code, const std::string& pointer, const json& value,
                    const std::vector<std::string>& named) {
  json spec = golden_spec("qwen2");
  spec[json::json_pointer(pointer)] = value;
  expect_error(code, named, [&] { Tokenizer::parse(spec.dump(), "t.json"); });
}

TEST(TokenizerJson, RefusesWhatItCannotDoAndNamesIt) {
  const ErrorCode unsupported = ErrorCode::kUnsupported;
  expect_refused(unsupported, "/model/type", "WordPiece", {"t.json", "model.type", "WordPiece"});
  expect_refused(unsupported, "/model/byte_fallback", true, {"model.byte_fallback"});
  expect_refused(unsupported, "/model/dropout", 0.1, {"model.dropout", "0.1"});
  expect_refused(unsupported, "/model/end_of_word_suffix", "</w>", {"end_of_word_suffix", "</w>"});
  expect_refused(unsupported, "/normalizer", {{"type", "NFKC"}}, {"normalizer.type", "NFKC"});
  expect_refused(unsupported, "/decoder", {{"type", "WordPiece"}}, {"decoder.type", "WordPiece"});
  expect_refused(unsupported, "/decoder", nullptr, {"decoder"});
  expect_refused(unsupported, "/pre_tokenizer", nullptr, {"pre_tokenizer", "ByteLevel"});
  expect_refused(unsupported, "/pre_tokenizer", {{"type", "Metaspace"}}, {"Metaspace"});
  expect_refused(unsupported, "/pre_tokenizer", {{"type", "WhitespaceSplit"}}, {"ByteLevel"});
  expect_refused(unsupported, "/pre_tokenizer/pretokenizers/0/behavior", "MergedWithNext",
                 {"pre_tokenizer.pretokenizers[0].behavior", "MergedWithNext"});
  expect_refused(unsupported, "/pre_tokenizer/pretokenizers/0/invert", true, {"invert"});
  expect_refused(unsupported, "/pre_tokenizer/pretokenizers/0/pattern/Regex", R"(\w+)",
                 {"pattern", R"(\w)"});
  expect_refused(unsupported, "/pre_tokenizer/pretokenizers/0/pattern/Regex", "(a",
                 {"pattern", "(a"});
  expect_refused(unsupported, "/post_processor", {{"type", "BertProcessing"}}, {"BertProcessing"});
}

TEST(TokenizerJson, RefusesContradictionsAndNamesThem) {
  const ErrorCode format = ErrorCode::kFormat;
  expect_refused(format, "/model/merges/0", json::array({"a", "zzz"}), {"merges[0]", "zzz"});
  expect_refused(format, "/model/merges/0", "a b c", {"model.merges[0]", "a b c"});
  expect_refused(format, "/model/merges", 1, {"model.merges"});
  expect_refused(format, "/model/vocab/a", -1, {"model.vocab.a", "-1"});
  expect_refused(format, "/model/vocab/a", 99999999999, {"model.vocab.a", "99999999999"});
  expect_refused(format, "/model/vocab/a", 5, {"both have id 5"});
  expect_refused(format, "/model/unk_token", "<unk>", {"model.unk_token", "<unk>"});
  expect_refused(format, "/model/new_option", true, {"model.new_option", "unknown key"});
  expect_refused(format, "/added_tokens/0/content", "a", {"added_tokens[0].id", "contradicts"});
  expect_refused(format, "/added_tokens/0/content", 1, {"added_tokens[0].content", "a string"});
  expect_error(format, {"t.json", "model"}, [] {
    json spec = golden_spec("qwen2");
    spec.erase("model");
    Tokenizer::parse(spec.dump(), "t.json");
  });
  expect_error(ErrorCode::kIo, {"/no/such/folder/tokenizer.json"},
               [] { Tokenizer::load("/no/such/folder"); });
}

TEST(CharacterTokenizer, GivesOneTokenPerCharacter) {
  const Tokenizer tokenizer = Tokenizer::parse(
      make_character_tokenizer_json("0123456789 +=\n\"\\", {"<bos>", "<eos>"}), "t");
  EXPECT_EQ(tokenizer.vocab_size(), 18);
  EXPECT_EQ(tokenizer.encode("12 +<eos>\n"), (Ids{1, 2, 10, 11, 17, 13}));
  EXPECT_EQ(tokenizer.decode(Ids{1, 2, 10, 11, 17, 13}), "12 +<eos>\n");
  EXPECT_EQ(tokenizer.decode(Ids{16, 1, 17}, true), "1");
  expect_error(ErrorCode::kInvalidArgument, {"0x61", "3a"}, [&] { tokenizer.encode("3a"); });
}

TEST(CharacterTokenizer, ReadsLikeTheGoldenThatTheHuggingFaceLibraryLoaded) {
  EXPECT_EQ(make_character_tokenizer_json("0123456789 +=>\n\"\\~", {"<|pad|>", "<|eos|>"}),
            read_file(golden("characters.tokenizer.json")));
  const Tokenizer tokenizer = load_golden("characters");
  for (const json& one : json::parse(read_file(golden("characters.cases.json")))) {
    EXPECT_EQ(tokenizer.encode(one["text"].get<std::string>()), one["ids"].get<Ids>());
  }
}

TEST(CharacterTokenizer, RefusesDoubledAndForeignCharacters) {
  const ErrorCode invalid = ErrorCode::kInvalidArgument;
  expect_error(invalid, {"no characters"}, [] { make_character_tokenizer_json("", {}); });
  expect_error(invalid, {"'a'", "twice"}, [] { make_character_tokenizer_json("aba", {}); });
  expect_error(invalid, {"0xc3"}, [] { make_character_tokenizer_json("\u00e9", {}); });
  expect_error(invalid, {"\"<e>\""}, [] { make_character_tokenizer_json("a", {"<e>", "<e>"}); });
  expect_error(invalid, {"\"a\""}, [] { make_character_tokenizer_json("a", {"a"}); });
  expect_error(invalid, {"\"\""}, [] { make_character_tokenizer_json("a", {""}); });
}

// Merges as the definition says: the lowest rank first, the leftmost among equals.
Ids merge_slowly(const BpeModel& model, std::string_view text) {
  std::vector<std::string> symbols;
  for (char c : text) symbols.emplace_back(1, c);
  while (true) {
    std::size_t best_rank = model.merges.size();
    std::size_t best = 0;
    for (std::size_t i = 0; i + 1 < symbols.size(); ++i) {
      const auto it = std::find(model.merges.begin(), model.merges.begin() + best_rank,
                                std::pair(symbols[i], symbols[i + 1]));
      const auto rank = static_cast<std::size_t>(it - model.merges.begin());
      if (rank < best_rank) {
        best_rank = rank;
        best = i;
      }
    }
    if (best_rank == model.merges.size()) break;
    symbols[best] += symbols[best + 1];
    symbols.erase(symbols.begin() + static_cast<std::ptrdiff_t>(best) + 1);
  }
  Ids ids;
  for (const std::string& symbol : symbols) ids.push_back(model.vocab.find(symbol)->second);
  return ids;
}

TEST(Bpe, MergesAsTheDefinitionSays) {
  EXPECT_TRUE(rc::check("random merges", [] {
    BpeModel model;
    for (const char* letter : {"a", "b", "c"}) {
      model.vocab.emplace(letter, static_cast<std::int32_t>(model.vocab.size()));
    }
    std::vector<std::string> tokens{"a", "b", "c"};
    const auto num_merges = *rc::gen::inRange(0, 12);
    for (int i = 0; i < num_merges; ++i) {
      const std::string left = *rc::gen::elementOf(tokens);
      const std::string right = *rc::gen::elementOf(tokens);
      if (!model.vocab.emplace(left + right, static_cast<std::int32_t>(model.vocab.size()))
               .second) {
        continue;
      }
      tokens.push_back(left + right);
      model.merges.emplace_back(left, right);
    }
    const auto text = *rc::gen::container<std::string>(rc::gen::elementOf(std::string("abc")));
    Ids ids;
    Bpe(model, "test").encode(text, ids);
    RC_ASSERT(ids == merge_slowly(model, text));
  }));
}

TEST(Bpe, UnknownBytesBecomeUnk) {
  BpeModel model;
  model.vocab = {{"a", 0}, {"<unk>", 1}};
  model.unk_id = 1;
  Ids ids;
  Bpe(model, "test").encode("axya", ids);
  EXPECT_EQ(ids, (Ids{0, 1, 1, 0}));
  ids.clear();
  model.fuse_unk = true;
  Bpe(model, "test").encode("axya", ids);
  EXPECT_EQ(ids, (Ids{0, 1, 0}));
}

TEST(ByteLevel, SpellingIsOneToOne) {
  for (int byte = 0; byte < 256; ++byte) {
    const std::string bytes(1, static_cast<char>(byte));
    EXPECT_EQ(bytes_of_spelling(spell_bytes(bytes)), bytes);
  }
  EXPECT_EQ(spell_bytes(" \n!\xad"), "\u0120\u010a!\u0143");
  EXPECT_FALSE(bytes_of_spelling("a b"));
  EXPECT_FALSE(bytes_of_spelling("\u4f60"));
  EXPECT_FALSE(bytes_of_spelling("\xff"));
}

TEST(Unicode, TellsValidUtf8) {
  for (const char* valid : {"a", "\xc2\x80", "\xe0\xa0\x80", "\xed\x9f\xbf", "\xef\xbf\xbf",
                            "\xf0\x90\x80\x80", "\xf4\x8f\xbf\xbf"}) {
    EXPECT_EQ(utf8_length(valid), std::string_view(valid).size());
  }
  for (const char* invalid :
       {"", "\x80", "\xc0\x80", "\xc1\xbf", "\xc3", "\xe0\x9f\xbf", "\xe2\x82", "\xed\xa0\x80",
        "\xf0\x8f\xbf\xbf", "\xf4\x90\x80\x80", "\xf5\x80\x80\x80", "\xff"}) {
    EXPECT_EQ(utf8_length(invalid), 0u);
  }
}

TEST(Regex, RefusesWhatTheTwoLibrariesReadDifferently) {
  for (const char* pattern :
       {R"(\w)", R"(\b)", R"(\h)", R"(\R)", R"(\1)", "[a[b]]", "[[:alpha:]]", "[a&&b]", R"([\S])",
        "(?m:a)", "(?i)a", "(?<n>a)", "(*UCP)", "[]a]", "a\\", "[a", "a)"}) {
    expect_error(ErrorCode::kUnsupported, {"here", pattern}, [&] { Regex(pattern, "here"); });
  }
}

TEST(Regex, EscapedTextMatchesItself) {
  const std::string text = "a.b*[c]\\d (e)|^$ \u00e9\t#-&&";
  const auto match = Regex(escape_regex(text), "here").find("xx" + text, 0);
  ASSERT_TRUE(match);
  EXPECT_EQ(match->begin, 2u);
  EXPECT_EQ(match->end, 2 + text.size());
}

}  // namespace
}  // namespace rlk
