// rlk probe on instructions of no chip, in this process, and the program without a GPU.
#include "cli/probe.h"

#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "rlk/core/error.h"
#include "rlk/io/files.h"
#include "tests/cli/program.h"
#include "tests/numerics/mma/results.h"
#include "tests/verify/fake_instructions.h"

namespace rlk {
namespace {

cli::ProbeTarget exact_chip() { return {"exact chip", std::span(kExactAndWrong).first(1)}; }
cli::ProbeTarget wrong_chip() { return {"wrong chip", kExactAndWrong}; }

Outcome probe(cli::ProbeTarget (*target)(), std::vector<std::string> arguments) {
  CLI::App verb;
  Outcome outcome;
  cli::set_up_probe(verb, outcome.exit_code, target);
  arguments.insert(arguments.begin(), {"64", "--rows"});  // CLI11 takes them from the back
  testing::internal::CaptureStdout();
  testing::internal::CaptureStderr();
  verb.parse(std::move(arguments));
  outcome.out = testing::internal::GetCapturedStdout();
  outcome.err = testing::internal::GetCapturedStderr();
  return outcome;
}

bool has(const Outcome& outcome, const std::string& text) {
  return outcome.out.find(text) != std::string::npos;
}

TEST(ProbeVerb, AnExactChipIsEqual) {
  const Outcome outcome = probe(exact_chip, {});
  EXPECT_EQ(outcome.exit_code, 0);
  EXPECT_TRUE(has(outcome, "exact chip\n")) << outcome.out;
  EXPECT_TRUE(has(outcome, "cancelling_pairs")) << outcome.out;
  EXPECT_TRUE(has(outcome, "\nequal: 0 of 163,072 results differ from the model\n")) << outcome.out;
}

TEST(ProbeVerb, OneWrongBitDiffersAndIsShown) {
  const Outcome outcome = probe(wrong_chip, {});
  EXPECT_EQ(outcome.exit_code, 1);
  EXPECT_TRUE(
      has(outcome, "first: deep_underflow, seed 1, 64 x 64, k 256: row 5, column 7: device "))
      << outcome.out;
  EXPECT_TRUE(has(outcome, "\ndiffers: 26 of 326,144 results differ from the model\n"))
      << outcome.out;
}

TEST(ProbeVerb, PrintsJsonAndNothingElse) {
  const Outcome outcome = probe(wrong_chip, {"--json"});
  EXPECT_EQ(outcome.exit_code, 1);
  const nlohmann::json json = outcome.json();
  EXPECT_EQ(json.at("device"), "wrong chip");
  EXPECT_EQ(json.at("status"), "differs");
  EXPECT_EQ(json.at("different"), 26);
  ASSERT_EQ(json.at("results").size(), 26u);
  EXPECT_FALSE(json.at("results")[0].contains("first"));
  const nlohmann::json& last = json.at("results")[25];
  EXPECT_EQ(last.at("instruction"), "sm90 wrong");
  EXPECT_EQ(last.at("family"), "deep_underflow");
  EXPECT_EQ(last.at("first").at("column"), 7);
  EXPECT_NE(last.at("first").at("device_bits"), last.at("first").at("model_bits"));
}

TEST(ProbeVerb, SavesRawResultsPerInstruction) {
  const TemporaryFolder folder;
  const std::string save = folder.file("raw/h200");
  const Outcome outcome = probe(wrong_chip, {save, "--save"});
  EXPECT_EQ(numerics::mma::count_wrong(read_file(join_path(save, "sm90_exact.bin"))), 0);
  EXPECT_EQ(numerics::mma::count_wrong(read_file(join_path(save, "sm90_wrong.bin"))), 13);
  EXPECT_NE(outcome.err.find("sm90_exact.bin"), std::string::npos) << outcome.err;
}

TEST(ProbeVerb, WithoutAGpuIsNotAvailable) {
  if (!device::list().empty()) GTEST_SKIP() << "this machine has one";
  expect_refused(run_program({"probe"}), 3, {"GPU"});
}

}  // namespace
}  // namespace rlk
