#include "rlk/kernels/vendor_plans.h"

#include <algorithm>

#include <fmt/format.h>

namespace rlk {

std::vector<std::string> to_lines(const VendorPlan& plan) {
  const VendorShape& s = plan.shape;
  const std::string product = fmt::format("products {} x {} to {}", s.n, s.k, to_string(s.c));
  if (!plan.failure.empty()) return {fmt::format("{}: ours; {}", product, plan.failure)};
  std::vector<std::string> lines;
  for (std::size_t i = 0; i < plan.trials.size();) {
    const std::int64_t rows = plan.trials[i].most_rows;
    const VendorTrial* best = nullptr;
    int equal = 0, count = 0;
    for (; i < plan.trials.size() && plan.trials[i].most_rows == rows; ++i, ++count) {
      const VendorTrial& t = plan.trials[i];
      if (!t.difference.empty()) continue;
      ++equal;
      if (!best || t.us < best->us) best = &t;
    }
    std::string line = fmt::format("{}, up to {} rows: ", product, rows);
    if (best) {
      line += fmt::format("{}, {} algorithm {} takes {:.1f} us, ours {:.1f} us, {} vectors equal",
                          best->chosen ? "the library's" : "ours", plan.library, best->algorithm,
                          best->us, best->our_us, best->vectors);
    } else {
      line += fmt::format("ours, {} gives other bits", plan.library);
    }
    lines.push_back(fmt::format("{} ({} of {} algorithms)", line, equal, count));
  }
  return lines;
}

}  // namespace rlk
