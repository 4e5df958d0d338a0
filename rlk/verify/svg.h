// Figures as inline SVG. Colours are CSS classes (s0, s1, ... for series, p0, p1, ... for parts),
// so that the page's light and dark themes apply.
#pragma once

#include <string>
#include <vector>

namespace rlk::svg {

struct Series {
  std::string label;
  std::vector<double> x;
  std::vector<double> y;  // NaN leaves a gap
  bool markers = false;   // separate points instead of a line
  int color = 0;          // class s<color>
  bool in_legend = true;
};

enum class Scale {
  kLinear,
  kLogWithZero,  // decades, and below them a line of its own for values that are exactly 0
};

struct LineChart {
  std::string title;
  std::string note;     // a few words under the title
  std::string y_label;  // with unit
  std::string x_label = "step";
  Scale scale = Scale::kLinear;
  bool from_zero = true;  // the linear axis begins at 0
  bool smooth = false;    // a moving average over the values, which stay visible behind it
  std::vector<Series> series;
};

// <figure> with caption, legend and one <svg>; empty when no series has a value.
std::string line_chart(const LineChart& chart);

struct Bar {
  std::string label;
  std::vector<double> parts;  // one for each name, NaN as 0
};

struct StackedBars {
  std::string title;
  std::string note;
  std::vector<std::string> part_names;
  std::vector<Bar> bars;
};

// Horizontal bars of seconds on one axis.
std::string stacked_bars(const StackedBars& chart);

// Round numbers, about `count` of them, that cover [low, high].
std::vector<double> nice_ticks(double low, double high, int count);

}  // namespace rlk::svg
