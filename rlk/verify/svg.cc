#include "rlk/verify/svg.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <limits>

#include <fmt/format.h>

#include "rlk/verify/html.h"

namespace rlk::svg {

namespace {

// Units of the view box; text of 13 units stays readable on a phone.
constexpr double kWidth = 520;
constexpr double kHeight = 286;
constexpr double kLeft = 58;
constexpr double kRight = 14;
constexpr double kTop = 34;
constexpr double kBottom = 38;
constexpr double kZeroGap = 26;  // between the lowest decade and the line of exact zeros
constexpr int kMaxHoverStrips = 240;
constexpr int kSmoothing = 9;  // steps of the moving average

template <typename... Args>
void add(std::string& out, fmt::format_string<Args...> format, Args&&... args) {
  fmt::format_to(std::back_inserter(out), format, std::forward<Args>(args)...);
}

struct Extent {
  double low = std::numeric_limits<double>::infinity();
  double high = -std::numeric_limits<double>::infinity();
  void include(double value) {
    low = std::min(low, value);
    high = std::max(high, value);
  }
  bool empty() const { return low > high; }
};

std::string tick_text(double value, double step) {
  const int digits = step >= 1 ? 0 : static_cast<int>(std::ceil(-std::log10(step) - 1e-9));
  return digits > 5 ? html::significant(value, 2) : html::fixed(value, digits);
}

// Maps data to the view box, and knows where the y axis has its lines.
class Axes {
 public:
  explicit Axes(const LineChart& chart) : log_(chart.scale == Scale::kLogWithZero) {
    Extent y;
    for (const Series& series : chart.series) {
      for (std::size_t i = 0; i < series.y.size(); ++i) {
        if (!std::isfinite(series.y[i])) continue;
        any_ = true;
        x_.include(series.x[i]);
        if (!log_ || series.y[i] > 0) y.include(series.y[i]);
      }
    }
    if (!any_) return;
    if (x_.low == x_.high) x_.high = x_.low + 1;
    if (log_) {
      low_ = y.empty() ? -8 : std::floor(std::log10(y.low));
      high_ = y.empty() ? -2 : std::max(low_ + 1, std::ceil(std::log10(y.high)));
      return;
    }
    if (chart.from_zero) y.include(0);
    const bool flat = y.low == y.high;
    if (flat) y.high = y.low + 1;
    ticks_ = nice_ticks(y.low, y.high, flat ? 1 : 5);
    low_ = std::min(ticks_.front(), y.low);
    high_ = std::max(ticks_.back(), y.high);
  }

  bool any() const { return any_; }
  double x(double value) const {
    return kLeft + (value - x_.low) / (x_.high - x_.low) * (kWidth - kLeft - kRight);
  }
  double y(double value) const {
    if (log_ && value <= 0) return kHeight - kBottom;
    const double bottom = kHeight - kBottom - (log_ ? kZeroGap : 0);
    return bottom - ((log_ ? std::log10(value) : value) - low_) / (high_ - low_) * (bottom - kTop);
  }

  void draw(std::string& out, const LineChart& chart) const {
    if (log_) {
      draw_decades(out);
    } else {
      const double step = ticks_[1] - ticks_[0];
      for (const double tick : ticks_) draw_line(out, y(tick), tick_text(tick, step), tick == 0);
    }
    const std::vector<double> x_ticks = nice_ticks(x_.low, x_.high, 6);
    for (const double tick : x_ticks) {
      if (tick < x_.low || tick > x_.high) continue;
      add(out, "<text class='t m' x='{:.1f}' y='{:.1f}'>{}</text>", x(tick), kHeight - kBottom + 18,
          tick_text(tick, x_ticks[1] - x_ticks[0]));
    }
    add(out, "<text class='l' x='{}' y='14'>{}</text>", 2, html::escape(chart.y_label));
    add(out, "<text class='l e' x='{}' y='{}'>{}</text>", kWidth - kRight, kHeight - 3,
        html::escape(chart.x_label));
  }

  // Transparent strips over the plot, one a step, that show their values as a tooltip.
  void draw_hover(std::string& out, const LineChart& chart) const {
    const std::vector<double>& steps = chart.series.front().x;
    const std::size_t stride = steps.size() / kMaxHoverStrips + 1;
    const double width = (kWidth - kLeft - kRight) / std::max<double>(1, x_.high - x_.low) *
                         static_cast<double>(stride);
    for (std::size_t i = 0; i < steps.size(); i += stride) {
      std::string text = fmt::format("{} {:g}", chart.x_label, steps[i]);
      for (const Series& series : chart.series) {
        const auto at = std::lower_bound(series.x.begin(), series.x.end(), steps[i]);
        if (at == series.x.end() || *at != steps[i]) continue;
        const auto index = static_cast<std::size_t>(at - series.x.begin());
        text += fmt::format("\n{}: {}", series.label, html::significant(series.y[index], 4));
      }
      add(out,
          "<rect class='h' x='{:.1f}' y='{}' width='{:.1f}' height='{}'><title>{}</title></rect>",
          x(steps[i]) - width / 2, kTop, width, kHeight - kTop - kBottom, html::escape(text));
    }
  }

 private:
  void draw_line(std::string& out, double at, const std::string& text, bool strong) const {
    add(out, "<path class='{}' d='M{} {:.1f}H{}'/>", strong ? "g z" : "g", kLeft, at,
        kWidth - kRight);
    add(out, "<text class='t e' x='{}' y='{:.1f}'>{}</text>", kLeft - 7, at + 4.5, text);
  }

  void draw_decades(std::string& out) const {
    const int every = static_cast<int>(std::ceil((high_ - low_) / 6));
    for (int decade = static_cast<int>(low_); decade <= static_cast<int>(high_); decade += every) {
      draw_line(out, y(std::pow(10.0, decade)), html::power_of_ten(decade), false);
    }
    draw_line(out, y(0), "0", true);
    // The mark of a broken axis.
    const double middle = kHeight - kBottom - kZeroGap / 2;
    add(out, "<path class='b' d='M{} {}l8 -4M{} {}l8 -4'/>", kLeft - 4, middle + 5, kLeft - 4,
        middle);
  }

  bool log_;
  bool any_ = false;
  Extent x_;
  double low_ = 0;
  double high_ = 1;
  std::vector<double> ticks_;
};

std::string path_data(const Axes& axes, const std::vector<double>& x,
                      const std::vector<double>& y) {
  std::string data;
  bool drawing = false;
  for (std::size_t i = 0; i < y.size(); ++i) {
    if (!std::isfinite(y[i])) {
      drawing = false;
      continue;
    }
    add(data, "{}{:.1f} {:.1f}", drawing ? 'L' : 'M', axes.x(x[i]), axes.y(y[i]));
    drawing = true;
  }
  return data;
}

// Mean of the finite values at most kSmoothing / 2 steps away.
std::vector<double> moving_average(const std::vector<double>& y) {
  std::vector<double> result(y.size());
  const auto n = static_cast<std::ptrdiff_t>(y.size());
  for (std::ptrdiff_t i = 0; i < n; ++i) {
    const std::ptrdiff_t reach = std::min({std::ptrdiff_t{kSmoothing / 2}, i, n - 1 - i});
    double sum = 0;
    int count = 0;
    for (std::ptrdiff_t k = i - reach; k <= i + reach; ++k) {
      const double value = y[static_cast<std::size_t>(k)];
      if (!std::isfinite(value)) continue;
      sum += value;
      ++count;
    }
    result[static_cast<std::size_t>(i)] =
        count > 0 ? sum / count : std::numeric_limits<double>::quiet_NaN();
  }
  return result;
}

void draw_series(std::string& out, const Axes& axes, const Series& series, bool smooth) {
  if (series.markers) {
    for (std::size_t i = 0; i < series.y.size(); ++i) {
      if (!std::isfinite(series.y[i])) continue;
      add(out, "<path class='s{} k' d='M{:.1f} {:.1f}m0 -5l5 5l-5 5l-5 -5z'/>", series.color,
          axes.x(series.x[i]), axes.y(series.y[i]));
    }
    return;
  }
  if (smooth && series.y.size() > kSmoothing) {
    add(out, "<path class='s{} r' d='{}'/>", series.color, path_data(axes, series.x, series.y));
    add(out, "<path class='s{}' d='{}'/>", series.color,
        path_data(axes, series.x, moving_average(series.y)));
  } else {
    add(out, "<path class='s{}' d='{}'/>", series.color, path_data(axes, series.x, series.y));
  }
}

void caption(std::string& out, const std::string& title, const std::string& note) {
  add(out, "<figure><figcaption><h3>{}</h3>", html::escape(title));
  if (!note.empty()) add(out, "<p>{}</p>", html::escape(note));
}

}  // namespace

std::vector<double> nice_ticks(double low, double high, int count) {
  const double raw = (high - low) / count;
  const double power = std::pow(10.0, std::floor(std::log10(raw)));
  const double scaled = raw / power;
  const double factor = scaled <= 1.0001 ? 1 : scaled <= 2.0001 ? 2 : scaled <= 5.0001 ? 5 : 10;
  const double step = power * factor;
  std::vector<double> ticks;
  const double first = std::floor(low / step + 1e-9);
  const double last = std::ceil(high / step - 1e-9);
  for (double i = first; i <= last; ++i) ticks.push_back(i * step);
  if (ticks.size() < 2) ticks.push_back((first + 1) * step);
  return ticks;
}

std::string line_chart(const LineChart& chart) {
  const Axes axes(chart);
  if (!axes.any()) return "";
  std::string out;
  caption(out, chart.title, chart.note);
  out += "<div class='legend'>";
  for (const Series& series : chart.series) {
    if (!series.in_legend) continue;
    add(out, "<span><i class='{} c{}'></i>{}</span>", series.markers ? "dot" : "line", series.color,
        html::escape(series.label));
  }
  out += "</div></figcaption>";
  add(out, "<svg viewBox='0 0 {} {}' role='img' aria-label='{}'>", kWidth, kHeight,
      html::escape(chart.title + ", " + chart.y_label));
  axes.draw(out, chart);
  // The first series, which the page is about, lies on top.
  for (auto series = chart.series.rbegin(); series != chart.series.rend(); ++series) {
    draw_series(out, axes, *series, chart.smooth);
  }
  axes.draw_hover(out, chart);
  out += "</svg></figure>\n";
  return out;
}

std::string stacked_bars(const StackedBars& chart) {
  double longest = 0;
  const auto value_of = [](double part) { return std::isfinite(part) && part > 0 ? part : 0.0; };
  for (const Bar& bar : chart.bars) {
    double sum = 0;
    for (const double part : bar.parts) sum += value_of(part);
    longest = std::max(longest, sum);
  }
  if (longest <= 0) return "";

  constexpr double kBarWidth = 1080;
  constexpr double kName = 118;
  constexpr double kTotal = 74;
  constexpr double kBarHeight = 34;
  constexpr double kPitch = 50;
  const double height = kPitch * static_cast<double>(chart.bars.size()) + 30;
  const double scale = (kBarWidth - kName - kTotal) / longest;

  std::string out;
  caption(out, chart.title, chart.note);
  out += "<div class='legend'>";
  for (std::size_t i = 0; i < chart.part_names.size(); ++i) {
    add(out, "<span><i class='box p{}'></i>{}</span>", i, html::escape(chart.part_names[i]));
  }
  out += "</div></figcaption><div class='scroll'>";
  add(out, "<svg class='wide' viewBox='0 0 {} {}' role='img' aria-label='{}'>", kBarWidth, height,
      html::escape(chart.title));
  for (const double tick : nice_ticks(0, longest, 6)) {
    if (tick > longest) continue;
    const double x = kName + tick * scale;
    add(out, "<path class='g{}' d='M{:.1f} 0V{}'/>", tick == 0 ? " z" : "", x, height - 24);
    add(out, "<text class='t m' x='{:.1f}' y='{}'>{}</text>", x, height - 6, html::seconds(tick));
  }
  for (std::size_t b = 0; b < chart.bars.size(); ++b) {
    const Bar& bar = chart.bars[b];
    const double y = kPitch * static_cast<double>(b) + 8;
    add(out, "<text class='n e' x='{}' y='{}'>{}</text>", kName - 10, y + kBarHeight / 2 + 5,
        html::escape(bar.label));
    double sum = 0;
    for (std::size_t i = 0; i < bar.parts.size(); ++i) {
      const double part = value_of(bar.parts[i]);
      if (part == 0) continue;
      const double width = part * scale;
      const std::string text = html::seconds(part);
      add(out,
          "<g class='p{}'><rect x='{:.1f}' y='{}' width='{:.1f}' height='{}'>"
          "<title>{}: {}</title></rect>",
          i, kName + sum * scale, y, width, kBarHeight, html::escape(chart.part_names[i]), text);
      if (width > 70) {
        add(out, "<text class='v m' x='{:.1f}' y='{}'>{}</text>", kName + sum * scale + width / 2,
            y + kBarHeight / 2 + 5, text);
      }
      out += "</g>";
      sum += part;
    }
    add(out, "<text class='n' x='{:.1f}' y='{}'>{}</text>", kName + sum * scale + 8,
        y + kBarHeight / 2 + 5, html::seconds(sum));
  }
  out += "</svg></div></figure>\n";
  return out;
}

}  // namespace rlk::svg
