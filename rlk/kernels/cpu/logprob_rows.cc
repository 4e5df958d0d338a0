#include "rlk/kernels/cpu/logprob_rows.h"

#include <new>

#include "rlk/kernels/reference/token_filter.h"
#include "rlk/numerics/math.h"

namespace rlk::cpu {
namespace {

bool has_filter(const SamplingParams& params) {
  return params.temperature != 0.0f &&
         (params.min_p > 0.0f || params.top_k > 0 || params.top_p < 1.0f);
}

}  // namespace

void LogprobRow::read(std::int64_t t, const SamplingParams& params) {
  x = logits->at<float>(t);
  scale = reference::inverse_temperature(params);
  checked = false;
  valid = vocab_size > 0 && scale < numerics::kInfinity;
  if (!valid || !has_filter(params)) return;
  thread_local Workspace workspace;  // the caller's one is not for other threads
  valid = reference::prepare_row(workspace, numerics::Strided<float>{x, 1}, vocab_size, params, z);
  x = z;
  scale = 1.0f;
  checked = true;
}

LogprobRows::LogprobRows(Exec& exec, const ConstTensorView& logits, const SamplingParams* params,
                         std::int64_t num_params, double ns_per_column)
    : exec_(exec), frame_(exec.workspace), logits_(logits), num_rows_(logits.shape(0)) {
  const int num_threads = exec.pool.num_threads();
  const std::int64_t vocab_size = logits.shape(1);
  ns_per_row_ = ns_per_column * static_cast<double>(vocab_size);
  share_rows_ = num_rows_ >= 4 * num_threads || vocab_size <= kPieceColumns;
  bool filters = false;
  for (std::int64_t i = 0; i < std::min(num_params, num_rows_); ++i) {
    filters = filters || has_filter(params[i]);
  }
  rows_ = frame_.take<LogprobRow>(num_threads);
  for (int i = 0; i < num_threads; ++i) {
    LogprobRow& row = *new (&rows_[i]) LogprobRow;
    row.vocab_size = vocab_size;
    row.logits = &logits_;
    row.ns_per_column = ns_per_column;
    row.parts = frame_.take<LogprobPart>(row.num_pieces());
    if (filters) row.z = frame_.take<float>(vocab_size);
    if (!share_rows_) row.pool = &exec.pool;
  }
}

}  // namespace rlk::cpu
