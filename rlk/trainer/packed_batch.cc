#include "rlk/trainer/packed_batch.h"

#include "rlk/core/error.h"

namespace rlk {

void validate(const TrainSample& s, std::int64_t index, std::int64_t max_model_len) {
  const auto num_tokens = static_cast<std::int64_t>(s.token_ids.size());
  if (s.prompt_len < 1 || s.prompt_len > num_tokens) {
    fail(ErrorCode::kInvalidArgument,
         "sample {}: prompt_len {} of {} tokens; it must be at least 1", index, s.prompt_len,
         num_tokens);
  }
  if (num_tokens > max_model_len) {
    fail(ErrorCode::kInvalidArgument, "sample {}: {} tokens, max_model_len is {}", index,
         num_tokens, max_model_len);
  }
  const auto response = static_cast<std::size_t>(s.response_len());
  if (s.old_logprobs.size() != response || s.active.size() != response) {
    fail(ErrorCode::kInvalidArgument,
         "sample {}: {} response tokens but {} old log-probabilities and {} mask entries", index,
         response, s.old_logprobs.size(), s.active.size());
  }
}

void PackedBatch::pack(std::span<const TrainSample> samples) {
  token_ids.clear();
  positions.clear();
  cu_seqlens.assign(1, 0);
  kv_lens.clear();
  rows.clear();
  row_cu_seqlens.assign(1, 0);
  row_of_token.clear();
  targets.clear();
  params.clear();
  for (const TrainSample& s : samples) {
    const auto first_row = static_cast<std::int64_t>(token_ids.size());
    const auto n = static_cast<std::int64_t>(s.token_ids.size());
    token_ids.insert(token_ids.end(), s.token_ids.begin(), s.token_ids.end());
    for (std::int64_t p = 0; p < n; ++p) positions.push_back(static_cast<std::int32_t>(p));
    cu_seqlens.push_back(static_cast<std::int32_t>(token_ids.size()));
    kv_lens.push_back(static_cast<std::int32_t>(n));
    row_of_token.resize(token_ids.size(), -1);
    for (std::int64_t p = s.prompt_len; p < n; ++p) {
      row_of_token[static_cast<std::size_t>(first_row + p - 1)] = num_rows();
      rows.push_back(first_row + p - 1);
      targets.push_back(s.token_ids[p]);
      params.push_back(s.sampling);
    }
    row_cu_seqlens.push_back(static_cast<std::int32_t>(rows.size()));
  }
}

ForwardBatch PackedBatch::forward_batch() const {
  ForwardBatch b;
  b.token_ids = vector_view(token_ids);
  b.positions = vector_view(positions);
  b.cu_seqlens = vector_view(cu_seqlens);
  b.kv_lens = vector_view(kv_lens);
  return b;
}

SampleRange slot_samples(std::int64_t num_samples, std::int64_t slot, std::int64_t num_slots) {
  // The first i with floor(i * num_slots / num_samples) >= s is ceil(s * num_samples / num_slots).
  const auto first = [&](std::int64_t s) { return (s * num_samples + num_slots - 1) / num_slots; };
  return {first(slot), first(slot + 1)};
}

std::vector<SampleRange> plan_micro_batches(std::span<const TrainSample> samples,
                                            const SampleRange& range, std::int64_t max_tokens) {
  std::vector<SampleRange> out;
  std::int64_t tokens = 0;
  for (std::int64_t i = range.begin; i < range.end; ++i) {
    const auto n = static_cast<std::int64_t>(samples[i].token_ids.size());
    if (out.empty() || tokens + n > max_tokens) {
      out.push_back({i, i});
      tokens = 0;
    }
    out.back().end = i + 1;
    tokens += n;
  }
  return out;
}

}  // namespace rlk
