// Samples of an optimizer step and their packing into micro-batches without padding.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "rlk/kernels/logprob.h"
#include "rlk/model/forward.h"

namespace rlk {

// One sequence as the trainer sees it: the record of a rollout, or an example to imitate.
// old_logprobs and active have one entry per response token.
struct TrainSample {
  std::vector<std::int32_t> token_ids;  // prompt, then response
  std::int64_t prompt_len = 0;
  SamplingParams sampling;
  std::vector<float> old_logprobs;
  std::vector<std::uint8_t> active;  // 1: takes part in the loss
  float advantage = 0;

  std::int64_t response_len() const {
    return static_cast<std::int64_t>(token_ids.size()) - prompt_len;
  }
};

// Throws kInvalidArgument naming the sample: no prompt, an old_logprobs or active of another size,
// or more tokens than max_model_len.
void validate(const TrainSample& sample, std::int64_t index, std::int64_t max_model_len);

// Whole samples, one after the other, each from position 0.
struct PackedBatch {
  Array<std::int32_t> token_ids, positions, cu_seqlens, kv_lens;

  // The rows whose next token belongs to a response: row in the batch, that token, its sampling.
  Array<std::int64_t> rows;
  Array<std::int32_t> targets;
  Array<std::int32_t> row_cu_seqlens;  // offsets of the samples among them
  Array<std::int64_t> row_of_token;    // of each token its place in `rows`, or -1
  std::vector<SamplingParams> params;

  // small_memory: of the context that runs it.
  explicit PackedBatch(Memory& small_memory = host_memory())
      : token_ids(small_memory),
        positions(small_memory),
        cu_seqlens(small_memory),
        kv_lens(small_memory),
        rows(small_memory),
        targets(small_memory),
        row_cu_seqlens(small_memory),
        row_of_token(small_memory) {}

  void pack(std::span<const TrainSample> samples);
  ForwardBatch forward_batch() const;
  std::int64_t num_rows() const { return static_cast<std::int64_t>(rows.size()); }
};

// A contiguous run of samples [begin, end).
struct SampleRange {
  std::int64_t begin;
  std::int64_t end;
};

// The samples of gradient slot `slot` of num_slots: those with floor(i * num_slots / N) = slot.
SampleRange slot_samples(std::int64_t num_samples, std::int64_t slot, std::int64_t num_slots);

// Cuts `range` into runs of at most max_tokens tokens (a longer sample stands alone). A plan: the
// gradient does not depend on it.
std::vector<SampleRange> plan_micro_batches(std::span<const TrainSample> samples,
                                            const SampleRange& range, std::int64_t max_tokens);

}  // namespace rlk
