// Figures: axes that hold their data, and exact zeros on a line of their own.
#include "rlk/verify/svg.h"

#include <cmath>

#include <gtest/gtest.h>

namespace rlk::svg {
namespace {

LineChart make_chart(std::vector<double> y) {
  LineChart chart;
  chart.title = "A <title>";
  chart.y_label = "unit";
  Series series;
  series.label = "strict";
  for (std::size_t i = 0; i < y.size(); ++i) series.x.push_back(static_cast<double>(i + 1));
  series.y = std::move(y);
  chart.series.push_back(series);
  return chart;
}

TEST(Svg, TicksAreRoundAndCoverTheRange) {
  EXPECT_EQ(nice_ticks(0, 100, 5), (std::vector<double>{0, 20, 40, 60, 80, 100}));
  const std::vector<double> ticks = nice_ticks(0.13, 0.97, 5);
  EXPECT_LE(ticks.front(), 0.13);
  EXPECT_GE(ticks.back(), 0.97);
}

TEST(Svg, AChartWithoutAValueIsLeftOut) {
  EXPECT_EQ(line_chart(make_chart({})), "");
  EXPECT_EQ(line_chart(make_chart({std::nan(""), std::nan("")})), "");
}

TEST(Svg, ANanLeavesAGapAndNoNanInThePath) {
  const std::string text = line_chart(make_chart({1, std::nan(""), 2, 3}));
  EXPECT_EQ(text.find("nan"), std::string::npos);
  const std::size_t path = text.find("class='s0'");
  ASSERT_NE(path, std::string::npos);
  const std::string data = text.substr(path, text.find("/>", path) - path);
  EXPECT_EQ(std::count(data.begin(), data.end(), 'M'), 2);
}

TEST(Svg, ExactZerosLieBelowTheLowestDecade) {
  LineChart chart = make_chart({0, 1e-6, 0});
  chart.scale = Scale::kLogWithZero;
  const std::string text = line_chart(chart);
  EXPECT_NE(text.find(">10\u207b\u2076<"), std::string::npos);
  EXPECT_NE(text.find(">0<"), std::string::npos);
  EXPECT_EQ(text.find("inf"), std::string::npos);
  EXPECT_NE(line_chart(make_chart({0, 0})).find("class='s0'"), std::string::npos);
}

TEST(Svg, TextsAreEscaped) {
  const std::string text = line_chart(make_chart({1, 2}));
  EXPECT_EQ(text.find("<title>strict"), std::string::npos);
  EXPECT_NE(text.find("A &lt;title&gt;"), std::string::npos);
}

TEST(Svg, BarsAreAsLongAsTheirParts) {
  StackedBars chart;
  chart.title = "time";
  chart.part_names = {"a", "b"};
  chart.bars = {{"strict", {0.5, 0.5}}, {"production", {0.25, std::nan("")}}};
  const std::string text = stacked_bars(chart);
  EXPECT_NE(text.find("1.00\u00a0s"), std::string::npos);
  EXPECT_NE(text.find("250\u00a0ms"), std::string::npos);
  EXPECT_EQ(text.find("nan"), std::string::npos);
}

}  // namespace
}  // namespace rlk::svg
