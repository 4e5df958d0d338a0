// Token sums (contract section 2) of the columns of a matrix, folded onto what is there. The blocks
// of tokens do not depend on each other, so all are summed at once, and a second kernel folds their
// sums in order.
//
// A Columns says what is summed; it is passed by value:
//   total(column)       float*, where the sum goes
//   at(column)          what reads this column:
//     load(token)         Item: the numbers of a token, which do not depend on the sum so far
//   add(item, acc)      the next sum, static
#pragma once

#include <algorithm>

#include "rlk/device/device.h"
#include "rlk/kernels/exec.h"
#include "rlk/kernels/gpu/elements.h"

namespace rlk::gpu {

// The blocks of all samples in canonical order.
struct TokenBlocks {
  Ref<const std::int32_t> cu_seqlens;
  int num_samples;
  int size;

  RLK_DEVICE int blocks_of(int sample) const {
    const int tokens = cu_seqlens(sample + 1) - cu_seqlens(sample);
    return static_cast<int>(static_cast<unsigned>(tokens + size - 1) / static_cast<unsigned>(size));
  }
  RLK_DEVICE int count() const {
    int sum = 0;
    for (int sample = 0; sample < num_samples; ++sample) sum += blocks_of(sample);
    return sum;
  }
  // False where there are not so many.
  RLK_DEVICE bool find(int block, int* begin, int* end) const {
    for (int sample = 0; sample < num_samples; ++sample) {
      const int blocks = blocks_of(sample);
      if (block < blocks) {
        const int sample_end = cu_seqlens(sample + 1);
        *begin = cu_seqlens(sample) + block * size;
        *end = *begin + size < sample_end ? *begin + size : sample_end;
        return true;
      }
      block -= blocks;
    }
    return false;
  }
};

inline constexpr int kTokenSumThreads = 256;
inline constexpr int kTokenFoldColumns = 32;
inline constexpr int kTokenFoldBlocks = 64;

// Of `num_columns` columns from `first_column` on: partial[block, column]
template <typename Columns>
RLK_KERNEL(kTokenSumThreads)
token_blocks_kernel(float* partial, TokenBlocks blocks, std::int64_t first_column,
                    std::int64_t num_columns, Columns columns) {
  constexpr int kAhead = 8;  // tokens whose numbers are asked for before they are used
  const std::int64_t column = block_y() * kTokenSumThreads + thread();
  int t, end;
  if (column >= num_columns || !blocks.find(static_cast<int>(block_x()), &t, &end)) return;
  const auto in = columns.at(first_column + column);
  float acc = 0.0f;
  for (; t + kAhead <= end; t += kAhead) {
    typename Columns::Item items[kAhead];
    RLK_UNROLL
    for (int i = 0; i < kAhead; ++i) items[i] = in.load(t + i);
    RLK_UNROLL
    for (int i = 0; i < kAhead; ++i) acc = Columns::add(items[i], acc);
  }
  for (; t < end; ++t) acc = Columns::add(in.load(t), acc);
  partial[block_x() * num_columns + column] = acc;
}

template <typename Columns>
RLK_KERNEL(kTokenSumThreads)
token_fold_kernel(const float* partial, TokenBlocks blocks, std::int64_t first_column,
                  std::int64_t num_columns, Columns columns) {
  RLK_SHARED(float, sums, kTokenFoldBlocks* kTokenFoldColumns);
  const int lane = thread() % kTokenFoldColumns;
  const std::int64_t column = block_x() * kTokenFoldColumns + lane;
  const bool folds = thread() < kTokenFoldColumns && column < num_columns;
  const int count = blocks.count();
  float* const total = folds ? columns.total(first_column + column) : nullptr;
  float sum = folds ? *total : 0.0f;
  for (int first = 0; first < count; first += kTokenFoldBlocks) {
    const int here = count - first < kTokenFoldBlocks ? count - first : kTokenFoldBlocks;
    for (int i = thread() / kTokenFoldColumns; i < here && column < num_columns;
         i += kTokenSumThreads / kTokenFoldColumns) {
      sums[i * kTokenFoldColumns + lane] = partial[(first + i) * num_columns + column];
    }
    barrier();
    for (int i = 0; i < here && folds; ++i) sum = sum + sums[i * kTokenFoldColumns + lane];
    barrier();
  }
  if (folds) *total = sum;
}

// cu_seqlens [num_samples + 1] over num_tokens tokens.
template <typename Columns>
void token_sum(Exec& exec, const ConstTensorView& cu_seqlens, std::int64_t num_tokens,
               std::int64_t num_columns, const Columns& columns) {
  const std::int64_t num_samples = cu_seqlens.shape(0) - 1;
  const TokenBlocks blocks{ref<std::int32_t>(cu_seqlens), static_cast<int>(num_samples),
                           exec.contract.token_block};
  // Each sample may end with a block that is not full.
  const std::int64_t most = num_tokens / blocks.size + num_samples;
  if (most == 0) return;
  // As many columns at a time as have their sums in 64 MiB.
  const std::int64_t at_a_time = std::max<std::int64_t>(
      (std::int64_t{16} << 20) / most / kTokenSumThreads * kTokenSumThreads, kTokenSumThreads);
  device::Workspace::Frame frame(exec.gpu->workspace());
  float* const partial = frame.take<float>(most * std::min(at_a_time, num_columns));
  for (std::int64_t first = 0; first < num_columns; first += at_a_time) {
    const std::int64_t count = std::min(at_a_time, num_columns - first);
    launch(exec, {most, ceil_div(count, std::int64_t{kTokenSumThreads})}, kTokenSumThreads, 0,
           token_blocks_kernel<Columns>, partial, blocks, first, count, columns);
    launch(exec, {ceil_div(count, std::int64_t{kTokenFoldColumns})}, kTokenSumThreads, 0,
           token_fold_kernel<Columns>, partial, blocks, first, count, columns);
  }
}

}  // namespace rlk::gpu
