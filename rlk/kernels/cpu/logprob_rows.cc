#include "rlk/kernels/cpu/logprob_rows.h"

#include <cstring>
#include <new>

#include "rlk/kernels/reference/token_filter.h"
#include "rlk/numerics/math.h"

namespace rlk::cpu {

bool has_filter(const SamplingParams& params) {
  return params.temperature != 0.0f &&
         (params.min_p > 0.0f || params.top_k > 0 || params.top_p < 1.0f);
}

numerics::EntropySumExp state_of(const LogprobSums& sums) {
  numerics::EntropySumExp state;
  state.sum.z_max = sums.z_max;
  state.sum.any = sums.any;
  state.sum.bad = sums.bad;
  state.sum.bin = sums.bin;
  std::copy(sums.s, sums.s + 4, state.sum.s.begin());
  std::copy(sums.e, sums.e + 4, state.e.begin());
  return state;
}

RowState::RowState(const numerics::EntropySumExp& sums, bool wide, bool with_entropy)
    : has_entropy(with_entropy) {
  const numerics::LogSumExpEnd row(sums.sum);
  end = {row.inverse, row.bin, static_cast<double>(row.z_max), row.c, wide};
  if (with_entropy) entropy = static_cast<float>(row.entropy(sums));
}

namespace {

struct SavedState {
  enum : std::int32_t { kKept = 1, kEntropy = 2, kWide = 4, kFiltered = 8 };
  std::int32_t flags;
  std::int32_t bin;
  double c;
  float z_max, inverse, entropy;
  float cut_z;
  std::int32_t cut_id;
  std::int32_t unused;
};
static_assert(sizeof(SavedState) == 4 * kLogprobStateWords);

}  // namespace

void RowState::save(std::int32_t* words) const {
  const SavedState saved = {SavedState::kKept | (has_entropy ? SavedState::kEntropy : 0) |
                                (end.wide ? SavedState::kWide : 0) |
                                (filtered ? SavedState::kFiltered : 0),
                            end.bin,
                            end.c,
                            static_cast<float>(end.z_max),
                            end.inverse,
                            entropy,
                            cut.z,
                            cut.id,
                            0};
  std::memcpy(words, &saved, sizeof(saved));
}

bool RowState::load(const std::int32_t* words, bool want_entropy) {
  SavedState saved;
  std::memcpy(&saved, words, sizeof(saved));
  if (!(saved.flags & SavedState::kKept)) return false;
  has_entropy = saved.flags & SavedState::kEntropy;
  if (want_entropy && !has_entropy) return false;
  end = {saved.inverse, saved.bin, static_cast<double>(saved.z_max), saved.c,
         (saved.flags & SavedState::kWide) != 0};
  filtered = saved.flags & SavedState::kFiltered;
  cut = {saved.cut_z, saved.cut_id, saved.z_max, saved.bin};
  entropy = saved.entropy;
  return true;
}

void LogprobRow::read(std::int64_t t, const SamplingParams& params) {
  x = logits->at<float>(t);
  scale = reference::inverse_temperature(params);
  filtered = false;
  valid = vocab_size > 0 && scale < numerics::kInfinity;
  if (valid && has_filter(params)) valid = find_cut(params);
}

void LogprobRow::use(std::int64_t t, const SamplingParams& params, const RowState& state) {
  x = logits->at<float>(t);
  scale = reference::inverse_temperature(params);
  filtered = state.filtered;
  cut = state.cut;
  valid = true;
}

bool LogprobRow::takes_part(std::int64_t id) const {
  const float z = x[id] * scale;
  if (numerics::classify_logit(z) != numerics::LogitStatus::kOk) return false;
  return !filtered || z > cut.z || (z == cut.z && id <= cut.id);
}

numerics::EntropySumExp LogprobRow::sum_pieces(bool entropy, bool* wide) const {
  for_each_piece(
      [&](std::int64_t i, const LogitPiece& piece) { isa->sums(&parts[i].sums, piece, entropy); });
  numerics::EntropySumExp sums;
  *wide = false;
  for (std::int64_t i = 0; i < num_pieces(); ++i) {
    sums.merge(state_of(parts[i].sums));
    *wide = *wide || parts[i].sums.wide;
  }
  return sums;
}

bool LogprobRow::find_state(bool entropy, RowState* state) const {
  bool wide = false;
  const numerics::EntropySumExp sums = sum_pieces(entropy, &wide);
  if (sums.status() != numerics::LogitStatus::kOk) return false;
  *state = RowState(sums, wide, entropy);
  state->filtered = filtered;
  state->cut = cut;
  return true;
}

LogprobRows::LogprobRows(Exec& exec, const LogprobIsa& isa, const ConstTensorView& logits,
                         const SamplingParams* params, std::int64_t num_params,
                         double ns_per_column)
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
    row.isa = &isa;
    row.logits = &logits_;
    row.ns_per_column = ns_per_column;
    row.parts = frame_.take<LogprobPart>(row.num_pieces());
    if (filters) {
      row.list.z = frame_.take<float>(vocab_size);
      row.list.id = frame_.take<std::int32_t>(vocab_size);
      row.list.q = frame_.take<std::int32_t>(vocab_size);
    }
    if (!share_rows_) row.pool = &exec.pool;
  }
}

}  // namespace rlk::cpu
