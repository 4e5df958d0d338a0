#include "rlk/kernels/logprob.h"

#include "rlk/kernels/reference/storage.h"
#include "rlk/kernels/reference/table.h"
#include "rlk/kernels/reference/token_filter.h"
#include "rlk/numerics/log_sum_exp.h"
#include "rlk/numerics/math.h"
#include "rlk/numerics/philox.h"

namespace rlk::reference {
namespace {

using numerics::EntropySumExp;
using numerics::LogSumExpEnd;
using numerics::Strided;

// One row after temperature and filters: z, -inf where a token takes no part, and its sums.
struct Row {
  float* z;
  EntropySumExp sums;
  LogSumExpEnd end;

  bool takes_part(std::int64_t j) const { return z[j] != -numerics::kInfinity; }
};

// Returns false where the row, or its target, is an error.
bool read_row(Exec& exec, const ConstTensorView& logits, std::int64_t t,
              const SamplingParams& params, std::int64_t target, Row* row) {
  const std::int64_t vocab_size = logits.shape(1);
  if (target < 0 || target >= vocab_size) return false;
  const Strided<float> input{logits.at<float>(t), logits.stride(1)};
  if (!prepare_row(exec.workspace, input, vocab_size, params, row->z)) return false;
  if (!row->takes_part(target)) return false;
  row->sums = EntropySumExp{};
  for (std::int64_t j = 0; j < vocab_size; ++j) row->sums.add(row->z[j]);
  row->end = LogSumExpEnd(row->sums.sum);
  return true;
}

const SamplingParams& params_of(const SamplingParams* params, std::int64_t num_params,
                                std::int64_t t) {
  return params[num_params == 1 ? 0 : t];
}

// dz_j of the tokens that take part.
float logit_gradient(const Row& row, std::int64_t j, bool is_target, float g, float g_entropy,
                     float entropy, float scale) {
  const float p = row.end.p(row.z[j]);
  float dz = ((is_target ? 1.0f : 0.0f) - p) * g;
  if (g_entropy != 0.0f) dz = dz - (p * (row.end.logp(row.z[j]) + entropy)) * g_entropy;
  return dz * scale;
}

}  // namespace

void logprob(Exec& exec, const LogprobArgs& args) {
  Workspace::Frame frame(exec.workspace);
  Row row{frame.take<float>(args.logits.shape(1)), {}, {}};
  for (std::int64_t t = 0; t < args.logits.shape(0); ++t) {
    for (std::int64_t i = 0; args.state && i < kLogprobStateWords; ++i) {
      *args.state.at<std::int32_t>(t, i) = 0;
    }
    const std::int32_t target = *args.targets.at<std::int32_t>(t);
    if (target == kIgnoreIndex) {
      *args.logp.at<float>(t) = 0.0f;
      if (args.entropy) *args.entropy.at<float>(t) = 0.0f;
      continue;
    }
    const SamplingParams& params = params_of(args.params, args.num_params, t);
    if (!read_row(exec, args.logits, t, params, target, &row)) {
      exec.fault.report(t);
      continue;
    }
    *args.logp.at<float>(t) = row.end.logp(row.z[target]);
    if (args.entropy) *args.entropy.at<float>(t) = static_cast<float>(row.end.entropy(row.sums));
  }
}

void logprob_backward(Exec& exec, const LogprobBackwardArgs& args) {
  const std::int64_t vocab_size = args.logits.shape(1);
  Workspace::Frame frame(exec.workspace);
  Row row{frame.take<float>(vocab_size), {}, {}};
  for (std::int64_t t = 0; t < args.dlogits.shape(0); ++t) {
    for (std::int64_t j = 0; j < args.dlogits.shape(1); ++j) write(args.dlogits, 0.0f, t, j);
    const std::int32_t target = *args.targets.at<std::int32_t>(t);
    const float g = *args.g.at<float>(t);
    const float g_entropy = args.g_entropy ? *args.g_entropy.at<float>(t) : 0.0f;
    if (target == kIgnoreIndex || (g == 0.0f && g_entropy == 0.0f)) continue;
    const SamplingParams& params = params_of(args.params, args.num_params, t);
    if (!read_row(exec, args.logits, t, params, target, &row)) {
      exec.fault.report(t);
      continue;
    }
    const float entropy = static_cast<float>(row.end.entropy(row.sums));
    const float scale = inverse_temperature(params);
    for (std::int64_t j = 0; j < vocab_size; ++j) {
      if (!row.takes_part(j)) continue;
      write(args.dlogits, logit_gradient(row, j, j == target, g, g_entropy, entropy, scale), t, j);
    }
  }
}

void sample(Exec& exec, const SampleArgs& args) {
  const std::int64_t vocab_size = args.logits.shape(1);
  Workspace::Frame frame(exec.workspace);
  float* z = frame.take<float>(vocab_size);
  for (std::int64_t t = 0; t < args.logits.shape(0); ++t) {
    const SamplingParams& params = args.params[t];
    const Strided<float> input{args.logits.at<float>(t), args.logits.stride(1)};
    if (!prepare_row(exec.workspace, input, vocab_size, params, z)) {
      exec.fault.report(t);
      continue;
    }
    const SampleKey& key = args.keys[t];
    std::int64_t best = -1;
    float best_score = 0.0f;
    for (std::int64_t j = 0; j < vocab_size; ++j) {
      if (z[j] == -numerics::kInfinity) continue;
      float score = z[j];
      if (params.temperature != 0.0f) {
        score = score + numerics::gumbel(key.seed, key.request, key.position,
                                         static_cast<std::uint32_t>(j));
      }
      if (best < 0 || score > best_score) {
        best = j;
        best_score = score;
      }
    }
    *args.token_ids.at<std::int32_t>(t) = static_cast<std::int32_t>(best);
  }
}

}  // namespace rlk::reference
