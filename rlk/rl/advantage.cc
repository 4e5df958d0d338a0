#include "rlk/rl/advantage.h"

#include <algorithm>
#include <cmath>

#include "rlk/core/error.h"

namespace rlk {
namespace {

void one_group(std::span<float> advantages, std::span<const double> rewards, double eps, int ddof) {
  if (std::all_of(rewards.begin(), rewards.end(), [&](double r) { return r == rewards[0]; })) {
    std::fill(advantages.begin(), advantages.end(), 0.0f);
    return;
  }
  const auto n = static_cast<double>(rewards.size());
  double sum = 0;
  for (double reward : rewards) sum = sum + reward;
  const double mean = sum / n;
  double squares = 0;
  for (double reward : rewards) {
    const double d = reward - mean;
    squares = squares + d * d;
  }
  const double std_dev = std::sqrt(squares / (n - ddof));
  for (std::size_t i = 0; i < rewards.size(); ++i) {
    advantages[i] = static_cast<float>((rewards[i] - mean) / (std_dev + eps));
    // Squares may overflow for rewards near the end of f64, or vanish (std + eps = 0) near 0.
    if (!std::isfinite(std_dev) || !std::isfinite(advantages[i])) {
      fail(ErrorCode::kNonFinite, "advantage: reward {} in a group with mean {} and std {}",
           rewards[i], mean, std_dev);
    }
  }
}

}  // namespace

void group_advantages(std::span<float> advantages, std::span<const double> rewards,
                      std::int64_t group_size, double eps, int ddof) {
  const auto count = static_cast<std::int64_t>(rewards.size());
  if (advantages.size() != rewards.size()) {
    fail(ErrorCode::kShape, "advantage: room for {} advantages, {} rewards", advantages.size(),
         count);
  }
  if (group_size <= 0 || count % group_size != 0) {
    fail(ErrorCode::kShape, "advantage: {} rewards cannot be cut into groups of {}", count,
         group_size);
  }
  if (ddof < 0 || ddof > 1 || ddof >= group_size) {
    fail(ErrorCode::kInvalidArgument, "advantage: ddof is {}, allowed 0 or 1 and below {}", ddof,
         group_size);
  }
  if (!(eps >= 0) || !std::isfinite(eps)) {
    fail(ErrorCode::kInvalidArgument, "advantage: eps is {}, must be finite and >= 0", eps);
  }
  for (std::int64_t i = 0; i < count; ++i) {
    const double reward = rewards[static_cast<std::size_t>(i)];
    if (!std::isfinite(reward)) {
      fail(ErrorCode::kNonFinite, "advantage: reward {} of group {}, sample {}", reward,
           i / group_size, i % group_size);
    }
  }
  for (std::int64_t begin = 0; begin < count; begin += group_size) {
    const auto at = static_cast<std::size_t>(begin);
    const auto size = static_cast<std::size_t>(group_size);
    one_group(advantages.subspan(at, size), rewards.subspan(at, size), eps, ddof);
  }
}

}  // namespace rlk
