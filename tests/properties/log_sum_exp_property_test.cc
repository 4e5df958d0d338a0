// The log-sum-exp of a row does not depend on how the row is split and the parts are merged.
#include <cmath>

#include "rlk/numerics/log_sum_exp.h"
#include "tests/properties/draw.h"

namespace rlk::test {
namespace {

using numerics::EntropySumExp;
using numerics::LogitStatus;
using numerics::LogSumExpEnd;

float draw_logit(std::int64_t kind) {
  const auto x = static_cast<float>(static_cast<double>(draw(-1000000, 1000000)) * 1e-6);
  switch (kind) {
    case 0: return 20.0f * x;
    case 1: return 5000.0f * x;                       // around the change of the reduction at 2^12
    case 2: return 0x1p30f * x;                       // as far as a logit may go
    case 3: return x * 0x1p-140f;                     // subnormal, zeros with either sign
    case 4: return -0x1p30f * (1.0f + std::fabs(x));  // masks, and -2^30 itself
    default: return std::ldexp(x, static_cast<int>(draw(-30, 30)));
  }
}

// Parts of random sizes, merged pairwise in a random order.
EntropySumExp split_and_merge(std::vector<float> row) {
  std::vector<EntropySumExp> parts(static_cast<std::size_t>(draw(1, 9)));
  const std::int64_t shuffles = draw(0, 20);
  for (std::int64_t i = 0; i < shuffles && row.size() > 1; ++i) {
    std::swap(row[draw(0, std::ssize(row) - 1)], row[draw(0, std::ssize(row) - 1)]);
  }
  for (float z : row) parts[draw(0, std::ssize(parts) - 1)].add(z);
  while (parts.size() > 1) {
    const std::int64_t from = draw(0, std::ssize(parts) - 1);
    const std::int64_t to = (from + draw(1, std::ssize(parts) - 1)) % std::ssize(parts);
    parts[to].merge(parts[from]);
    parts.erase(parts.begin() + from);
  }
  return parts[0];
}

TEST(Properties, AnySplitAndMergeOfALogSumExpGivesTheSameState) {
  EXPECT_TRUE(rc::check("log_sum_exp", [] {
    std::vector<float> row;
    EntropySumExp whole;
    const bool mixed = draw_bool();
    const std::int64_t kind = draw(0, 5);
    for (std::int64_t i = draw_size(1, 60); i > 0; --i) {
      row.push_back(draw_logit(mixed ? draw(0, 5) : kind));
      whole.add(row.back());
    }
    const EntropySumExp merged = split_and_merge(row);
    RC_ASSERT(merged == whole);
    if (whole.status() != LogitStatus::kOk) return;
    const LogSumExpEnd end(whole.sum), other(merged.sum);
    RC_ASSERT(end.lse == other.lse);
    RC_ASSERT(end.entropy(whole) == other.entropy(merged));
    RC_ASSERT(end.entropy(whole) >= 0.0);
    RC_ASSERT(end.entropy(whole) <= std::log(static_cast<double>(row.size())) + 1e-4);
    double sum = 0;
    for (float z : row) {
      RC_ASSERT(end.logp(z) <= 0.0f);
      RC_ASSERT(end.p(z) >= 0.0f && end.p(z) <= 1.0001f);
      sum += end.p(z);
    }
    RC_ASSERT(std::fabs(sum - 1.0) < 1e-4);
  }));
}

}  // namespace
}  // namespace rlk::test
