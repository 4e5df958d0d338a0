// A row of logits as the distribution it stands for: temperature, then min-p, top-k, top-p (see
// kernels/reference/token_filter.h). What a filter leaves is always the tokens from some place on
// in one order, descending z with ties by lower id; so a filter is the key of the last token it
// keeps, and nothing is sorted or stored.
#pragma once

#include <bit>

#include "rlk/kernels/gpu/block_reduce.h"
#include "rlk/kernels/gpu/views.h"
#include "rlk/kernels/logprob.h"
#include "rlk/numerics/log_sum_exp.h"

namespace rlk::gpu {

inline constexpr int kRowThreads = 512;  // one block a row

using numerics::LogitStatus;
using numerics::LogSumExp;

// Larger for tokens that come earlier in the order; no two are equal.
RLK_HD inline std::uint64_t order_key(float z, std::int64_t id) {
  const std::uint32_t u = std::bit_cast<std::uint32_t>(z + 0.0f);  // -0 is +0
  const std::uint32_t rising = (u & 0x80000000u) != 0 ? ~u : u | 0x80000000u;
  return static_cast<std::uint64_t>(rising) << 32 | static_cast<std::uint32_t>(~id);
}

struct LogitRow {
  ReduceBytes* shared;
  const float* logits;
  std::int64_t stride;
  std::int64_t vocab_size;
  float scale;  // 1 / f32(T)
  float z_max = 0.0f;
  float min_difference = -numerics::kInfinity;  // min-p: of z - z_max
  std::uint64_t last_kept = 0;                  // top-k, top-p

  // z of token j; -inf where it takes no part.
  RLK_DEVICE float z(std::int64_t j) const {
    const float z = logits[j * stride] * scale;
    const bool in = numerics::classify_logit(z) == LogitStatus::kOk &&
                    z - z_max >= min_difference && order_key(z, j) >= last_kept;
    return in ? z : -numerics::kInfinity;
  }

  // Calls visit(j, z) for this thread's tokens that take part.
  template <typename Visit>
  RLK_DEVICE void for_each(const Visit& visit) const {
    for (std::int64_t j = thread(); j < vocab_size; j += kRowThreads) {
      const float value = z(j);
      if (value != -numerics::kInfinity) visit(j, value);
    }
  }
};

// The tokens before some place in the order.
struct Before {
  std::int64_t count;
  numerics::BinSums s;  // relative to the row's bin
};

// The smallest key K for which keep(what comes before K) holds. keep must hold for nothing and not
// come back once it is false. Where kSums is false only the count is there.
template <bool kSums, typename Keep>
RLK_DEVICE std::uint64_t find_last_kept(const LogitRow& row, std::int32_t bin, const Keep& keep) {
  std::uint64_t last = ~std::uint64_t{0};
  for (int bit = 63; bit >= 0; --bit) {
    if (bit < 32 && bit >= 20) continue;  // ids are below 2^20: these are 1 in every key
    const std::uint64_t key = last & ~(std::uint64_t{1} << bit);
    Before before{0, {0, 0, 0, 0}};
    row.for_each([&](std::int64_t j, float z) {
      if (order_key(z, j) <= key) return;
      ++before.count;
      if constexpr (kSums) {
        const numerics::LogitTerm term = numerics::logit_term(z);
        const std::int64_t place = std::int64_t{bin} - term.bin();
        for (int k = 0; k < 4; ++k) before.s[k] += k == place ? term.q << term.shift() : 0;
      }
    });
    before = block_reduce<kRowThreads>(before, row.shared, [](Before a, const Before& b) {
      a.count += b.count;
      for (int k = 0; k < 4; ++k) a.s[k] += b.s[k];
      return a;
    });
    if (keep(before)) last = key;
  }
  return last;
}

RLK_DEVICE LogSumExp log_sum_exp(const LogitRow& row) {
  LogSumExp sum;
  row.for_each([&](std::int64_t, float z) { sum.add(z); });
  return block_reduce<kRowThreads>(sum, row.shared, [](LogSumExp a, const LogSumExp& b) {
    a.merge(b);
    return a;
  });
}

RLK_HD inline float scale_of(const SamplingParams& params) {
  return params.temperature == 0.0f ? 1.0f : 1.0f / params.temperature;
}

// Whether some tokens may be left out of the row.
RLK_HD inline bool filters(const SamplingParams& params) {
  return params.temperature != 0.0f &&
         (params.min_p > 0.0f || params.top_k > 0 || params.top_p < 1.0f);
}

// What a row is before any filter.
struct RowState {
  float z_max;
  bool any;
  bool bad;
};

// Makes the row of a block; false where it is an error. All threads of the block call it.
RLK_DEVICE bool make_row(ReduceBytes* shared, const float* logits, std::int64_t stride,
                         std::int64_t vocab_size, const SamplingParams& params, LogitRow* row) {
  *row = LogitRow{shared, logits, stride, vocab_size, scale_of(params)};
  RowState state{-numerics::kInfinity, false, false};
  for (std::int64_t j = thread(); j < vocab_size; j += kRowThreads) {
    const float logit = logits[j * stride];
    const float z = logit * row->scale;
    const LogitStatus status = numerics::classify_logit(z);
    if (!numerics::is_finite(logit) || status == LogitStatus::kNonFinite) state.bad = true;
    if (status != LogitStatus::kOk) continue;
    state.any = true;
    if (z > state.z_max) state.z_max = z;
  }
  state = block_reduce<kRowThreads>(state, shared, [](const RowState& a, const RowState& b) {
    return RowState{a.z_max < b.z_max ? b.z_max : a.z_max, a.any || b.any, a.bad || b.bad};
  });
  if (state.bad || !state.any) return false;
  row->z_max = state.z_max;
  if (!filters(params)) return true;

  if (params.min_p > 0.0f) row->min_difference = numerics::log(params.min_p);
  if (params.top_k > 0) {
    const std::int64_t top_k = params.top_k;
    row->last_kept =
        find_last_kept<false>(*row, 0, [&](const Before& before) { return before.count < top_k; });
  }
  if (params.top_p < 1.0f) {
    const LogSumExp sum = log_sum_exp(*row);
    const double limit = static_cast<double>(params.top_p) * sum.total();
    const std::uint64_t last = find_last_kept<true>(
        *row, sum.bin, [&](const Before& before) { return numerics::join_bins(before.s) < limit; });
    if (last > row->last_kept) row->last_kept = last;
  }
  return true;
}

// Rows of logits and what they stand for.
struct Rows {
  Ref<const float> logits;
  std::int64_t vocab_size;
  const SamplingParams* params;
  std::int64_t num_params;
  std::int64_t first_row;  // row 0 in the caller's call: what a fault names

  RLK_DEVICE const SamplingParams& params_of(std::int64_t t) const {
    return params[num_params == 1 ? 0 : t];
  }
  RLK_DEVICE bool make(std::int64_t t, ReduceBytes* shared, LogitRow* row) const {
    return make_row(shared, &logits(t), logits.stride[1], vocab_size, params_of(t), row);
  }
};

// The sums of a row between forward and backward, in kLogprobStateWords; of a row that forward did
// not look at, or that is an error, all 0.
RLK_DEVICE void write_state(const Ref<std::int32_t>& state, std::int64_t t, const LogSumExp& sum) {
  state(t, 0) = std::bit_cast<std::int32_t>(sum.z_max);
  state(t, 1) = sum.bin;
  for (int k = 0; k < 4; ++k) {
    const std::int64_t s = sum.s[static_cast<std::size_t>(k)];
    state(t, 2 + 2 * k) = static_cast<std::int32_t>(s);
    state(t, 3 + 2 * k) = static_cast<std::int32_t>(s >> 32);
  }
}
RLK_DEVICE LogSumExp read_state(const Ref<const std::int32_t>& state, std::int64_t t) {
  LogSumExp sum;
  sum.z_max = std::bit_cast<float>(state(t, 0));
  sum.bin = state(t, 1);
  for (int k = 0; k < 4; ++k) {
    const auto low = static_cast<std::uint32_t>(state(t, 2 + 2 * k));
    const auto high = static_cast<std::uint32_t>(state(t, 3 + 2 * k));
    sum.s[static_cast<std::size_t>(k)] = static_cast<std::int64_t>(std::uint64_t{high} << 32 | low);
  }
  sum.any = sum.s[0] != 0;  // the term of z_max is there
  return sum;
}

// A host array, in device memory.
template <typename T>
const T* on_device(Exec& exec, device::Workspace::Frame& frame, const T* host, std::int64_t count) {
  T* const data = frame.take<T>(count);
  device::copy(data, host, sizeof(T) * static_cast<std::size_t>(count), exec.gpu->stream());
  return data;
}

inline Rows make_rows(Exec& exec, device::Workspace::Frame& frame, const ConstTensorView& logits,
                      const SamplingParams* params, std::int64_t num_params,
                      std::int64_t first_row) {
  return {ref<float>(logits), logits.shape(1), on_device(exec, frame, params, num_params),
          num_params, first_row};
}

}  // namespace rlk::gpu
