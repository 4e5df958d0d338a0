#include <array>

#include "rlk/kernels/logprob.h"
#include "rlk/kernels/reference/storage.h"
#include "rlk/kernels/reference/table.h"
#include "rlk/kernels/reference/token_filter.h"
#include "rlk/numerics/log_sum_exp.h"
#include "rlk/numerics/math.h"

namespace rlk::reference {
namespace {

using numerics::LogSumExpEnd;

// z of row t, -inf where a token takes no part, and the end of its sum. False where the row is an
// error.
bool read_row(Exec& exec, const ConstTensorView& logits, std::int64_t t,
              const SamplingParams& params, float* z, LogSumExpEnd* end) {
  const std::int64_t vocab_size = logits.shape(1);
  const numerics::Strided<float> input{logits.at<float>(t), logits.stride(1)};
  if (!prepare_row(exec.workspace, input, vocab_size, params, z)) return false;
  numerics::LogSumExp sum;
  for (std::int64_t j = 0; j < vocab_size; ++j) sum.add(z[j]);
  *end = LogSumExpEnd(sum);
  return true;
}

const SamplingParams& params_of(const SamplingParams* params, std::int64_t num_params,
                                std::int64_t t) {
  return params[num_params == 1 ? 0 : t];
}

}  // namespace

void log_softmax(Exec& exec, const LogSoftmaxArgs& args) {
  const std::int64_t vocab_size = args.logits.shape(1);
  Workspace::Frame frame(exec.workspace);
  float* z = frame.take<float>(vocab_size);
  for (std::int64_t t = 0; t < args.logits.shape(0); ++t) {
    LogSumExpEnd end;
    if (!read_row(exec, args.logits, t, params_of(args.params, args.num_params, t), z, &end)) {
      exec.fault.report(t);
      continue;
    }
    for (std::int64_t j = 0; j < vocab_size; ++j) *args.y.at<float>(t, j) = end.logp(z[j]);
  }
}

void log_softmax_backward(Exec& exec, const LogSoftmaxBackwardArgs& args) {
  const std::int64_t vocab_size = args.logits.shape(1);
  Workspace::Frame frame(exec.workspace);
  float* z = frame.take<float>(vocab_size);
  for (std::int64_t t = 0; t < args.logits.shape(0); ++t) {
    for (std::int64_t j = 0; j < args.dlogits.shape(1); ++j) write(args.dlogits, 0.0f, t, j);
    const SamplingParams& params = params_of(args.params, args.num_params, t);
    LogSumExpEnd end;
    if (!read_row(exec, args.logits, t, params, z, &end)) {
      exec.fault.report(t);
      continue;
    }
    const auto takes_part = [&](std::int64_t j) { return z[j] != -numerics::kInfinity; };
    std::array<float, numerics::kMaxLanes> lane{};
    const std::int64_t lanes = exec.contract.norm_lanes;
    for (std::int64_t j = 0; j < vocab_size; ++j) {
      if (takes_part(j)) lane[static_cast<std::size_t>(j % lanes)] += *args.dy.at<float>(t, j);
    }
    const float sum = numerics::neighbour_tree(lane.data(), exec.contract.norm_lanes);
    if (!numerics::is_finite(sum)) {
      exec.fault.report(t);
      continue;
    }
    for (std::int64_t j = 0; j < vocab_size; ++j) {
      if (!takes_part(j)) continue;
      const float dz = *args.dy.at<float>(t, j) - end.p(z[j]) * sum;
      write(args.dlogits, dz * inverse_temperature(params), t, j);
    }
  }
}

}  // namespace rlk::reference
