// Rows of logits, each read by one block, or where they are few by several blocks, a part each,
// before that one. What parts leave for each other is maxima, integer sums, counts, and a list of
// tokens whose order nobody can see, so the bits do not depend on the parts.
//
//   sums      the log-sum-exp of each part of a row without filters
//   states    z_max and errors of each part of a row with filters
//   counts    how many of its tokens are how far from z_max
//   ids       those that may be kept, once the first filter has been narrowed down by the counts
#pragma once

#include "rlk/kernels/gpu/parts.h"
#include "rlk/kernels/gpu/row_sums.h"
#include "rlk/kernels/gpu/token_filter.h"

namespace rlk::gpu {

using numerics::EntropySumExp;

// In device memory, an array for each row. What is null has not been looked for.
struct FromParts {
  Parts parts;
  const EntropySumExp* sums = nullptr;     // [parts.count]
  const RowState* states = nullptr;        // [parts.count]
  const LogSumExp* top_p_sums = nullptr;   // [parts.count], where top-p is the only one
  const float* min_differences = nullptr;  // [1]: of LogitRow, for the tokens of `ids`
  const std::int32_t* ids = nullptr;       // [vocab_size]
  const unsigned* num_ids = nullptr;       // [1]
};

// One value out of what `count` <= kRowThreads parts have left.
template <typename T, typename Merge>
RLK_DEVICE T merge_parts(const T* from, int count, ReduceBytes* shared, const Merge& merge) {
  static_assert(sizeof(T) <= sizeof(ReduceBytes));
  T* const values = reinterpret_cast<T*>(shared);
  if (thread() < count) values[thread()] = from[thread()];
  barrier();
  for (int n = count; n > 1;) {
    const int half = (n + 1) / 2;
    if (thread() + half < n) values[thread()] = merge(values[thread()], values[thread() + half]);
    barrier();
    n = half;
  }
  const T result = values[0];
  barrier();
  return result;
}

// Rows of logits and what they stand for.
struct Rows {
  Ref<const float> logits;
  std::int64_t vocab_size;
  const SamplingParams* params;
  std::int64_t num_params;
  std::int64_t first_row;  // row 0 in the caller's call: what a fault names
  FromParts found = {};

  RLK_DEVICE const SamplingParams& params_of(std::int64_t t) const {
    return params[num_params == 1 ? 0 : t];
  }

  // The sums of all parts.
  RLK_DEVICE EntropySumExp merged_sums(std::int64_t t, ReduceBytes* shared) const {
    return merged(found.sums, t, shared);
  }
  template <typename Sums>
  RLK_DEVICE Sums merged(const Sums* sums, std::int64_t t, ReduceBytes* shared) const {
    return merge_parts(sums + t * found.parts.count, found.parts.count, shared,
                       [](Sums a, const Sums& b) {
                         a.merge(b);
                         return a;
                       });
  }

  // The row before top-k and top-p; false where it is an error. Here and below all threads of the
  // block call it.
  RLK_DEVICE bool begin(std::int64_t t, ReduceBytes* shared, LogitRow* row) const {
    const SamplingParams& p = params_of(t);
    *row = LogitRow{shared, &logits(t), logits.stride[1], vocab_size, scale_of(p)};
    const RowState state = found.states != nullptr
                               ? merge_parts(found.states + t * found.parts.count,
                                             found.parts.count, shared, merge_states)
                               : state_of(*row, 0, static_cast<int>(vocab_size));
    if (!state.good()) return false;
    row->z_max = state.z_max;
    if (p.min_p > 0.0f) row->min_difference = numerics::log(p.min_p);
    return true;
  }

  // The row t, which filters; false where it is an error.
  RLK_DEVICE bool make(std::int64_t t, ReduceBytes* shared, LogitRow* row) const {
    if (!begin(t, shared, row)) return false;
    const OrderFilters filters(params_of(t), vocab_size);
    LogSumExp sum;
    if (found.ids != nullptr) {
      if (filters.top_p_alone()) sum = merged(found.top_p_sums, t, shared);
      row->ids = found.ids + t * vocab_size;
      row->num_ids = found.num_ids[t];
      row->min_difference = found.min_differences[t];
    } else if (filters.any()) {
      if (filters.top_p_alone()) sum = log_sum_exp(*row);
      auto* const counts = reinterpret_cast<unsigned*>(shared);
      counts[thread()] = 0;
      barrier();
      count_distances(*row, 0, static_cast<int>(vocab_size), counts);
      barrier();
      const unsigned count = counts[thread()];
      barrier();
      narrow(row, filters, count, sum);
    }
    filter_by_order(row, filters, sum);
    return true;
  }
};

inline Rows make_rows(Exec& exec, device::Workspace::Frame& frame, const ConstTensorView& logits,
                      const SamplingParams* params, std::int64_t num_params,
                      std::int64_t first_row) {
  return {ref<float>(logits), logits.shape(1), on_device(exec, frame, params, num_params),
          num_params, first_row};
}

// Reads the parts of `num_rows` rows for the filters of those that have any, unless the lists would
// be too large; `params` as the host has them.
void filter_parts(Exec& exec, device::Workspace::Frame& frame, std::int64_t num_rows,
                  const Parts& parts, const SamplingParams* params, Rows* rows);
// And the sums of those that have none.
void sum_parts(Exec& exec, device::Workspace::Frame& frame, std::int64_t num_rows,
               const Parts& parts, bool entropy, Rows* rows);

}  // namespace rlk::gpu
