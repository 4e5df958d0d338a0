#include "rlk/kernels/gpu/row_parts.h"

#include <algorithm>

namespace rlk::gpu {
namespace {

constexpr std::int64_t kBlocks = 264;                 // two for each of 132 processors
constexpr std::int64_t kLeastSize = 4 * kRowThreads;  // of a part
constexpr std::int64_t kListBytes = 256 << 20;

// In the kernels below blocks are parts of rows, x the row and y the part.

template <bool kEntropy>
RLK_KERNEL(kRowThreads)
sum_kernel(EntropySumExp* sums, Rows rows, Parts parts) {
  const std::int64_t t = block_x(), part = block_y();
  const SamplingParams& params = rows.params_of(t);
  if (filters(params)) return;
  RLK_SHARED(ReduceBytes, shared, kRowThreads);
  const int begin = parts.begin(part), end = parts.end(part, rows.vocab_size);
  const EntropySumExp sum = row_sums<kEntropy, kRowThreads>(
      &rows.logits(t, begin), rows.logits.stride[1], end - begin, scale_of(params), shared);
  if (thread() == 0) sums[t * parts.count + part] = sum;
}

RLK_KERNEL(kRowThreads) state_kernel(RowState* states, Rows rows, Parts parts) {
  const std::int64_t t = block_x(), part = block_y();
  const SamplingParams& params = rows.params_of(t);
  if (!filters(params)) return;
  RLK_SHARED(ReduceBytes, shared, kRowThreads);
  const LogitRow row{shared, &rows.logits(t), rows.logits.stride[1], rows.vocab_size,
                     scale_of(params)};
  const RowState state = state_of(row, parts.begin(part), parts.end(part, rows.vocab_size));
  if (thread() == 0) states[t * parts.count + part] = state;
}

// counts [rows][kBuckets]; sums where top-p alone asks for them.
RLK_KERNEL(kRowThreads)
count_kernel(unsigned* counts, LogSumExp* sums, Rows rows, Parts parts) {
  const std::int64_t t = block_x(), part = block_y();
  const SamplingParams& params = rows.params_of(t);
  if (!filters(params)) return;
  RLK_SHARED(ReduceBytes, shared, kRowThreads);
  LogitRow row;
  if (!rows.begin(t, shared, &row)) return;
  const OrderFilters filters(params, rows.vocab_size);
  const int begin = parts.begin(part), end = parts.end(part, rows.vocab_size);
  if (filters.any()) {
    auto* const near = reinterpret_cast<unsigned*>(shared);
    near[thread()] = 0;
    barrier();
    count_distances(row, begin, end, near);
    barrier();
    const unsigned count = near[thread()];
    barrier();
    if (count != 0) atomic_add(&counts[t * kBuckets + thread()], count);
  }
  if (!filters.top_p_alone()) return;
  LogSumExp sum;
  for_each_pack(row, begin, end, [&](int, const float(&x)[4], int n) {
    for (int l = 0; l < n; ++l) {
      const float z = x[l] * row.scale;
      if (row.is_near(z)) sum.add(z);
    }
  });
  sum = block_reduce<kRowThreads>(sum, shared, [](LogSumExp a, const LogSumExp& b) {
    a.merge(b);
    return a;
  });
  if (thread() == 0) sums[t * parts.count + part] = sum;
}

// A thread asks once for room for all its tokens.
RLK_KERNEL(kRowThreads)
list_kernel(std::int32_t* ids, unsigned* num_ids, float* min_differences, const unsigned* counts,
            Rows rows, Parts parts) {
  const std::int64_t t = block_x(), part = block_y();
  const SamplingParams& params = rows.params_of(t);
  if (!filters(params)) return;
  RLK_SHARED(ReduceBytes, shared, kRowThreads);
  LogitRow row;
  if (!rows.begin(t, shared, &row)) return;
  const OrderFilters filters(params, rows.vocab_size);
  if (filters.any()) {
    LogSumExp sum;
    if (filters.top_p_alone()) sum = rows.merged(rows.found.top_p_sums, t, shared);
    narrow(&row, filters, counts[t * kBuckets + thread()], sum);
  }
  if (part == 0 && thread() == 0) min_differences[t] = row.min_difference;
  const int begin = parts.begin(part), end = parts.end(part, rows.vocab_size);
  unsigned count = 0;
  for_each_pack(row, begin, end, [&](int, const float(&x)[4], int n) {
    RLK_UNROLL
    for (int l = 0; l < 4; ++l) count += l < n && row.is_near(x[l] * row.scale) ? 1 : 0;
  });
  if (count == 0) return;
  std::int32_t* to = ids + t * rows.vocab_size + atomic_add(&num_ids[t], count);
  for_each_pack(row, begin, end, [&](int j, const float(&x)[4], int n) {
    for (int l = 0; l < n; ++l) {
      if (row.is_near(x[l] * row.scale)) *to++ = j + l;
    }
  });
}

}  // namespace

Parts parts_of(std::int64_t count, std::int64_t vocab_size) {
  count = std::clamp<std::int64_t>(count, 1, kRowThreads);
  const std::int64_t size =
      std::max<std::int64_t>(1, (vocab_size + 4 * count - 1) / (4 * count)) * 4;
  return {static_cast<int>(std::max<std::int64_t>(1, (vocab_size + size - 1) / size)),
          static_cast<int>(size)};
}

Parts parts_for(std::int64_t num_rows, std::int64_t vocab_size) {
  const std::int64_t most = (vocab_size + kLeastSize - 1) / kLeastSize;
  return parts_of(std::min(most, kBlocks / std::max<std::int64_t>(1, num_rows)), vocab_size);
}

void sum_parts(Exec& exec, device::Workspace::Frame& frame, std::int64_t num_rows,
               const Parts& parts, bool entropy, Rows* rows) {
  if (parts.count == 1) return;
  auto* const sums = frame.take<EntropySumExp>(num_rows * parts.count);
  launch(exec, {num_rows, parts.count}, kRowThreads, 0,
         entropy ? sum_kernel<true> : sum_kernel<false>, sums, *rows, parts);
  rows->found.parts = parts;
  rows->found.sums = sums;
}

void filter_parts(Exec& exec, device::Workspace::Frame& frame, std::int64_t num_rows,
                  const Parts& parts, const SamplingParams* params, Rows* rows) {
  const std::int64_t vocab_size = rows->vocab_size;
  if (4 * num_rows * vocab_size > kListBytes) return;
  if (std::none_of(params, params + rows->num_params, filters)) return;
  auto* const states = frame.take<RowState>(num_rows * parts.count);
  auto* const sums = frame.take<LogSumExp>(num_rows * parts.count);
  auto* const counts = frame.take<unsigned>(num_rows * (kBuckets + 1));
  unsigned* const num_ids = counts + num_rows * kBuckets;
  auto* const min_differences = frame.take<float>(num_rows);
  auto* const ids = frame.take<std::int32_t>(num_rows * vocab_size);
  device::fill(counts, 0, sizeof(unsigned) * static_cast<std::size_t>(num_rows * (kBuckets + 1)),
               exec.gpu->stream());
  const Grid grid{num_rows, parts.count};
  launch(exec, grid, kRowThreads, 0, state_kernel, states, *rows, parts);
  FromParts& found = rows->found;
  found.parts = parts;
  found.states = states;
  launch(exec, grid, kRowThreads, 0, count_kernel, counts, sums, *rows, parts);
  found.top_p_sums = sums;
  launch(exec, grid, kRowThreads, 0, list_kernel, ids, num_ids, min_differences,
         static_cast<const unsigned*>(counts), *rows, parts);
  found.min_differences = min_differences;
  found.ids = ids;
  found.num_ids = num_ids;
}

}  // namespace rlk::gpu
