#include "rlk/kernels/reference/token_filter.h"

#include <algorithm>
#include <limits>

#include "rlk/numerics/log_sum_exp.h"
#include "rlk/numerics/math.h"

namespace rlk::reference {
namespace {

using numerics::LogitStatus;

constexpr float kOut = -std::numeric_limits<float>::infinity();

// S of section 5, in units of 2^(16B-24).
double sum_of(const numerics::LogSumExp& state) {
  const auto f64 = [&](int k) { return static_cast<double>(state.s[k]); };
  return numerics::join_bins(f64(3), f64(2), f64(1), f64(0));
}

void keep_min_p(float min_p, std::int64_t vocab_size, float* z) {
  const float z_max = *std::max_element(z, z + vocab_size);
  const float limit = numerics::log(min_p);
  for (std::int64_t j = 0; j < vocab_size; ++j) {
    if (!(z[j] - z_max >= limit)) z[j] = kOut;
  }
}

// The ids that take part, in descending order.
std::int64_t sort_ids(const float* z, std::int64_t vocab_size, std::int32_t* ids) {
  std::int64_t count = 0;
  for (std::int64_t j = 0; j < vocab_size; ++j) {
    if (z[j] != kOut) ids[count++] = static_cast<std::int32_t>(j);
  }
  std::sort(ids, ids + count,
            [&](std::int32_t a, std::int32_t b) { return z[a] > z[b] || (z[a] == z[b] && a < b); });
  return count;
}

std::int64_t count_top_p(float top_p, const std::int32_t* ids, std::int64_t count, const float* z) {
  numerics::LogSumExp row;
  for (std::int64_t i = 0; i < count; ++i) row.add(z[ids[i]]);
  const double limit = static_cast<double>(top_p) * sum_of(row);

  numerics::LogSumExp before;  // of the same B from its first term on
  std::int64_t kept = 0;
  while (kept < count && sum_of(before) < limit) before.add(z[ids[kept++]]);
  return kept;
}

}  // namespace

float inverse_temperature(const SamplingParams& params) {
  return params.temperature == 0.0f ? 1.0f : 1.0f / params.temperature;
}

bool prepare_row(Workspace& workspace, const numerics::Strided<float>& logits,
                 std::int64_t vocab_size, const SamplingParams& params, float* z) {
  const float scale = inverse_temperature(params);
  bool any = false;
  for (std::int64_t j = 0; j < vocab_size; ++j) {
    const float logit = logits(j);
    z[j] = logit * scale;
    const LogitStatus status = numerics::classify_logit(z[j]);
    if (!numerics::is_finite(logit) || status == LogitStatus::kNonFinite) return false;
    if (status == LogitStatus::kMasked) z[j] = kOut;
    any = any || status == LogitStatus::kOk;
  }
  if (!any) return false;
  if (params.temperature == 0.0f) return true;

  if (params.min_p > 0.0f) keep_min_p(params.min_p, vocab_size, z);
  if (params.top_k <= 0 && params.top_p >= 1.0f) return true;

  Workspace::Frame frame(workspace);
  std::int32_t* ids = frame.take<std::int32_t>(vocab_size);
  const std::int64_t count = sort_ids(z, vocab_size, ids);
  std::int64_t kept = count;
  if (params.top_k > 0) kept = std::min<std::int64_t>(kept, params.top_k);
  if (params.top_p < 1.0f) kept = count_top_p(params.top_p, ids, kept, z);
  for (std::int64_t i = kept; i < count; ++i) z[ids[i]] = kOut;
  return kept > 0;
}

}  // namespace rlk::reference
