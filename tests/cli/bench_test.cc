// rlk bench, start to end, on one small case.
#include <string>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "rlk/io/files.h"
#include "tests/cli/program.h"

namespace rlk {
namespace {

constexpr const char* kProduct = "^gemm/bf16/chain/8x192x64/";

TEST(BenchProgram, PrintsJsonAndKeepsItInAFile) {
  const TemporaryFolder folder;
  const std::string file = folder.file("bench.json");
  const Outcome outcome = run_program({"bench", "cpu", "--quick", "--filter", kProduct, "--threads",
                                       "1,2", "--json", "--output", file});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  const nlohmann::json json = outcome.json();
  EXPECT_EQ(read_file(file), outcome.out);
  for (const char* key : {"machine", "contract", "peers", "cases", "summary"}) {
    EXPECT_TRUE(json.contains(key)) << key;
  }
  ASSERT_EQ(json.at("cases").size(), 2u);
  for (const nlohmann::json& c : json.at("cases")) {
    EXPECT_EQ(c.at("bits_equal"), true) << c;
    EXPECT_GT(c.at("ms").get<double>(), 0) << c;
  }
}

TEST(BenchProgram, PrintsMarkdown) {
  const Outcome outcome =
      run_program({"bench", "--quick", "--filter", kProduct, "--threads", "1", "--markdown"});
  EXPECT_NE(outcome.out.find("bits: 1 of 1 cases equal"), std::string::npos) << outcome.out;
  EXPECT_NE(outcome.out.find("| `gemm/bf16/chain/8x192x64/threads:1` | equal |"),
            std::string::npos);
}

TEST(BenchProgram, RefusesAFilterThatMatchesNothing) {
  expect_refused(run_program({"bench", "--filter", "gemmm"}), 2, {"gemmm", "--list"});
}

TEST(BenchProgram, ListsTheCasesOfAGpuWithoutOne) {
  const Outcome outcome = run_program({"bench", "cuda", "--list", "--filter", "^linear_logp"});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_EQ(outcome.out,
            "linear_logp/bf16/4096x151936x4096\nlinear_logp_backward/bf16/4096x151936x4096\n");
}

TEST(BenchProgram, IsNotAvailableWithoutAGpu) {
  const Outcome outcome = run_program({"bench", "cuda", "--filter", "no such case"});
  if (outcome.exit_code == 2) GTEST_SKIP() << "a GPU is here";
  expect_refused(outcome, 3, {"not_available", "GPU"});
}

}  // namespace
}  // namespace rlk
