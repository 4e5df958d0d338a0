#include "rlk/verify/probe.h"

#include <cstring>
#include <span>

#include <gtest/gtest.h>

#include "tests/numerics/mma/results.h"
#include "tests/verify/fake_instructions.h"

namespace rlk {
namespace {

using numerics::mma::kFamilies;
using numerics::mma::ResultHeader;

constexpr std::int64_t kFamilyCount = kFamilies.size();
// 64 x 64 kept twice, 64 x 64 and 16 x 16 random.
constexpr std::int64_t kComparedPerFamily = 3 * 64 * 64 + 16 * 16;

ProbeReport report_of(std::span<const RawInstruction> instructions) {
  ProbeOptions options;
  options.instructions = instructions;
  options.rows = 64;
  options.threads = 2;
  return probe(options);
}

TEST(Probe, ComparesEveryFamilyAndFindsAnExactDeviceEqual) {
  const ProbeReport report = report_of(std::span(kExactAndWrong).first(1));
  ASSERT_EQ(report.entries.size(), kFamilies.size());
  for (std::size_t i = 0; i < kFamilies.size(); ++i) {
    EXPECT_EQ(report.entries[i].family, kFamilies[i]);
    EXPECT_EQ(report.entries[i].compared, kComparedPerFamily);
    EXPECT_EQ(report.entries[i].different, 0);
    EXPECT_FALSE(report.entries[i].first.has_value());
  }
  EXPECT_EQ(report.compared(), kFamilyCount * kComparedPerFamily);
  EXPECT_EQ(report.different(), 0);
}

TEST(Probe, ReportsTheFirstOfDifferencesInOneBit) {
  const ProbeReport report = report_of(std::span(kExactAndWrong).last(1));
  EXPECT_EQ(report.different(), 2 * kFamilyCount);  // the kept chain and the random one
  for (const ProbeEntry& entry : report.entries) {
    ASSERT_TRUE(entry.first.has_value());
    EXPECT_EQ(entry.first->seed, 1u);
    EXPECT_EQ(entry.first->rows, 64);
    EXPECT_EQ(entry.first->columns, 64);
    EXPECT_EQ(entry.first->k, 256);
    EXPECT_EQ(entry.first->row, 5);
    EXPECT_EQ(entry.first->column, 7);
    EXPECT_EQ(entry.first->device_bits ^ entry.first->model_bits, 1u);
  }
}

TEST(Probe, KeepsAFilePerInstructionThatTheReaderOfGoldensTakes) {
  const ProbeReport report = report_of(kExactAndWrong);
  ASSERT_EQ(report.files.size(), 2u);
  EXPECT_EQ(report.files[0].name, "sm90_exact.bin");
  EXPECT_EQ(report.files[1].name, "sm90_wrong.bin");
  EXPECT_EQ(numerics::mma::count_wrong(report.files[0].bytes), 0);
  EXPECT_EQ(numerics::mma::count_wrong(report.files[1].bytes), kFamilyCount);
  const std::size_t record = sizeof(ResultHeader) + 64 * 64 * sizeof(float);
  for (const ProbeFile& file : report.files) {
    ASSERT_EQ(file.bytes.size(), 2 * kFamilies.size() * record);
  }
  ResultHeader last;
  std::memcpy(&last, report.files[1].bytes.data() + report.files[1].bytes.size() - record,
              sizeof(last));
  EXPECT_STREQ(last.instruction, "sm90 wrong");
  EXPECT_EQ(last.family, static_cast<std::uint32_t>(kFamilies.back()));
  EXPECT_EQ(last.rows, 64u);
  EXPECT_EQ(last.columns, 64u);
  EXPECT_EQ(last.k, 256u);
  EXPECT_EQ(last.seed, 1u);
}

TEST(Probe, AsksTheOpenPointsOfTheProfile) {
  const ProbeReport exact = report_of(std::span(kCdna3AndHopper).first(1));
  EXPECT_EQ(exact.different(), 0);
  EXPECT_GE(exact.answers.size(), 10u);
  for (const ProbeAnswer& answer : exact.answers) {
    EXPECT_EQ(answer.point->profile, Profile::kCdna3);
    EXPECT_TRUE(answer.as_model()) << answer.point->question;
  }
  const ProbeReport hopper = report_of(std::span(kCdna3AndHopper).last(1));
  const ProbeAnswer& unit = hopper.answers.front();
  EXPECT_STREQ(unit.point->question, "unit of the products");
  EXPECT_EQ(unit.device_bits, 0xbf400000u);  // -0.75
  EXPECT_FALSE(unit.as_model());
  EXPECT_GT(hopper.different(), 4);
}

TEST(Probe, RoundsSizesUpToWhatTheInstructionTakes) {
  RawInstruction wide = kExactAndWrong[0];
  wide.columns = 96;
  const ProbeReport report = report_of({&wide, 1});
  EXPECT_EQ(report.entries[0].compared, 3 * 64 * 96 + 16 * 96);
  EXPECT_EQ(report.different(), 0);
}

}  // namespace
}  // namespace rlk
