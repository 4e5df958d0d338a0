#include "rlk/rl/verifier.h"

#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <fstream>
#include <string>

#include <gtest/gtest.h>

#include "rlk/core/error.h"

namespace rlk {
namespace {

Example example(const std::string& verifier, const std::string& answer) {
  return {"prompt", answer, verifier, "d.jsonl:7"};
}

double score(const std::string& verifier, const std::string& answer, std::string_view response) {
  VerifierSet verifiers;
  verifiers.check({example(verifier, answer)});
  return verifiers.score(response, example(verifier, answer));
}

std::string refusal(const std::string& verifier, const std::string& answer) {
  try {
    VerifierSet().check({example(verifier, answer)});
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ErrorCode::kFormat);
    EXPECT_NE(std::string(e.what()).find("d.jsonl:7"), std::string::npos) << e.what();
    return e.what();
  }
  ADD_FAILURE() << verifier << " accepts " << answer;
  return "";
}

TEST(VerifierSet, RefusesAnUnknownNameAndListsTheKnownOnes) {
  const std::string message = refusal("exakt", "a");
  EXPECT_NE(message.find("'exakt'"), std::string::npos);
  EXPECT_NE(message.find("command, countdown, exact, last_number, regex, share"),
            std::string::npos);
}

TEST(Exact, ComparesWithoutWhiteSpaceAtTheEnds) {
  EXPECT_EQ(score("exact", "42", " 42\n"), 1);
  EXPECT_EQ(score("exact", "a b", "a b"), 1);
  EXPECT_EQ(score("exact", "a b", "a  b"), 0);
  EXPECT_EQ(score("exact", "", ""), 1);
  EXPECT_EQ(score("exact", "42", ""), 0);
}

TEST(Share, CountsPositionsWithTheRightCharacter) {
  EXPECT_EQ(score("share", "4719", "4719"), 1);
  EXPECT_EQ(score("share", "4719", "4718"), 0.75);
  EXPECT_EQ(score("share", "4719", "4197"), 0.25);
  EXPECT_EQ(score("share", "4719", "47"), 0.5);          // two are missing
  EXPECT_EQ(score("share", "4719", "471944"), 4.0 / 6);  // two are too many
  EXPECT_EQ(score("share", "4719", "7194"), 0);          // a shift puts all in wrong places
  EXPECT_EQ(score("share", "4719", ""), 0);
  EXPECT_EQ(score("share", "4719", " 4719 "), 1);
}

TEST(Share, CountsCharactersNotBytes) {
  EXPECT_EQ(score("share", "\u00e4b", "\u00e4c"), 0.5);
  EXPECT_EQ(score("share", "ab", "\xff\xfe"), 0);
  EXPECT_EQ(score("share", "\xe4\xb8\xad", "\xe4\xb8"), 0);  // cut in the middle
}

TEST(Share, RefusesAnEmptyAnswer) { refusal("share", " "); }

TEST(LastNumber, UnderstandsHowNumbersAreWritten) {
  for (const char* response :
       {"42", "The answer is 42.", "1 2 42", "#### 42", "$42", "\\boxed{42}", "42.0", "042",
        "x=42, done", "84/2", "\\frac{84}{2}", "4-2 gives 42", "42%", "It is 42, not less"}) {
    EXPECT_EQ(score("last_number", "42", response), 1) << response;
  }
  for (const char* response : {"", "no number", "-42", "43", "42 or 43", "42.5", "4 2", "42/5"}) {
    EXPECT_EQ(score("last_number", "42", response), 0) << response;
  }
}

TEST(LastNumber, UnderstandsCommasDecimalsSignsAndFractions) {
  EXPECT_EQ(score("last_number", "1234.5", "$1,234.50."), 1);
  EXPECT_EQ(score("last_number", "1,234,567", "1234567"), 1);
  EXPECT_EQ(score("last_number", "2", "1,2"), 1);  // no groups of three: two numbers
  EXPECT_EQ(score("last_number", "0.5", ".5"), 1);
  EXPECT_EQ(score("last_number", "-3", "x = -3"), 1);
  EXPECT_EQ(score("last_number", "-3", "\u22123"), 1);
  EXPECT_EQ(score("last_number", "-5", "-$5"), 1);
  EXPECT_EQ(score("last_number", "-5", "$-5"), 1);
  EXPECT_EQ(score("last_number", "3", "5-3"), 1);  // a difference, not a sign
  EXPECT_EQ(score("last_number", "0", "-0.0"), 1);
  EXPECT_EQ(score("last_number", "3/4", "0.75"), 1);
  EXPECT_EQ(score("last_number", "-\\frac{3}{4}", "-0.75"), 1);
  EXPECT_EQ(score("last_number", "1/3", "2/6"), 1);
  EXPECT_EQ(score("last_number", "1/3", "0.333"), 0);
  EXPECT_EQ(score("last_number", "0", "5/0"), 1);  // no fraction: the last number is 0
  EXPECT_EQ(score("last_number", "5", "\\frac{}{} 5"), 1);
}

TEST(LastNumber, ComparesLongNumbersExactly) {
  const std::string digits = "123456789012345678901234567890";
  EXPECT_EQ(score("last_number", digits, "0" + digits + ".000"), 1);
  EXPECT_EQ(score("last_number", digits, "123456789012345678901234567891"), 0);
  EXPECT_EQ(score("last_number", "0.1", "0.1000000000000000055511151231257827"), 0);
  EXPECT_EQ(score("last_number", "7", std::string(100000, '9')), 0);
}

TEST(LastNumber, RefusesAnAnswerWithoutANumber) { refusal("last_number", "none"); }

constexpr const char* kCountdown = R"({"numbers": [3, 5, 7, 3], "target": 24})";

TEST(Countdown, AcceptsExpressionsThatUseEachNumberOnce) {
  for (const char* response : {"(5 + 3) * (7 - 3) - 8 + 8", "3*5+7+3"}) {
    EXPECT_EQ(score("countdown", kCountdown, response), 0) << response;
  }
  EXPECT_EQ(score("countdown", kCountdown, "3 * 7 + (5 - 3) + 1"), 0);
  EXPECT_EQ(score("countdown", kCountdown, "7*5-3*3"), 0);
  EXPECT_EQ(score("countdown", R"({"numbers": [3, 5, 7, 3], "target": 26})", "7*5-3*3"), 1);
  EXPECT_EQ(score("countdown", R"({"numbers": [3, 5, 7, 3], "target": 26})", " 7\u00d75 - 3*3\n"),
            1);
  EXPECT_EQ(score("countdown", R"({"numbers": [1, 2], "target": -1})", "-(2-1)"), 1);
  EXPECT_EQ(score("countdown", R"({"numbers": [1, 2], "target": -1})", "1-2"), 1);
}

TEST(Countdown, CalculatesWithExactFractions) {
  EXPECT_EQ(score("countdown", R"({"numbers": [8, 3, 8, 3], "target": 24})", "8/(3-8/3)"), 1);
  EXPECT_EQ(score("countdown", R"({"numbers": [1, 3, 3], "target": 1})", "1/3*3"), 1);
  EXPECT_EQ(score("countdown", R"({"numbers": [10, 4], "target": 2})", "10/4"), 0);
  EXPECT_EQ(
      score("countdown", R"({"numbers": [999999999, 999999999, 1], "target": 999999998000000002})",
            "999999999*999999999+1"),
      1);
  // 10^16 and 10^16 + 1 are one number in f64 after multiplication by 3.
  EXPECT_EQ(
      score("countdown", R"({"numbers": [3, 10000000000000001], "target": 30000000000000004})",
            "3*10000000000000001"),
      0);
}

TEST(Countdown, GivesZeroToAnythingElse) {
  const char* task = R"({"numbers": [2, 3], "target": 6})";
  EXPECT_EQ(score("countdown", task, "2*3"), 1);
  for (const char* response :
       {"",          "6",    "2*3=6",   "2*3*1",     "3*2*",  "2**3",
        "2 3",       "(2*3", "2*3)",    "two*3",     "2*3.0", "23",
        "2*-",       "()",   "2*(3)()", "import os", "2,3",   "99999999999999999999999*3",
        "2*3 + 0/0", "6/0"}) {
    EXPECT_EQ(score("countdown", task, response), 0) << response;
  }
  EXPECT_EQ(score("countdown", R"({"numbers": [0, 3], "target": 0})", "3/0"), 0);
  EXPECT_EQ(score("countdown", task, std::string(100000, '(') + "2*3"), 0);
  EXPECT_EQ(score("countdown", task, std::string(100000, '-') + "2*3"), 0);
}

TEST(Countdown, RefusesAnswersThatAreNoTask) {
  refusal("countdown", "24");
  refusal("countdown", "{");
  refusal("countdown", R"({"target": 24})");
  refusal("countdown", R"({"numbers": [], "target": 24})");
  refusal("countdown", R"({"numbers": [1, "2"], "target": 24})");
  refusal("countdown", R"({"numbers": [1, -2], "target": 24})");
  refusal("countdown", R"({"numbers": [1, 2.5], "target": 24})");
  refusal("countdown", R"({"numbers": [1, 2]})");
  refusal("countdown", R"({"numbers": [1, 2], "target": 1e3})");
  refusal("countdown", R"({"numbers": [1, 2], "target": 1000000000000000000000})");
  // The product would leave what the exact arithmetic can hold.
  refusal("countdown", R"({"numbers": [99999999999999999, 99999999999999999, 99999999999999999],
                           "target": 1})");
}

TEST(Regex, MatchesTheWholeResponseByDefault) {
  EXPECT_EQ(score("regex", "[0-9]+", " 123\n"), 1);
  EXPECT_EQ(score("regex", "[0-9]+", "x123"), 0);
  EXPECT_EQ(score("regex", "[0-9]+", "123x"), 0);
  EXPECT_EQ(score("regex", "a|ab", "ab"), 1);
  EXPECT_EQ(score("regex", "\\w+", "\u00e9t\u00e9"), 1);
}

TEST(Regex, MatchesAPartOnRequest) {
  EXPECT_EQ(score("regex", R"({"pattern": "[0-9]{3}", "match": "partial"})", "x123y"), 1);
  EXPECT_EQ(score("regex", R"({"pattern": "[0-9]{3}", "match": "full"})", "x123y"), 0);
  EXPECT_EQ(score("regex", R"({"pattern": "[0-9]{3}"})", "123"), 1);
}

TEST(Regex, SurvivesBadBytesAndRunawayPatterns) {
  EXPECT_EQ(score("regex", "[0-9]+", "\xff\xfe"), 0);
  EXPECT_EQ(score("regex", R"({"pattern": "[0-9]+", "match": "partial"})", "\xff 7"), 1);
  EXPECT_EQ(score("regex", "(a+)+$", std::string(5000, 'a') + "b"), 0);
  EXPECT_EQ(score("regex", "x*", ""), 1);
}

TEST(Regex, RefusesABadPattern) {
  EXPECT_NE(refusal("regex", "(a").find("offset 2"), std::string::npos);
  refusal("regex", "");
  refusal("regex", R"({"pattern": 3})");
  refusal("regex", R"({"pattern": "a", "match": "some"})");
  refusal("regex", R"({"pattern": "a", "flags": "i"})");
}

// Programs are Python one-liners; `body` handles each request r.
VerifierOptions python(const std::string& body, double timeout_s = 5.0) {
  return {{"python3", "-u", "-c",
           "import json, os, sys, time\nfor line in sys.stdin:\n r = json.loads(line)\n " + body},
          "",
          timeout_s};
}

std::string command_error(const VerifierOptions& options, ErrorCode code) {
  VerifierSet verifiers(options);
  const auto start = std::chrono::steady_clock::now();
  std::string message;
  try {
    verifiers.score("response", example("command", "answer"));
    ADD_FAILURE() << "no error";
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), code) << e.what();
    message = e.what();
  }
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(4)) << message;
  return message;
}

TEST(Command, SendsRequestsToOneProcessAndReadsScores) {
  VerifierSet verifiers(python(
      "print(json.dumps({'id': r['id'], 'score': 0.25 * r['id'] if r['response'] == r['answer'] "
      "and r['prompt'] == 'prompt' else 1}))"));
  EXPECT_EQ(verifiers.score("a", example("command", "a")), 0);
  EXPECT_EQ(verifiers.score("a", example("command", "a")), 0.25);
  EXPECT_EQ(verifiers.score("b", example("command", "a")), 1);
  EXPECT_EQ(verifiers.score("\u00e9\n\"", example("command", "\u00e9\n\"")), 0.75);
}

TEST(Command, TakesResponsesLongerThanAPipe) {
  VerifierSet verifiers(
      python("print(json.dumps({'id': r['id'], 'score': len(r['response']) / 1000000}))"));
  EXPECT_EQ(verifiers.score(std::string(1000000, 'x'), example("command", "a")), 1);
  EXPECT_EQ(verifiers.score("\xff", example("command", "a")), 1e-6);  // one U+FFFD
}

TEST(Command, RunsInItsFolder) {
  VerifierOptions options =
      python("print(json.dumps({'id': r['id'], 'score': float(os.getcwd() == '/usr')}))");
  options.command_dir = "/usr";
  EXPECT_EQ(VerifierSet(options).score("", example("command", "")), 1);
}

TEST(Command, RefusesAnswersThatAreNoScore) {
  const auto answers = [](const std::string& text) { return python("print(" + text + ")"); };
  const ErrorCode format = ErrorCode::kFormat;
  EXPECT_NE(command_error(answers("'{\"id\": 5, \"score\": 1}'"), format).find("id"),
            std::string::npos);
  EXPECT_NE(command_error(answers("'{\"id\": 0, \"score\": \"1\"}'"), format).find("no number"),
            std::string::npos);
  EXPECT_NE(command_error(answers("'{\"id\": 0, \"score\": 1.5}'"), format).find("[0, 1]"),
            std::string::npos);
  EXPECT_NE(command_error(answers("'{\"id\": 0, \"score\": -1e-9}'"), format).find("[0, 1]"),
            std::string::npos);
  EXPECT_NE(command_error(answers("'{\"id\": 0, \"score\": NaN}'"), format).find("no JSON"),
            std::string::npos);
  EXPECT_NE(command_error(answers("'{\"id\": 0}'"), format).find("no number"), std::string::npos);
  EXPECT_NE(command_error(answers("'hello'"), format).find("hello"), std::string::npos);
  EXPECT_NE(command_error(answers("''"), format).find("d.jsonl:7"), std::string::npos);
}

TEST(Command, RefusesMoreThanOneLinePerRequest) {
  VerifierSet verifiers(python("print(json.dumps({'id': r['id'], 'score': 1}) + '\\nextra')"));
  EXPECT_EQ(verifiers.score("", example("command", "")), 1);
  EXPECT_THROW(verifiers.score("", example("command", "")), Error);
}

TEST(Command, ReportsAProgramThatEnds) {
  EXPECT_NE(command_error(python("sys.exit(3)"), ErrorCode::kIo).find("status 3"),
            std::string::npos);
  EXPECT_NE(command_error(python("os.kill(os.getpid(), 9)"), ErrorCode::kIo).find("signal 9"),
            std::string::npos);
  EXPECT_NE(command_error({{"true"}, "", 5.0}, ErrorCode::kIo).find("status 0"), std::string::npos);
}

TEST(Command, ReportsAProgramThatEndsBeforeItReadsALongRequest) {
  VerifierSet verifiers({{"true"}, "", 5.0});
  EXPECT_THROW(verifiers.score(std::string(1000000, 'x'), example("command", "a")), Error);
}

TEST(Command, ReportsAProgramThatDoesNotAnswerInTime) {
  EXPECT_NE(command_error(python("time.sleep(60)", 0.3), ErrorCode::kIo).find("0.3 s"),
            std::string::npos);
  // It answers all the time, but never with a whole line.
  command_error(python("\n while True: sys.stdout.write('x'); time.sleep(0.01)", 0.3),
                ErrorCode::kIo);
  // It does not read.
  VerifierSet verifiers({{"sleep", "60"}, "", 0.3});
  EXPECT_THROW(verifiers.score(std::string(1000000, 'x'), example("command", "a")), Error);
}

TEST(Command, RefusesAnEndlessLine) {
  const std::string message =
      command_error(python("\n while True: sys.stdout.write('x' * 65536)"), ErrorCode::kFormat);
  EXPECT_NE(message.find("longer than"), std::string::npos);
}

TEST(Command, ReportsAProgramThatCannotBeStarted) {
  const std::string message =
      command_error({{"no-such-program"}, "", 5.0}, ErrorCode::kNotAvailable);
  EXPECT_NE(message.find("no-such-program"), std::string::npos);
  command_error({{}, "", 5.0}, ErrorCode::kNotAvailable);
  command_error({{"cat"}, "/nowhere", 5.0}, ErrorCode::kNotAvailable);
}

TEST(Command, StartsAnewAfterAnError) {
  VerifierSet verifiers(
      python("print(json.dumps({'id': r['id'], 'score': 2 if r['response'] == 'bad' else 1}))"));
  EXPECT_THROW(verifiers.score("bad", example("command", "a")), Error);
  EXPECT_EQ(verifiers.score("good", example("command", "a")), 1);
}

TEST(Command, LeavesNoProcessBehind) {
  // The program and a child of it that ignores the end of input; both write their ids.
  const std::string path = testing::TempDir() + "rlk_verifier_pids_" + std::to_string(getpid());
  const std::string script =
      "sleep 60 & echo $$ $! > " + path + "; read line; echo '{\"id\": 0, \"score\": 1}'; wait";
  {
    VerifierSet verifiers({{"sh", "-c", script}, "", 5.0});
    EXPECT_EQ(verifiers.score("", example("command", "")), 1);
  }
  pid_t program = 0;
  pid_t child = 0;
  std::ifstream(path) >> program >> child;
  ASSERT_GT(program, 0);
  ASSERT_GT(child, 0);
  EXPECT_EQ(kill(program, 0), -1);  // reaped: not even a zombie
  bool child_runs = true;
  for (int i = 0; i < 200 && child_runs; ++i) {
    // A killed orphan is a zombie until its new parent looks.
    std::string pid, name, state;
    std::ifstream stat("/proc/" + std::to_string(child) + "/stat");
    child_runs = static_cast<bool>(stat >> pid >> name >> state) && state != "Z";
    if (child_runs) usleep(10000);
  }
  EXPECT_FALSE(child_runs);
  unlink(path.c_str());
}

}  // namespace
}  // namespace rlk
