// How a comparison reads: for people and for programs.
#include <bit>

#include <nlohmann/json.hpp>

#include "rlk/compare/compare.h"
#include "rlk/core/error.h"

namespace rlk {

namespace {

std::uint32_t bits(float x) { return std::bit_cast<std::uint32_t>(x); }

std::string bin_name(int bin) {
  if (bin < 2) return std::to_string(bin);
  const std::uint64_t low = std::uint64_t{1} << (bin - 1);
  return fmt::format("{}-{}", low, 2 * low - 1);
}

}  // namespace

const char* to_string(CompareStatus status) {
  switch (status) {
    case CompareStatus::kEqual: return "equal";
    case CompareStatus::kDiffers: return "differs";
    case CompareStatus::kNotComparable: return "not_comparable";
    case CompareStatus::kNothingCompared: return "nothing_compared";
  }
  return "?";
}

std::string to_json(const Comparison& c) {
  nlohmann::ordered_json json;
  json["status"] = to_string(c.status);
  json["a"] = c.name_a;
  json["b"] = c.name_b;
  if (c.status == CompareStatus::kNotComparable) {
    json["field"] = c.field;
    json["detail"] = c.detail;
    return json.dump();
  }
  json["compared"] = c.compared;
  json["mismatch_count"] = c.mismatch_count;
  json["nan_count"] = c.nan_count;
  json["max_abs_diff"] = c.max_abs_diff;
  json["mean_abs_diff"] = c.mean_abs_diff;
  auto histogram = nlohmann::ordered_json::object();
  for (int i = 0; i < kUlpBins; ++i) {
    if (c.ulp_histogram[i] > 0) histogram[bin_name(i)] = c.ulp_histogram[i];
  }
  json["ulp_histogram"] = histogram;
  if (c.mismatch_count > 0) {
    const Mismatch& m = c.first_mismatch;
    json["first_mismatch"] = {{"step", m.step},
                              {"sample", m.sample},
                              {"position", m.position},
                              {"token_id", m.token_id},
                              {"a", m.a},
                              {"b", m.b},
                              {"a_bits", fmt::format("{:08x}", bits(m.a))},
                              {"b_bits", fmt::format("{:08x}", bits(m.b))}};
  }
  return json.dump();
}

std::string to_text(const Comparison& c) {
  switch (c.status) {
    case CompareStatus::kEqual:
      return fmt::format("{} = {}: {} log-probabilities, 0 differ", c.name_a, c.name_b, c.compared);
    case CompareStatus::kNotComparable:
      return fmt::format("{} and {} are not comparable: {} differs ({})", c.name_a, c.name_b,
                         c.field, c.detail);
    case CompareStatus::kNothingCompared:
      return fmt::format("{} and {}: nothing compared, no token is active", c.name_a, c.name_b);
    case CompareStatus::kDiffers: break;
  }
  const Mismatch& m = c.first_mismatch;
  std::string text = fmt::format(
      "{} != {}: {} of {} log-probabilities differ, max |d| {:.3g}, mean |d| {:.3g}\n"
      "first: step {}, sample {}, position {}, token {}: {:.9g} ({:08x}) and {:.9g} ({:08x})",
      c.name_a, c.name_b, c.mismatch_count, c.compared, c.max_abs_diff, c.mean_abs_diff, m.step,
      m.sample, m.position, m.token_id, m.a, bits(m.a), m.b, bits(m.b));
  if (c.nan_count > 0) text += fmt::format("\n{} pairs with a NaN", c.nan_count);
  return text;
}

}  // namespace rlk
