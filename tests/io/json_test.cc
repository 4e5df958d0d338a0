#include "rlk/io/json.h"

#include <gtest/gtest.h>

#include "rlk/io/files.h"
#include "tests/io/error_matchers.h"
#include "tests/io/temporary_folder.h"

namespace rlk {
namespace {

JsonDocument parse(std::string_view text) { return JsonDocument::parse(text, "test.json"); }

TEST(FieldReader, ReadsEveryType) {
  const JsonDocument document = parse(
      R"({"b": true, "i": -3, "u": 18446744073709551615, "d": 2, "s": "x", "v": [1, 2],
          "w": ["a"], "n": null, "o": {"k": 1}, "l": [{"k": 2}, {"k": 3}]})");
  FieldReader root = document.object();
  EXPECT_TRUE(root.required<bool>("b"));
  EXPECT_EQ(root.required<std::int64_t>("i"), -3);
  EXPECT_EQ(root.required<std::uint64_t>("u"), 18446744073709551615u);
  EXPECT_EQ(root.required<double>("d"), 2.0);
  EXPECT_EQ(root.required<std::string>("s"), "x");
  EXPECT_EQ(root.required<std::vector<std::int64_t>>("v"), (std::vector<std::int64_t>{1, 2}));
  EXPECT_EQ(root.required<std::vector<std::string>>("w"), std::vector<std::string>{"a"});
  int untouched = 7;
  EXPECT_FALSE(root.optional("n", untouched));
  EXPECT_FALSE(root.optional("absent", untouched));
  EXPECT_EQ(untouched, 7);
  std::optional<double> maybe;
  EXPECT_TRUE(root.optional("d", maybe, {.min = 0.0}));
  EXPECT_EQ(maybe, 2.0);
  EXPECT_EQ(root.object("o").required<int>("k"), 1);
  EXPECT_EQ(root.objects("l")[1].required<int>("k"), 3);
  EXPECT_TRUE(root.object("absent").keys().empty());
  EXPECT_EQ(root.choice("s", {"x", "y"}, "y"), "x");
  root.finish();
}

TEST(FieldReader, NamesFileAndPathOfAWrongValue) {
  const JsonDocument document = parse(R"({"a": {"b": [{"c": "x", "d": 1.0, "e": 300, "f": -1}]}})");
  FieldReader root = document.object();
  FieldReader reader = root.object("a").objects("b")[0];
  expect_error(ErrorCode::kFormat, {"test.json", "a.b[0].c", "an integer", "\"x\""},
               [&] { reader.required<int>("c"); });
  expect_error(ErrorCode::kFormat, {"a.b[0].d", "an integer", "1.0"},
               [&] { reader.required<int>("d"); });
  expect_error(ErrorCode::kInvalidArgument, {"a.b[0].e", "between 1 and 256", "300"},
               [&] { reader.required<int>("e", {.min = 1, .max = 256}); });
  expect_error(ErrorCode::kInvalidArgument, {"a.b[0].f", "at least 0", "-1"},
               [&] { reader.required<std::int64_t>("f", {.min = 0}); });
  expect_error(ErrorCode::kFormat, {"a.b[0].f"}, [&] { reader.required<std::uint64_t>("f"); });
  expect_error(ErrorCode::kFormat, {"a.b[0].missing", "missing"},
               [&] { reader.required<bool>("missing"); });
  expect_error(ErrorCode::kInvalidArgument, {"a.b[0].c", "[\"p\",\"q\"]", "\"x\""}, [&] {
    reader.choice("c", {"p", "q"}, "p");
  });
  expect_error(ErrorCode::kFormat, {"a.b[0].c", "an object"}, [&] { reader.object("c"); });
  expect_error(ErrorCode::kFormat, {"a.b[0].c", "an array"}, [&] { reader.objects("c"); });
}

TEST(FieldReader, ChecksTheRangeOfEveryElement) {
  const JsonDocument document = parse(R"({"v": [1, 0, -1]})");
  FieldReader root = document.object();
  EXPECT_EQ(root.required<std::vector<std::int64_t>>("v", {{-1, 1}}).size(), 3u);
  expect_error(ErrorCode::kInvalidArgument, {"field v", "at least 0"},
               [&] { root.required<std::vector<std::int64_t>>("v", {{.min = 0}}); });
}

TEST(FieldReader, RefusesUnknownKeysAndNamesTheNearest) {
  const JsonDocument document = parse(R"({"rollout": {"pagesize": 16, "zzzzzzzzzz": 1}})");
  FieldReader root = document.object();
  FieldReader rollout = root.object("rollout");
  int page_size = 16;
  rollout.optional("page_size", page_size);
  rollout.optional("max_tokens", page_size);
  expect_error(ErrorCode::kFormat, {"test.json", "rollout.pagesize", "\"page_size\""},
               [&] { rollout.finish(); });
  rollout.ignore("pagesize");
  expect_error(ErrorCode::kFormat, {"rollout.zzzzzzzzzz", "known are", "max_tokens"},
               [&] { rollout.finish(); });
  root.finish();
}

TEST(JsonDocument, RefusesWhatIsNotStrictJson) {
  expect_error(ErrorCode::kFormat, {"test.json", "byte 6"}, [] { parse("{\"a\":}"); });
  expect_error(ErrorCode::kFormat, {"test.json", "\"a\"", "twice"},
               [] { parse(R"({"b": {"a": 1, "a": 1}})"); });
  expect_error(ErrorCode::kFormat, {"test.json", "1e999"}, [] { parse("{\"a\": 1e999}"); });
  for (const char* text : {"", "{", "{} {}", "{'a': 1}", "{\"a\": NaN}", "{\"a\": 01}", "[1,]",
                           "{\"a\": 1} // note", "\"\xff\"", "\"\\ud800\""}) {
    expect_error(ErrorCode::kFormat, {"test.json"}, [&] { parse(text); });
  }
  expect_error(ErrorCode::kFormat, {"nested deeper"},
               [] { parse(std::string(100000, '[') + std::string(100000, ']')); });
  expect_error(ErrorCode::kFormat, {"expected a JSON object", "[1]"},
               [] { parse("[1]").object(); });
}

TEST(JsonDocument, AcceptsTheSameKeyInDifferentObjects) {
  parse(R"({"a": {"a": {"a": 1}}, "b": {"a": 1}, "c": [{"a": 1}, {"a": 1}]})");
}

TEST(JsonDocument, LoadsAFileAndNamesIt) {
  const TemporaryFolder folder;
  write_file(folder.file("x.json"), "{\"a\": 1");
  expect_error(ErrorCode::kFormat, {folder.file("x.json"), "byte 8"},
               [&] { JsonDocument::load(folder.file("x.json")); });
}

TEST(NearestName, FindsMisspellingsOnly) {
  EXPECT_EQ(nearest_name("learning_rat", {"learning_rate", "seed"}), "learning_rate");
  EXPECT_EQ(nearest_name("sede", {"learning_rate", "seed"}), "seed");
  EXPECT_EQ(nearest_name("gradient", {"seed", "steps"}), "");
  EXPECT_EQ(nearest_name("x", {}), "");
}

}  // namespace
}  // namespace rlk
