// The report: well-formed, self-contained, escaped, and with the run's numbers in it.
#include "rlk/verify/report.h"

#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <regex>
#include <set>
#include <sstream>

#include <gtest/gtest.h>

#include "rlk/core/error.h"
#include "rlk/rl/run_db.h"

namespace rlk {
namespace {

namespace fs = std::filesystem;

constexpr const char* kAttack = "<script>alert('x')</script>\"><img src=x onerror=alert(1)>";

void write_run(const fs::path& folder, const std::string& route, std::int64_t mismatches,
               int num_steps) {
  fs::create_directories(folder);
  RunDb db = RunDb::create((folder / "run.db").string());
  db.set_config(run_key::kRoute, "\"" + route + "\"");
  db.set_config(run_key::kForwardDigest, "\"<b>digest\"");
  db.set_config(run_key::kConfig, R"({"route":")" + route + R"(","text":"<i>in config</i>"})");
  db.set_config(run_key::kEnvironment, "no json <u>");
  db.write_metric(0, run_metric::kHeldoutReward, 0.1);
  for (int step = 1; step <= num_steps; ++step) {
    StepData data;
    data.step.step = step;
    data.step.reward_mean = 0.5;
    data.step.compared = 1000;
    data.step.mismatch_count = mismatches;
    data.step.max_abs_diff = mismatches > 0 ? 1e-5 : 0;
    data.step.rollout_s = data.step.score_s = 0.1;
    data.step.total_s = 0.25;
    data.step.response_tokens = 1000;
    SampleRow sample;
    sample.prompt_text = kAttack;
    sample.response_text = std::string("<svg/onload=1>\xff\0", 16);
    sample.finish_reason = kAttack;
    data.samples.push_back(sample);
    data.provenance.push_back({step, kAttack, kAttack, kAttack, kAttack, kAttack, 3, 4});
    db.write_step(data);
  }
}

class ReportTest : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = fs::temp_directory_path() / ("rlk_report_test_" + std::to_string(getpid()));
    fs::remove_all(folder_);
  }
  void TearDown() override { fs::remove_all(folder_); }
  std::string run(const char* name) const { return (folder_ / name).string(); }

  fs::path folder_;
};

// Every tag is closed in order; attributes hold no '<' (an unescaped text would show here).
void expect_well_formed(const std::string& page) {
  const std::set<std::string> empty_elements = {"meta", "input", "!doctype"};
  std::vector<std::string> open;
  for (std::size_t i = page.find('<'); i != std::string::npos; i = page.find('<', i + 1)) {
    const std::size_t end = page.find('>', i);
    ASSERT_NE(end, std::string::npos);
    const std::string tag = page.substr(i + 1, end - i - 1);
    ASSERT_EQ(tag.find('<'), std::string::npos) << tag;
    const std::string name = tag.substr(0, tag.find_first_of(" /", 1));
    if (tag.starts_with('/')) {
      ASSERT_FALSE(open.empty()) << tag;
      ASSERT_EQ("/" + open.back(), tag) << "near " << page.substr(i > 200 ? i - 200 : 0, 240);
      open.pop_back();
    } else if (!tag.ends_with('/') && !empty_elements.contains(name)) {
      open.push_back(name);
    }
    if (name == "style") i = page.find("</style>", i) - 1;
  }
  EXPECT_TRUE(open.empty()) << open.back();
}

TEST_F(ReportTest, ShowsBothRoutesInOneWellFormedPage) {
  write_run(run("strict"), "strict", 0, 20);
  write_run(run("production"), "production", 123, 20);
  const std::string page = report_html({run("strict"), run("production")});
  expect_well_formed(page);
  EXPECT_NE(page.find("<h1>0 of 20,000 log-probabilities differ on the strict route</h1>"),
            std::string::npos);
  EXPECT_NE(page.find(">2,460<"), std::string::npos);
  EXPECT_NE(page.find("strict / production"), std::string::npos);
  EXPECT_NE(page.find("Where the configurations differ"), std::string::npos);
}

TEST_F(ReportTest, EscapesEveryTextOfARun) {
  write_run(run("a"), kAttack[0] == '<' ? "<em>route" : "", 1, 2);
  const std::string page = report_html({run("a")});
  expect_well_formed(page);
  for (const char* forbidden : {"<script", "<img", "<svg/", "<b>digest", "<i>in", "<u>", "<em>"}) {
    EXPECT_EQ(page.find(forbidden), std::string::npos) << forbidden;
  }
  EXPECT_NE(page.find("&lt;script&gt;alert(&#39;x&#39;)"), std::string::npos);
}

TEST_F(ReportTest, LoadsNothingFromOutside) {
  write_run(run("a"), "strict", 0, 2);
  const std::string page = report_html({run("a")});
  EXPECT_FALSE(std::regex_search(page, std::regex("(src|href)=['\"]|url\\(|@import|https?://")));
}

TEST_F(ReportTest, ShowsARunWithoutASingleStep) {
  write_run(run("a"), "strict", 0, 0);
  const std::string page = report_html({run("a")});
  expect_well_formed(page);
  EXPECT_NE(page.find("Nothing was compared"), std::string::npos);
}

TEST_F(ReportTest, TellsTwoRunsOfOneRouteApartByTheirFolders) {
  write_run(run("first"), "strict", 0, 2);
  write_run(run("second"), "strict", 0, 2);
  const std::string page = report_html({run("first"), run("second")});
  EXPECT_NE(page.find("first</span>"), std::string::npos);
  EXPECT_NE(page.find("second</span>"), std::string::npos);
}

TEST_F(ReportTest, WritesTheFileOrSaysWhyNot) {
  write_run(run("a"), "strict", 0, 2);
  write_report(run("report.html"), {run("a")});
  std::ifstream in(run("report.html"));
  std::stringstream text;
  text << in.rdbuf();
  EXPECT_EQ(text.str(), report_html({run("a")}));
  EXPECT_THROW(write_report(run("no/such/folder/report.html"), {run("a")}), Error);
  EXPECT_THROW(report_html({}), Error);
  EXPECT_THROW(report_html({run("absent")}), Error);
}

}  // namespace
}  // namespace rlk
