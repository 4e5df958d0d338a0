// generate samples, score recomputes: the same bits. compare judges record files.
#include <string>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "rlk/io/files.h"
#include "tests/cli/scene.h"

namespace rlk {
namespace {

using nlohmann::json;

// Lines of JSON, as generate and record files have them.
std::vector<json> json_lines(const std::string& text) {
  std::vector<json> lines;
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = std::min(text.find('\n', begin), text.size());
    lines.push_back(json::parse(text.substr(begin, end - begin)));
    begin = end + 1;
  }
  return lines;
}

std::string text_of(const std::vector<json>& lines) {
  std::string text;
  for (const json& line : lines) text += line.dump() + '\n';
  return text;
}

class GenerateAndScore : public testing::Test {
 protected:
  // What generate said, as a record file.
  std::vector<json> generate(const json& sampling, const Arguments& more = {}) const {
    Arguments arguments = {"generate",         "--model",
                           scene_.model(),     "--json",
                           "--samples",        "3",
                           "--prompt",         "123=",
                           "--prompt",         "98765432109876=",
                           "--prompt",         "4=",
                           "--max-new-tokens", "12",
                           "--seed",           "5",
                           "--temperature",    sampling["temperature"].dump(),
                           "--top-k",          sampling["top_k"].dump(),
                           "--top-p",          sampling["top_p"].dump(),
                           "--min-p",          sampling["min_p"].dump()};
    arguments.insert(arguments.end(), more.begin(), more.end());
    const Outcome outcome = run_program(arguments);
    EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
    const Outcome digests = run_program({"contract", "digest", "--json"});
    std::vector<json> record = {{{"format", "rlk-record"},
                                 {"version", 1},
                                 {"engine", "generate"},
                                 {"provenance", "generate"},
                                 {"model_digest", scene_.model_digest()},
                                 {"forward_digest", digests.json().at("forward")},
                                 {"vocab_size", 16}}};
    for (const json& completion : json_lines(outcome.out)) {
      json& sample = record.emplace_back();
      sample = {{"step", 1},
                {"sample", record.size() - 2},
                {"sampling", sampling},
                {"prefix", completion.at("prompt_token_ids")},
                {"weight_version", 0}};
      for (const json& token : completion.at("tokens")) {
        sample["targets"].push_back(token.at("token_id"));
        sample["logprobs"].push_back(token.at("logprob_bits"));
      }
    }
    return record;
  }

  Outcome score(const std::string& record, const std::string& out,
                const Arguments& more = {}) const {
    Arguments arguments = {"score",  "--model", scene_.model(),  scene_.file(record),
                           "--json", "--out",   scene_.file(out)};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return run_program(arguments);
  }

  Scene scene_;
};

const json kPlain = {{"temperature", 1.0}, {"top_k", 0}, {"top_p", 1.0}, {"min_p", 0.0}};
const json kWarm = {{"temperature", 0.7}, {"top_k", 0}, {"top_p", 1.0}, {"min_p", 0.0}};
const json kFiltered = {{"temperature", 1.5}, {"top_k", 7}, {"top_p", 0.9}, {"min_p", 0.05}};
const json kGreedy = {{"temperature", 0.0}, {"top_k", 0}, {"top_p", 1.0}, {"min_p", 0.0}};

class GenerateAndScoreInvariance : public GenerateAndScore {};
class GenerateAndScoreTwin : public GenerateAndScore {};

TEST_F(GenerateAndScoreInvariance, GiveTheSameBitsForEverySampling) {
  for (const json& sampling : {kPlain, kWarm, kFiltered, kGreedy}) {
    SCOPED_TRACE(sampling.dump());
    scene_.write("generated.jsonl", text_of(generate(sampling)));
    const Outcome scored = score("generated.jsonl", "scored.jsonl");
    ASSERT_EQ(scored.exit_code, 0) << scored.err;
    EXPECT_EQ(scored.json().at("samples"), 9);
    const Outcome compared = scene_.compare("generated.jsonl", "scored.jsonl");
    EXPECT_EQ(compared.exit_code, 0) << compared.out << compared.err;
  }
}

TEST_F(GenerateAndScoreInvariance, GiveTheSameBitsForEveryPlan) {
  const std::vector<json> usual = generate(kPlain);
  EXPECT_EQ(usual, generate(kPlain, {"--page-size", "1", "--threads", "1"}));
  EXPECT_EQ(usual, generate(kPlain, {"--page-size", "64", "--threads", "3"}));
  EXPECT_EQ(usual, generate(kPlain, {"--no-graphs"}));
  EXPECT_EQ(usual, generate(kPlain, {"--max-model-len", "64"}));
}

TEST_F(GenerateAndScoreInvariance, ScoreReadsNoLogprobOfItsInput) {
  std::vector<json> record = generate(kPlain);
  scene_.write("generated.jsonl", text_of(record));
  for (std::size_t i = 1; i < record.size(); ++i) {
    for (json& bits : record[i]["logprobs"]) bits = "00000000";
  }
  scene_.write("zeros.jsonl", text_of(record));
  ASSERT_EQ(score("zeros.jsonl", "scored.jsonl").exit_code, 0);
  EXPECT_EQ(scene_.compare("generated.jsonl", "scored.jsonl").exit_code, 0);
}

TEST_F(GenerateAndScoreTwin, OneAlteredBitDiffers) {
  std::vector<json> record = generate(kPlain);
  scene_.write("generated.jsonl", text_of(record));
  ASSERT_EQ(score("generated.jsonl", "scored.jsonl").exit_code, 0);
  std::string bits = record[2]["logprobs"][0];
  bits.back() = bits.back() == '0' ? '1' : '0';
  record[2]["logprobs"][0] = bits;
  scene_.write("generated.jsonl", text_of(record));
  const Outcome compared = scene_.compare("generated.jsonl", "scored.jsonl");
  EXPECT_EQ(compared.exit_code, 1) << compared.err;
  EXPECT_NE(compared.out.find("step 1, sample 1"), std::string::npos) << compared.out;
}

TEST_F(GenerateAndScoreTwin, AnotherTemperatureDiffersOrIsNotComparable) {
  std::vector<json> record = generate(kWarm);
  scene_.write("generated.jsonl", text_of(record));
  for (std::size_t i = 1; i < record.size(); ++i) record[i]["sampling"] = kPlain;
  scene_.write("claimed.jsonl", text_of(record));
  ASSERT_EQ(score("claimed.jsonl", "scored.jsonl").exit_code, 0);
  EXPECT_EQ(scene_.compare("generated.jsonl", "scored.jsonl").exit_code, 2);
  EXPECT_EQ(scene_.compare("claimed.jsonl", "scored.jsonl").exit_code, 1);
}

TEST_F(GenerateAndScore, CompareClosesItsGateOnEveryField) {
  const std::vector<json> record = generate(kPlain);
  scene_.write("a.jsonl", text_of(record));
  const auto expect_closed = [&](const char* field, const auto& edit) {
    SCOPED_TRACE(field);
    std::vector<json> other = record;
    other[0]["provenance"] = "other";
    edit(other);
    scene_.write("b.jsonl", text_of(other));
    const Outcome compared = scene_.compare("a.jsonl", "b.jsonl");
    EXPECT_EQ(compared.exit_code, 2);
    EXPECT_NE((compared.out + compared.err).find(field), std::string::npos) << compared.out;
  };
  using Lines = std::vector<json>;
  expect_closed("model_digest", [](Lines& r) { r[0]["model_digest"] = "00"; });
  expect_closed("forward_digest", [](Lines& r) { r[0]["forward_digest"] = "00"; });
  expect_closed("vocab_size", [](Lines& r) { r[0]["vocab_size"] = 17; });
  expect_closed("weight_version", [](Lines& r) { r[3]["weight_version"] = 1; });
  expect_closed("prefix", [](Lines& r) { r[3]["prefix"][0] = 9; });
  expect_closed("targets", [](Lines& r) { r[3]["targets"][0] = r[3]["targets"][0] == 9 ? 8 : 9; });
  expect_closed("sampling", [](Lines& r) { r[3]["sampling"]["temperature"] = 0.5; });
  expect_closed("samples", [](Lines& r) { r.pop_back(); });
}

TEST_F(GenerateAndScore, CompareOfNothingIsNoPass) {
  std::vector<json> record = generate(kPlain);
  for (std::size_t i = 1; i < record.size(); ++i) {
    record[i]["mask"] = std::vector<int>(record[i]["targets"].size(), 0);
  }
  scene_.write("a.jsonl", text_of(record));
  record[0]["provenance"] = "other";
  scene_.write("b.jsonl", text_of(record));
  const Outcome compared = scene_.compare("a.jsonl", "b.jsonl");
  EXPECT_EQ(compared.exit_code, 2) << compared.out;
}

TEST_F(GenerateAndScore, CompareRefusesACopy) {
  scene_.write("a.jsonl", text_of(generate(kPlain)));
  scene_.write("b.jsonl", read_file(scene_.file("a.jsonl")));
  expect_refused(scene_.compare("a.jsonl", "b.jsonl"), 2, {"copies"});
}

TEST_F(GenerateAndScore, ScoreRefusesBadRecords) {
  const std::vector<json> record = generate(kPlain);
  const auto expect_score_refused = [&](const std::vector<std::string>& fragments,
                                        const auto& edit) {
    std::vector<json> bad = record;
    edit(bad);
    scene_.write("bad.jsonl", text_of(bad));
    expect_refused(score("bad.jsonl", "scored.jsonl"), 2, fragments);
    EXPECT_FALSE(file_exists(scene_.file("scored.jsonl")));
  };
  using Lines = std::vector<json>;
  expect_score_refused({"bad.jsonl:3", "targets", "16"}, [](Lines& r) { r[2]["targets"][0] = 16; });
  expect_score_refused({"bad.jsonl:3", "-1"}, [](Lines& r) { r[2]["targets"][0] = -1; });
  expect_score_refused({"bad.jsonl:3", "logprobs"}, [](Lines& r) { r[2]["logprobs"] = {"00"}; });
  expect_score_refused({"vocab_size", "32"}, [](Lines& r) { r[0]["vocab_size"] = 32; });
  expect_score_refused({"bad.jsonl", "no sample"}, [](Lines& r) { r.resize(1); });
  expect_score_refused({"sample 1", "64"},
                       [](Lines& r) { r[2]["prefix"] = std::vector<int>(80, 3); });
}

TEST(Generate, RefusesWhatItCannotDo) {
  const Scene scene;
  const auto refused = [&](const Arguments& more, const std::vector<std::string>& fragments) {
    Arguments arguments = {"generate", "--model", scene.model()};
    arguments.insert(arguments.end(), more.begin(), more.end());
    SCOPED_TRACE(more.back());
    expect_refused(run_program(arguments), 2, fragments);
  };
  refused({"--prompt", ""}, {"prompt is empty"});
  refused({"--prompt", "12x"}, {"12x", "0x78"});
  refused({"--prompt", std::string(64, '1')}, {"64 tokens", "context of 64"});
  refused({"--prompt", "1=", "--temperature", "-1"}, {"temperature", "-1"});
  refused({"--prompt", "1=", "--temperature", "nan"}, {"temperature", "nan"});
  refused({"--prompt", "1=", "--top-p", "0"}, {"top_p", "0"});
  refused({"--prompt", "1=", "--page-size", "3"}, {"page_size", "3"});
  refused({"--prompt", "1=", "--samples", "0"}, {"--samples", "0"});
  refused({"--prompt", "1=", "--max-new-tokens", "0"}, {"--max-new-tokens", "0"});
  refused({"--prompt", "1=", "--max-model-len", "65"}, {"65", "64"});
  refused({"--prompt", "1=", "--threads", "-1"}, {"threads", "-1"});
  refused({"--prompt", "1=", "--route", "fast"}, {"--route", "fast"});
}

}  // namespace
}  // namespace rlk
