// Record files keep every bit, and say what is wrong with a bad line.
#include "rlk/compare/record_file.h"

#include <bit>
#include <filesystem>
#include <limits>
#include <sstream>

#include <gtest/gtest.h>

#include "rlk/core/error.h"

namespace rlk {
namespace {

constexpr const char* kHeader =
    R"({"format":"rlk-record","version":1,"engine":"rollout","model_digest":"m",)"
    R"("forward_digest":"f","vocab_size":16})";

Record parse(const std::string& text) {
  std::istringstream in(text);
  return read_record(in, "a.jsonl");
}

std::string message_of(const std::string& text) {
  try {
    parse(text);
  } catch (const Error& error) {
    EXPECT_NE(error.code(), ErrorCode::kIo);
    return error.what();
  }
  return "";
}

TEST(RecordFile, KeepsEveryBit) {
  Record record;
  record.name = "trainer";
  record.provenance = "r/trainer";
  record.model_digest = "m";
  record.forward_digest = "f";
  record.vocab_size = 16;
  RecordSample s;
  s.step = 3;
  s.sample = 2;
  s.sampling = {0.7, 5, 0.9, 0.01};
  s.prefix = {1, 2};
  s.targets = {3, 4, 5, 6};
  s.positions = {2, 3, 4, 5};
  s.mask = {1, 0, 1, 1};
  s.weight_versions = {1, 1, 2, 2};
  s.logprobs = {-0.0F, -std::numeric_limits<float>::denorm_min(), std::bit_cast<float>(0x7fc00001U),
                -0.1F};
  record.samples = {s};
  std::ostringstream out;
  write_record(out, record);
  const Record back = parse(out.str());
  std::ostringstream again;
  write_record(again, back);
  EXPECT_EQ(out.str(), again.str());
  ASSERT_EQ(back.samples.size(), 1U);
  for (int i = 0; i < 4; ++i) {
    EXPECT_EQ(std::bit_cast<std::uint32_t>(back.samples[0].logprobs[i]),
              std::bit_cast<std::uint32_t>(s.logprobs[i]));
  }
  EXPECT_EQ(back.samples[0].sampling, s.sampling);
}

TEST(RecordFile, FillsInWhatMayBeLeftOut) {
  const Record record = parse(std::string(kHeader) +
                              "\n{\"sample\":0,\"prefix\":[1,2],\"targets\":[3,4],"
                              "\"weight_version\":9,\"logprobs\":[\"bf800000\",\"C0000000\"]}\n");
  const RecordSample& s = record.samples.at(0);
  EXPECT_EQ(s.positions, (std::vector<std::int64_t>{2, 3}));
  EXPECT_EQ(s.mask, (std::vector<std::uint8_t>{1, 1}));
  EXPECT_EQ(s.weight_versions, (std::vector<std::int64_t>{9, 9}));
  EXPECT_EQ(s.logprobs, (std::vector<float>{-1.0F, -2.0F}));
}

TEST(RecordFile, BadLinesAreNamedWithLineAndField) {
  const auto line = [](const std::string& text) { return std::string(kHeader) + "\n" + text; };
  const std::string good = R"("sample":0,"prefix":[1],"weight_version":1)";
  const struct {
    std::string text;
    const char* expected;
  } cases[] = {
      {"", "empty"},
      {"{\"format\":\"else\"}", "rlk-record"},
      {line("{" + good + R"(,"targets":[16],"logprobs":["bf800000"]})"), "targets"},
      {line("{" + good + R"(,"targets":[1],"logprobs":["bf8"]})"), "eight hex digits"},
      {line("{" + good + R"(,"targets":[1],"logprobs":["-bf80000"]})"), "eight hex digits"},
      {line("{" + good + R"(,"targets":[1],"logprobs":[]})"), "has 0 elements, targets has 1"},
      {line("{" + good + R"(,"targets":[1],"logprobs":["bf800000"],"masks":[1]})"), "masks"},
      {line("{" + good + R"(,"targets":[1],"mask":[1,1],"logprobs":["bf800000"]})"), "mask"},
      {line("{"), "a.jsonl:2"},
      {line("[]"), "a.jsonl:2"},
  };
  for (const auto& one : cases) {
    const std::string message = message_of(one.text);
    EXPECT_NE(message.find(one.expected), std::string::npos) << one.text << " -> " << message;
    EXPECT_NE(message.find("a.jsonl"), std::string::npos) << message;
  }
}

TEST(RecordFile, AMissingFileIsAnIoError) {
  try {
    read_record("/nonexistent/a.jsonl");
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kIo);
  }
}

TEST(RecordFileTwin, AFileComparedWithItselfIsAnError) {
  const std::string path = std::filesystem::temp_directory_path() / "rlk_record_file_test.jsonl";
  write_record(path,
               parse(std::string(kHeader) + "\n{\"sample\":0,\"prefix\":[1],\"targets\":[3],"
                                            "\"weight_version\":9,\"logprobs\":[\"bf800000\"]}\n"));
  EXPECT_THROW(compare(read_record(path), read_record(path)), Error);
  std::filesystem::remove(path);
}

}  // namespace
}  // namespace rlk
