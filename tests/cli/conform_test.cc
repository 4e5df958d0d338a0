// Trying for admission, and what a run of route strict does with the record.
#include <cstdlib>
#include <filesystem>
#include <string>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "rlk/io/files.h"
#include "tests/cli/scene.h"

namespace rlk {
namespace {

class Conform : public testing::Test {
 protected:
  Conform() { setenv("XDG_CACHE_HOME", cache().c_str(), 1); }
  ~Conform() override { unsetenv("XDG_CACHE_HOME"); }

  std::string cache() const { return folder_.file("cache"); }
  std::string record() const {
    for (const auto& entry : std::filesystem::directory_iterator(cache() + "/rlkernel")) {
      return entry.path();
    }
    return "";
  }

  TemporaryFolder folder_;
};

TEST_F(Conform, AdmitsEveryOperatorOfThisCpu) {
  const Outcome outcome = run_program({"conform", "--json"});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  const nlohmann::json result = outcome.json();
  for (const auto& entry : result.at("entries")) {
    EXPECT_TRUE(entry.at("admitted").get<bool>()) << entry;
  }
  EXPECT_EQ(nlohmann::json::parse(read_file(record())), result);
}

TEST_F(Conform, RefusesTheVendorRouteAndFailsWhenItIsAllThatWasAsked) {
  const Outcome alone = run_program({"conform", "--op", "gemm,rope", "--backend", "production"});
  EXPECT_EQ(alone.exit_code, 1) << alone.err;
  EXPECT_NE(alone.out.find("the contract's is"), std::string::npos) << alone.out;
  EXPECT_NE(alone.out.find("1 of 2 admitted"), std::string::npos) << alone.out;
  EXPECT_EQ(run_program({"conform", "--op", "gemm", "--backend", "all"}).exit_code, 0);
  // Both trials are in one record.
  EXPECT_GE(nlohmann::json::parse(read_file(record())).at("entries").size(), 3u);
}

TEST_F(Conform, PrintsOneDigestForAllInstructionSets) {
  const Outcome best = run_program({"conform", "--digest"});
  EXPECT_EQ(best.out.size(), 65u) << best.out;
  EXPECT_EQ(run_program({"conform", "--digest", "--backend", "cpu.scalar", "--threads", "1"}).out,
            best.out);
  EXPECT_FALSE(std::filesystem::exists(cache()));
}

TEST_F(Conform, NamesWhatItDoesNotKnow) {
  expect_refused(run_program({"conform", "--op", "gem"}), 2, {"gem", "gemm"});
  for (const char* spelling : {"--backend", "--device"}) {
    expect_refused(run_program({"conform", spelling, "cpu.sse"}), 2, {"cpu.sse", "cpu.scalar"});
  }
}

TEST_F(Conform, TriesTheProfileOfAnotherChip) {
  const Outcome outcome =
      run_program({"conform", "--profile", "cdna2", "--op", "gemm_backward_weight"});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.out;
  expect_refused(run_program({"conform", "--profile", "cdna2", "--backend", "production"}), 3,
                 {"cdna2", "production"});
  expect_refused(run_program({"conform", "--profile", "cdna9"}), 2, {"cdna9", "cdna3"});
}

TEST_F(Conform, SaysWhoseProductsALibraryCanGive) {
  expect_refused(run_program({"conform", "--products", "libnone.so", "--backend", "cpu"}), 2,
                 {"--products", "cpu", "cuda.sm90"});
}

TEST_F(Conform, ComesOnceBeforeTheFirstStrictRun) {
  const Scene scene;
  const Outcome first = scene.rl("first");
  EXPECT_EQ(first.exit_code, 0) << first.err;
  EXPECT_NE(first.err.find("no admission record"), std::string::npos) << first.err;
  const Outcome second = scene.rl("second");
  EXPECT_EQ(second.exit_code, 0) << second.err;
  EXPECT_EQ(second.err.find("admission"), std::string::npos) << second.err;
}

TEST_F(Conform, ARefusedKernelKeepsAStrictRunFromStarting) {
  const Scene scene;
  ASSERT_EQ(run_program({"conform"}).exit_code, 0);
  nlohmann::json json = nlohmann::json::parse(read_file(record()));
  for (auto& entry : json.at("entries")) {
    if (entry.at("op") != "attention") continue;
    entry["admitted"] = false;
    entry["reason"] = "y[0, 0, 0] is 1";
  }
  write_file(record(), json.dump());
  expect_refused(scene.rl("strict"), 2, {"attention", "y[0, 0, 0] is 1", "rlk conform"});
  EXPECT_EQ(scene.rl("production", {"route=production"}).exit_code, 0);
}

TEST_F(Conform, AStrictRunWithAnOverrideFailsAndNamesIt) {
  const Scene scene;
  const Outcome outcome = scene.rl("run", {R"(modes.rollout={"sample": "off"})"});
  EXPECT_EQ(outcome.exit_code, 1);
  EXPECT_NE(outcome.err.find("rollout.sample"), std::string::npos) << outcome.err;
  EXPECT_EQ(scene.summary("run").at("unadmitted_ops"), nlohmann::json({"rollout.sample"}));
}

}  // namespace
}  // namespace rlk
