#include "rlk/rl/dataset.h"

#include <algorithm>
#include <set>
#include <string>

#include <gtest/gtest.h>

#include "rlk/core/error.h"

namespace rlk {
namespace {

std::vector<Example> parse(std::string_view text, DatasetFields fields = {}) {
  if (fields.default_verifier.empty()) fields.default_verifier = "exact";
  return parse_dataset(text, "d.jsonl", fields);
}

std::string message_of(std::string_view text, const DatasetFields& fields,
                       ErrorCode code = ErrorCode::kFormat) {
  try {
    parse_dataset(text, "d.jsonl", fields);
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), code);
    return e.what();
  }
  ADD_FAILURE() << "no error for " << text;
  return "";
}

void expect_has(const std::string& message, const std::vector<std::string>& parts) {
  for (const std::string& part : parts) {
    EXPECT_NE(message.find(part), std::string::npos) << "'" << part << "' is not in: " << message;
  }
}

TEST(Dataset, ReadsPromptAnswerAndVerifierOfEachLine) {
  const auto examples = parse(
      "{\"prompt\": \"1+1=\", \"answer\": \"2\", \"verifier\": \"share\"}\n"
      "{\"prompt\": \"é\\n\", \"answer\": \" x\"}");
  ASSERT_EQ(examples.size(), 2u);
  EXPECT_EQ(examples[0], (Example{"1+1=", "2", "share", "d.jsonl:1"}));
  EXPECT_EQ(examples[1], (Example{"\u00e9\n", " x", "exact", "d.jsonl:2"}));
}

TEST(Dataset, SkipsBlankLinesAndCountsThem) {
  const auto examples = parse("\n  \t\r\n{\"prompt\": \"p\", \"answer\": \"a\"}\r\n\n");
  ASSERT_EQ(examples.size(), 1u);
  EXPECT_EQ(examples[0].source, "d.jsonl:3");
}

TEST(Dataset, KeepsAnswersThatAreNotTextAsCompactJson) {
  const auto examples = parse(
      "{\"prompt\": \"p\", \"answer\": {\"target\": 7, \"numbers\": [3, 4]}}\n"
      "{\"prompt\": \"p\", \"answer\": 42}");
  EXPECT_EQ(examples[0].answer, R"({"numbers":[3,4],"target":7})");
  EXPECT_EQ(examples[1].answer, "42");
}

TEST(Dataset, ReadsDapoMath17k) {
  DatasetFields fields;
  fields.answer = "reward_model.ground_truth";
  fields.default_verifier = "last_number";
  const auto examples =
      parse(R"({"data_source": "math_dapo",)"
            R"( "prompt": [{"content": "Solve {role} {prompt}.", "role": "user"}],)"
            R"( "ability": "MATH", "reward_model": {"ground_truth": "34", "style": "rule"}})",
            fields);
  EXPECT_EQ(examples[0].prompt, "Solve {role} {prompt}.");  // filled-in text is not filled again
  EXPECT_EQ(examples[0].answer, "34");
  EXPECT_EQ(examples[0].verifier, "last_number");
}

TEST(Dataset, ReadsGsm8k) {
  DatasetFields fields;
  fields.prompt = "question";
  fields.answer_after = "####";
  const auto examples =
      parse("{\"question\": \"How many?\", \"answer\": \"#### no, 40+2=42\\n#### 42\"}", fields);
  EXPECT_EQ(examples[0].prompt, "How many?");
  EXPECT_EQ(examples[0].answer, "42");
}

TEST(Dataset, WritesMessagesWithTheirTemplates) {
  DatasetFields fields;
  fields.message_template = "<{role}>{content}\n";
  fields.prompt_template = "{prompt}<assistant>";
  const auto examples = parse(R"({"prompt": [{"role": "system", "content": "Be brief."},)"
                              R"( {"role": "user", "content": "Hi"}], "answer": "Hello"})",
                              fields);
  EXPECT_EQ(examples[0].prompt, "<system>Be brief.\n<user>Hi\n<assistant>");
}

TEST(Dataset, PrefersAKeyWithDotsOverAPath) {
  DatasetFields fields;
  fields.answer = "a.b";
  EXPECT_EQ(parse(R"({"prompt": "p", "a.b": "dots", "a": {"b": "path"}})", fields)[0].answer,
            "dots");
}

TEST(Dataset, StopsAtTheLimit) {
  DatasetFields fields;
  fields.limit = 2;
  const std::string line = "{\"prompt\": \"p\", \"answer\": \"a\"}\n";
  EXPECT_EQ(parse(line + line + line, fields).size(), 2u);
  EXPECT_EQ(parse(line + line + "not JSON", fields).size(), 2u);
}

TEST(Dataset, RefusesBadLinesNamingFileLineAndField) {
  DatasetFields fields;
  fields.default_verifier = "exact";
  const std::string good = "{\"prompt\": \"p\", \"answer\": \"a\"}\n";
  expect_has(message_of(good + "{\"prompt\": ", fields), {"d.jsonl:2"});
  expect_has(message_of(good + "[1]", fields), {"d.jsonl:2", "object", "[1]"});
  expect_has(message_of("{\"prompt\": \"p\", \"target\": 1}", fields),
             {"d.jsonl:1", "'answer'", "prompt, target"});
  expect_has(message_of("{\"prompt\": null, \"answer\": \"a\"}", fields),
             {"d.jsonl:1", "'prompt'"});
  expect_has(message_of("{\"prompt\": 3, \"answer\": \"a\"}", fields), {"'prompt'", "3"});
  expect_has(message_of("{\"prompt\": \"\", \"answer\": \"a\"}", fields), {"'prompt'", "empty"});
  expect_has(message_of("{\"prompt\": [{\"role\": 1}], \"answer\": \"a\"}", fields),
             {"'prompt'", "content", "{\"role\":1}"});
  expect_has(message_of("{\"prompt\": [], \"answer\": \"a\"}", fields), {"'prompt'", "empty"});
  expect_has(message_of("{\"prompt\": \"p\", \"answer\": \"a\", \"verifier\": 5}", fields),
             {"'verifier'", "5"});
  expect_has(message_of("{\"prompt\": \"\xff\", \"answer\": \"a\"}", fields), {"d.jsonl:1"});
  fields.answer_after = "####";
  expect_has(message_of(good, fields), {"'answer'", "####", "\"a\""});
  fields.answer_after.clear();
  fields.answer = "reward_model.ground_truth";
  expect_has(message_of("{\"prompt\": \"p\", \"reward_model\": 3}", fields),
             {"'reward_model.ground_truth'"});
}

TEST(Dataset, RefusesALineWithoutVerifierWhenThereIsNoDefault) {
  expect_has(message_of("{\"prompt\": \"p\", \"answer\": \"a\"}", {}),
             {"d.jsonl:1", "'verifier'", "data.verifier"});
}

TEST(Dataset, RefusesAnEmptyFile) {
  expect_has(message_of("", {}), {"d.jsonl", "no prompts"});
  expect_has(message_of("\n \n", {}), {"d.jsonl", "no prompts"});
}

TEST(Dataset, RefusesAFileThatIsNotThere) {
  try {
    load_dataset("/nowhere/x.jsonl", {});
    FAIL();
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ErrorCode::kIo);
    expect_has(e.what(), {"/nowhere/x.jsonl"});
  }
  EXPECT_THROW(load_dataset("/tmp", {}), Error);
}

TEST(Dataset, LoadsTheDemoWithDisjointParts) {
  DatasetFields fields;
  fields.default_verifier = "share";
  const std::string folder = std::string(RLK_SOURCE_DIR) + "/examples/demo/";
  const auto train = load_dataset(folder + "train.jsonl", fields);
  const auto heldout = load_dataset(folder + "heldout.jsonl", fields);
  std::set<std::string> prompts;
  for (const auto* part : {&train, &heldout}) {
    for (const Example& example : *part) EXPECT_TRUE(prompts.insert(example.prompt).second);
  }
  EXPECT_EQ(prompts.size(), train.size() + heldout.size());
}

TEST(PromptOrder, UsesEveryExampleOnceInEachEpoch) {
  PromptOrder order(10, 1);
  std::vector<std::int64_t> all;
  for (int step = 0; step < 10; ++step) {
    const auto indices = order.step_indices(step, 4);
    all.insert(all.end(), indices.begin(), indices.end());
  }
  for (int epoch = 0; epoch < 4; ++epoch) {
    std::vector<std::int64_t> sorted(all.begin() + epoch * 10, all.begin() + epoch * 10 + 10);
    EXPECT_FALSE(std::is_sorted(sorted.begin(), sorted.end()));
    std::sort(sorted.begin(), sorted.end());
    EXPECT_EQ(sorted, (std::vector<std::int64_t>{0, 1, 2, 3, 4, 5, 6, 7, 8, 9}));
  }
  EXPECT_FALSE(std::equal(all.begin(), all.begin() + 10, all.begin() + 10));  // a new order
}

TEST(PromptOrder, NeedsOnlyTheStepNumberToResume) {
  PromptOrder undisturbed(2000, 7);
  for (int step = 0; step < 70; ++step) {
    const auto expected = undisturbed.step_indices(step, 32);
    if (step % 10 == 3) {
      EXPECT_EQ(PromptOrder(2000, 7).step_indices(step, 32), expected);
    }
  }
}

TEST(PromptOrder, DependsOnTheSeedAndIsTheSameEverywhere) {
  EXPECT_NE(PromptOrder(100, 1).step_indices(0, 8), PromptOrder(100, 2).step_indices(0, 8));
  EXPECT_EQ(PromptOrder(2000, 1).step_indices(0, 4),
            (std::vector<std::int64_t>{406, 693, 1148, 1459}));
  EXPECT_EQ(PromptOrder(1, 3).step_indices(5, 3), (std::vector<std::int64_t>{0, 0, 0}));
}

}  // namespace
}  // namespace rlk
