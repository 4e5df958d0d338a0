// The bench as a library: what it does with wrong bits, and the forms of its report.
#include "rlk/bench/bench.h"

#include <algorithm>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "rlk/core/error.h"

namespace rlk {
namespace {

constexpr const char* kProduct = "^gemm/bf16/chain/8x192x64/threads:1$";

BenchOptions options_for(const std::string& filter) {
  BenchOptions options;
  options.quick = true;
  options.filter = filter;
  options.threads = {1};
  return options;
}

// The contract's product, with the last bit of one element of the last row turned.
void wrong_gemm(Exec& exec, const GemmArgs& args) {
  cpu_kernels().gemm(exec, args);
  args.c.at<bf16>(args.c.shape(0) - 1)->bits ^= 1u;
}

TEST(Bench, ARightKernelIsTimedBesideItsPeers) {
  const BenchReport report = run_bench(options_for(kProduct));
  ASSERT_EQ(report.cases.size(), 1u);
  const BenchCase& c = report.cases[0];
  EXPECT_TRUE(report.bits_equal()) << c.note;
  EXPECT_GT(c.ms, 0);
  EXPECT_GT(c.rate, 0);
  EXPECT_GT(c.price, 0);  // the production route is always there
  std::size_t installed = 0;
  for (const BenchLibrary& library : report.libraries) installed += !library.version.empty();
  EXPECT_EQ(c.peers.size(), installed + 1);
  EXPECT_EQ(c.ratio > 0, installed > 0);
}

TEST(Bench, AWrongKernelIsNotTimed) {
  KernelTable wrong = cpu_kernels();
  wrong.gemm = wrong_gemm;
  BenchOptions options = options_for(kProduct);
  options.kernels = &wrong;
  const BenchReport report = run_bench(options);
  ASSERT_EQ(report.cases.size(), 1u);
  const BenchCase& c = report.cases[0];
  EXPECT_FALSE(report.bits_equal());
  EXPECT_TRUE(c.ran);
  EXPECT_EQ(c.ms, 0);
  EXPECT_NE(c.note.find("row 7, column 0"), std::string::npos) << c.note;
  const nlohmann::json json = nlohmann::json::parse(to_json(report));
  EXPECT_EQ(json.at("cases").at(0).at("bits_equal"), false);
  EXPECT_TRUE(json.at("cases").at(0).at("ms").is_null());
  EXPECT_EQ(json.at("summary").at("bits_equal"), false);
  EXPECT_NE(to_text(report).find("DIFFER"), std::string::npos);
  EXPECT_NE(to_markdown(report).find("DIFFER"), std::string::npos);
}

TEST(Bench, TimesAnotherProfileAgainstItsOwnReference) {
  BenchOptions options = options_for(kProduct);
  options.contract.profile = Profile::kSm90;
  const BenchReport report = run_bench(options);
  EXPECT_TRUE(report.bits_equal()) << report.cases[0].note;
  EXPECT_GT(report.cases[0].ms, 0);
  EXPECT_EQ(nlohmann::json::parse(to_json(report)).at("cases").at(0).at("profile"), "sm90");
}

TEST(Bench, EveryCaseHasANameOfItsOwn) {
  std::vector<std::string> names = bench_names({});
  EXPECT_GT(names.size(), 100u);
  std::sort(names.begin(), names.end());
  EXPECT_EQ(std::adjacent_find(names.begin(), names.end()), names.end());
}

TEST(Bench, ADemoThatIsNotThereIsNotAvailable) {
  BenchOptions options = options_for("^demo/rollout/");
  options.demo = "no/such/folder";
  const BenchReport report = run_bench(options);
  ASSERT_EQ(report.cases.size(), 1u);
  EXPECT_FALSE(report.cases[0].ran);
  EXPECT_NE(report.cases[0].note.find("no/such/folder"), std::string::npos);
  EXPECT_TRUE(report.bits_equal());
}

TEST(Bench, RefusesAFilterThatMatchesNothingOrIsNone) {
  EXPECT_THROW(run_bench(options_for("no such case")), Error);
  EXPECT_THROW(run_bench(options_for("(")), Error);
}

TEST(Bench, AMissedOrMetTargetIsOneOfTheRatio) {
  BenchCase c;
  c.ratio = 0.79;
  c.target = 0.8;
  EXPECT_FALSE(c.met());
  c.ratio = 0.8;
  EXPECT_TRUE(c.met());
}

}  // namespace
}  // namespace rlk
