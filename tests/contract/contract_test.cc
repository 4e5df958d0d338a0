#include "rlk/contract/contract.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "rlk/core/digest.h"
#include "tests/io/error_matchers.h"

namespace rlk {
namespace {

using nlohmann::json;

// Every field away from its default.
Contract unusual() {
  Contract c;
  c.profile = Profile::kSm90;
  c.leaves = 4;
  c.kv_block = 64;
  c.kv_split = 512;
  c.norm_lanes = 128;
  c.vocab_padded = 1024;
  c.token_block = 32;
  c.grad_group = 4096;
  c.grad_slots = 8;
  return c;
}

TEST(Contract, CanonicalJsonHasSortedKeysAndNoSpaces) {
  const std::string text = canonical_json({});
  EXPECT_EQ(text.find(' '), std::string::npos);
  EXPECT_EQ(text, json::parse(text).dump());
  EXPECT_EQ(text.substr(0, 52), R"({"grad_group":8192,"grad_slots":1,"kv_block":128,"kv)");
}

TEST(Contract, ComesBackFromItsCanonicalJson) {
  for (const Contract& c : {Contract(), unusual()}) {
    EXPECT_EQ(parse_contract(canonical_json(c), "test"), c);
  }
  EXPECT_EQ(parse_contract("{}", "test"), Contract());
  Contract four_leaves;
  four_leaves.leaves = 4;
  EXPECT_EQ(parse_contract(R"({"leaves": 4})", "test"), four_leaves);
}

// A digest stands for bits in runs that are stored: it may change only together with a bit.
TEST(Contract, DigestsAreThoseOfVersion1) {
  EXPECT_EQ(forward_digest({}), "362fe6be78aca71d11805d6b7eaa39e589529db1cde9f66ca405c6d52b05509e");
  EXPECT_EQ(backward_digest({}),
            "c13f0a5f012ada3b5bb985cf440a97520a30caa77863686b51c127fcafa1760d");
  EXPECT_EQ(forward_digest(unusual()),
            "e23dccad5037558411d5c7e56d61291807d5551de0b40de27b072b0e7102e01b");
  EXPECT_EQ(backward_digest({}), sha256_hex(canonical_json({})));
}

TEST(Contract, TheModelOfAMatrixInstructionIsAPrimitiveOfItsProfile) {
  Contract c;
  EXPECT_EQ(canonical_json(c).find("mac."), std::string::npos);
  for (const char* name : {"sm90", "cdna3", "cdna2"}) {
    c.profile = parse_profile(name);
    EXPECT_NE(canonical_json(c).find("\"mac." + std::string(name) + "/1\""), std::string::npos);
    EXPECT_EQ(parse_contract(canonical_json(c), "test"), c);
  }
}

TEST(Contract, TheForwardDigestKnowsForwardFieldsOnly) {
  const auto forward_changes = [](auto change) {
    Contract c;
    change(c);
    EXPECT_NE(backward_digest(c), backward_digest({}));
    return forward_digest(c) != forward_digest({});
  };
  EXPECT_TRUE(forward_changes([](Contract& c) { c.profile = Profile::kCdna3; }));
  EXPECT_TRUE(forward_changes([](Contract& c) { c.leaves = 16; }));
  EXPECT_TRUE(forward_changes([](Contract& c) { c.kv_block = 64; }));
  EXPECT_TRUE(forward_changes([](Contract& c) { c.kv_split = 2048; }));
  EXPECT_TRUE(forward_changes([](Contract& c) { c.norm_lanes = 512; }));
  EXPECT_FALSE(forward_changes([](Contract& c) { c.vocab_padded = 4096; }));
  EXPECT_FALSE(forward_changes([](Contract& c) { c.token_block = 16; }));
  EXPECT_FALSE(forward_changes([](Contract& c) { c.grad_group = 1024; }));
  EXPECT_FALSE(forward_changes([](Contract& c) { c.grad_slots = 4; }));
}

TEST(Contract, DifferencesNameEveryFieldThatDiffers) {
  EXPECT_TRUE(differences({}, {}).empty());
  const std::vector<std::string> lines = differences({}, unusual());
  EXPECT_EQ(lines.size(), 9u);
  EXPECT_EQ(lines[0], "profile: portable != sm90");
  EXPECT_NE(std::find(lines.begin(), lines.end(), "kv_block: 128 != 64"), lines.end());
}

TEST(Contract, RefusesValuesThatBreakARule) {
  const auto refused = [](auto change, const std::vector<std::string>& named) {
    Contract c;
    change(c);
    expect_error(ErrorCode::kInvalidArgument, named, [&] { validate(c); });
  };
  refused([](Contract& c) { c.version = 2; }, {"contract.version = 2"});
  refused([](Contract& c) { c.leaves = 6; }, {"contract.leaves = 6", "power of two"});
  refused([](Contract& c) { c.leaves = 128; }, {"contract.leaves = 128", "64"});
  refused([](Contract& c) { c.kv_block = 100; }, {"contract.kv_block = 100", "16"});
  refused([](Contract& c) { c.kv_block = 0; }, {"contract.kv_block = 0"});
  refused([](Contract& c) { c.kv_split = 1000; }, {"contract.kv_split = 1000", "kv_block"});
  refused([](Contract& c) { c.kv_split = 64; }, {"contract.kv_split = 64"});
  refused([](Contract& c) { c.norm_lanes = 8; }, {"contract.norm_lanes = 8"});
  refused([](Contract& c) { c.softmax_lanes = 32; }, {"contract.softmax_lanes = 32"});
  refused([](Contract& c) { c.vocab_padded = 130; }, {"contract.vocab_padded = 130"});
  refused([](Contract& c) { c.token_block = 0; }, {"contract.token_block = 0"});
  refused([](Contract& c) { c.grad_group = 100; }, {"contract.grad_group = 100"});
  refused([](Contract& c) { c.grad_slots = 3; }, {"contract.grad_slots = 3"});
  refused([](Contract& c) { c.grad_slots = 0; }, {"contract.grad_slots = 0"});
}

TEST(Contract, RefusesJsonThatIsNoContract) {
  const auto refused = [](const std::string& text, const std::vector<std::string>& named,
                          ErrorCode code = ErrorCode::kFormat) {
    expect_error(code, named, [&] { parse_contract(text, "file.json"); });
  };
  refused("{", {"file.json", "JSON"});
  refused("[1]", {"file.json", "object"});
  refused(R"({"kv_blok": 64})", {"file.json", "kv_blok"});
  refused(R"({"kv_block": "64"})", {"file.json", "kv_block", "\"64\""});
  refused(R"({"kv_block": 64.0})", {"file.json", "kv_block", "64.0"});
  refused(R"({"kv_block": 4294967424})", {"file.json", "kv_block", "4294967424"});
  refused(R"({"grad_slots": 18446744073709551615})", {"file.json", "grad_slots"});
  refused(R"({"profile": 3})", {"file.json", "profile"});
  refused(R"({"profile": "sm70"})", {"sm70", "portable"}, ErrorCode::kInvalidArgument);
  refused(R"({"leaves": 3})", {"leaves"}, ErrorCode::kInvalidArgument);
  json other = json::parse(canonical_json({}));
  other["primitives"][0] = "exp/2";
  refused(other.dump(), {"file.json", "primitives", "exp/2"}, ErrorCode::kContract);
  other = json::parse(canonical_json({}));
  other["roundings"].push_back("attention.s");
  refused(other.dump(), {"file.json", "roundings", "attention.s"}, ErrorCode::kContract);
}

TEST(Contract, PadsTheVocabularyToWholeLeaves) {
  EXPECT_EQ(vocab_padded({}, 1), 128);
  EXPECT_EQ(vocab_padded({}, 128), 128);
  EXPECT_EQ(vocab_padded({}, 50257), 50304);
  EXPECT_EQ(vocab_padded({}, 151936), 151936);
  Contract c;
  c.vocab_padded = 152064;
  EXPECT_EQ(vocab_padded(c, 151936), 152064);
  expect_error(ErrorCode::kContract, {"152064", "200000"}, [&] { vocab_padded(c, 200000); });
}

TEST(Contract, EveryProfileHasItsName) {
  for (Profile p : {Profile::kPortable, Profile::kSm90, Profile::kCdna3, Profile::kCdna2}) {
    EXPECT_EQ(parse_profile(to_string(p)), p);
  }
}

}  // namespace
}  // namespace rlk
