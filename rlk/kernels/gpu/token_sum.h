// Token sums (contract section 2) of the columns of a matrix. A block has 32 columns and eight
// workers for each: they sum eight blocks of tokens at once, and the sums are folded in order.
#pragma once

#include "rlk/kernels/gpu/views.h"

namespace rlk::gpu {

inline constexpr int kTokenSumColumns = 32;
inline constexpr int kTokenSumWorkers = 8;
inline constexpr int kTokenSumThreads = kTokenSumColumns * kTokenSumWorkers;

inline Grid token_sum_grid(std::int64_t columns) {
  return {(columns + kTokenSumColumns - 1) / kTokenSumColumns};
}

RLK_DEVICE std::int64_t token_sum_column() {
  return block_x() * kTokenSumColumns + thread() % kTokenSumColumns;
}

// The blocks of all samples in canonical order.
struct TokenBlocks {
  Ref<const std::int32_t> cu_seqlens;
  std::int64_t num_samples;
  std::int64_t size;
  std::int64_t sample = 0;
  std::int64_t begin = 0;  // first token of the current block
  std::int64_t end = 0;    // of its sample

  // To the first block at or behind the start of `sample`.
  RLK_DEVICE void enter(std::int64_t first) {
    for (sample = first; sample < num_samples; ++sample) {
      begin = cu_seqlens(sample);
      end = cu_seqlens(sample + 1);
      if (begin < end) return;
    }
  }
  RLK_DEVICE bool done() const { return sample >= num_samples; }
  RLK_DEVICE void next() {
    if (done()) return;
    begin += size;
    if (begin >= end) enter(sample + 1);
  }
  RLK_DEVICE std::int64_t block_end() const { return begin + size < end ? begin + size : end; }
};

// *total = the token sum of step(token, acc), folded onto *total. total is null where the column
// does not exist. All threads of a block call it.
template <typename Step>
RLK_DEVICE void token_sum(float* total, const Ref<const std::int32_t>& cu_seqlens,
                          std::int64_t num_samples, std::int64_t token_block, const Step& step) {
  RLK_SHARED(float, sums, kTokenSumThreads);
  const int worker = thread() / kTokenSumColumns;
  TokenBlocks round{cu_seqlens, num_samples, token_block};
  round.enter(0);
  const bool folds = worker == 0 && total != nullptr;
  float sum = folds ? *total : 0.0f;
  while (!round.done()) {
    TokenBlocks mine = round;
    for (int i = 0; i < worker; ++i) mine.next();
    if (total != nullptr && !mine.done()) {
      float acc = 0.0f;
      const std::int64_t end = mine.block_end();
      for (std::int64_t t = mine.begin; t < end; ++t) acc = step(t, acc);
      sums[thread()] = acc;
    }
    barrier();
    for (int i = 0; i < kTokenSumWorkers && !round.done(); ++i, round.next()) {
      if (folds) sum = sum + sums[i * kTokenSumColumns + thread()];
    }
    barrier();
  }
  if (folds) *total = sum;
}

}  // namespace rlk::gpu
